"""The scheduler: waiting pods are bound to devices that are free and healthy, once, whole gangs at a time, or told why not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.api.devices import DeviceState
from remuda.api.errors import ApiError, Conflict, Unavailable
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, LeaseSpec, Node, Pod, PodSchedulingGate
from remuda.api.meta import JsonObject, KObject, ObjectMeta
from remuda.api.names import ANNOTATION_DEVICES, ANNOTATION_GANG_SIZE, ANNOTATION_TOPOLOGY_REQUIRED, RESOURCE_GPU
from remuda.scheduler.scheduling_cycle import Scheduler
from tests.builders.api_trouble import before_next, late, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.gangs import RACK, NodeBuilder, a_held_pod, a_node
from tests.builders.happenings import after, delete, do, patch, put, restart, wait
from tests.builders.pods import a_pod


async def _start(stage: ControllerStage) -> None:
    view = stage.view()

    def dead_nodes(now: float) -> frozenset[str]:
        if stage.props.pop("broken", 0):
            raise ZeroDivisionError
        return view.dead_nodes(now)

    scheduler = Scheduler(
        stage.api,
        view.pods,
        view.nodes,
        view.devices,
        dead_nodes,
        stage.clock,
        penalties=stage.props.setdefault("penalties", {}),
        reserved=view.reserved,
        events=stage.events,
    )
    await stage.sync(view.pods, view.nodes, view.devices, view.leases)
    stage.spawn(scheduler.run())


def both(*nodes: NodeBuilder) -> list[KObject]:
    return [obj for node in nodes for obj in (node.node(), node.devices())]


def waits(
    name: str = "p",
    gpus: int = 1,
    scheduler: str = "remuda",
    gang: str = "",
    size: str = "",
    age: float = 0.0,
    rack: bool = False,
) -> Pod:
    """A pod that nobody has placed."""
    marks = {ANNOTATION_GANG_SIZE: size} if size else {}
    marks |= {ANNOTATION_TOPOLOGY_REQUIRED: RACK} if rack else {}
    meta: JsonObject = {"creationTimestamp": after(-age).isoformat()}
    pod = a_pod(name, uid=f"uid-{name}", node="", gang=gang, limits={RESOURCE_GPU: gpus}, annotations=marks, meta=meta)
    return replace(pod, spec=replace(pod.spec, scheduler_name=scheduler))


def gated(pod: Pod) -> Pod:
    return replace(pod, spec=replace(pod.spec, scheduling_gates=[PodSchedulingGate("example.com/wait")]))


def at(node: str, devices: str | None = None) -> JsonObject:
    found: JsonObject = {"spec": {"nodeName": node}}
    return found if devices is None else {**found, "metadata": {"annotations": {ANNOTATION_DEVICES: devices}}}


N1, N2 = a_node("n1").gpus(2), a_node("n2").gpus(2)
WORN = N1.device("gpu-1", DeviceState.UNHEALTHY)
BIND, PLACED = "bind Pod/default/p to n1", "Normal Pod/default/p Scheduled"
REFUSE, REFUSED = "patch Pod/default/p/status", "Warning Pod/default/p FailedScheduling"
UNPLACED: JsonObject = {
    "spec": {"nodeName": None},
    "status": {"conditions": [{"type": "PodScheduled", "status": "False"}]},
}
P, Q = (Pod, "default/p"), (Pod, "default/q")

SCENARIOS = [
    Scenario(
        name="nobody waits and nothing is written",
        given=[*both(N1), a_held_pod("p", "n1", ["gpu-0"])],
        happens=[wait(60.0)],
    ),
    Scenario(
        name="a pod with a gate is not scheduled",
        given=[*both(N1), gated(waits())],
        happens=[wait(60.0)],
        want=Want([], [], {P: {"spec": {"nodeName": None}}}),
    ),
    Scenario(
        name="a pod whose last gate is taken off is scheduled",
        given=[*both(N1), gated(waits())],
        happens=[wait(10.0), patch(Pod, "default/p", {"spec": {"schedulingGates": []}})],
        want=Want([BIND], [PLACED], {P: at("n1")}),
    ),
    Scenario(
        name="a pod of another scheduler is left to it",
        given=[*both(N1), waits(scheduler="default-scheduler")],
        happens=[wait(60.0)],
    ),
    Scenario(
        name="a pod is bound once to a device that is free",
        given=[*both(N1, N2), a_held_pod("held", "n1", ["gpu-0"]), waits()],
        happens=[wait(60.0)],
        want=Want([BIND], [PLACED], {P: at("n1", "gpu-1")}),
    ),
    Scenario(
        name="two pods at one moment never get one device",
        given=[*both(N1), waits(), waits("q"), waits("r")],
        want=Want(
            [BIND, "bind Pod/default/q to n1", "patch Pod/default/r/status"],
            [PLACED, "Normal Pod/default/q Scheduled", "Warning Pod/default/r FailedScheduling"],
            {P: at("n1", "gpu-0"), Q: at("n1", "gpu-1"), (Pod, "default/r"): UNPLACED},
        ),
    ),
    Scenario(
        name="the node that something speaks against is the last choice",
        given=[*both(N1, N2), waits()],
        first=[do(lambda stage: stage.props.update(penalties={"n1": 1}))],
        want=Want(["bind Pod/default/p to n2"], [PLACED]),
    ),
    Scenario(
        name="a pod is not bound again while the informer has yet to show it",
        given=[*both(N1), waits()],
        first=[late(Pod, 3.0)],
        happens=[patch(Node, "n1", {"metadata": {"labels": {"a": "b"}}})],
        want=Want([BIND], [PLACED]),
    ),
    Scenario(
        name="a device that is not healthy and a node that is closed are not given",
        given=[*both(N1.device("gpu-0", DeviceState.UNHEALTHY), N2.cordoned()), waits(gpus=2)],
        happens=[wait(60.0)],
        want=Want([REFUSE], [REFUSED], {P: UNPLACED}),
    ),
    Scenario(
        name="who was refused is placed when there is room",
        given=[*both(N1.cordoned()), waits()],
        happens=[patch(Node, "n1", {"spec": {"unschedulable": None}})],
        want=Want([REFUSE, BIND], [REFUSED, PLACED], {P: at("n1")}),
    ),
    Scenario(
        name="room that a pod's end makes is seen",
        given=[*both(N1), a_held_pod("held", "n1", ["gpu-0", "gpu-1"]), waits()],
        happens=[delete(Pod, "default/held")],
        want=Want([REFUSE, BIND], [REFUSED, PLACED]),
    ),
    Scenario(
        name="a node whose lease ran out is not used",
        given=[
            *both(N1),
            Lease(
                metadata=ObjectMeta(name="n1", namespace=NODE_LEASE_NAMESPACE),
                spec=LeaseSpec("n1", 8, renew_time=after(0.0)),
            ),
        ],
        happens=[wait(20.0), put(waits())],
        want=Want([REFUSE], [REFUSED], {P: UNPLACED}),
    ),
    Scenario(
        name="a gang is placed whole or not at all",
        given=[*both(N1), *(waits(f"g{n}", gang="g", size="3", age=60.0) for n in range(3))],
        happens=[put(*both(N2))],
        want=Want(
            [
                *(f"patch Pod/default/g{n}/status" for n in range(3)),
                *(f"bind Pod/default/g{n} to n{1 + n // 2}" for n in range(3)),
            ],
            [
                *(f"Warning Pod/default/g{n} FailedScheduling" for n in range(3)),
                *(f"Normal Pod/default/g{n} Scheduled" for n in range(3)),
            ],
        ),
    ),
    Scenario(
        name="a gang that is not all there waits in silence at first",
        given=[*both(N1), waits("g0", gang="g", size="2")],
        happens=[put(waits("g1", gang="g", size="2"))],
        want=Want(
            ["bind Pod/default/g0 to n1", "bind Pod/default/g1 to n1"],
            ["Normal Pod/default/g0 Scheduled", "Normal Pod/default/g1 Scheduled"],
        ),
    ),
    Scenario(
        name="a pod stays with those of its gang that were bound a moment ago and are not seen back",
        given=[*both(N1.rack("a"), N2.rack("b")), *(waits(f"g{n}", gang="g", size="1", rack=True) for n in range(2))],
        first=[
            late(Pod, 3.0),
            before_next("bind Pod/default/g1", patch(Node, "n1", {"spec": {"unschedulable": True}})),
            refuse_next("bind Pod/default/g1", Conflict("try again")),
        ],
        want=Want(
            ["bind Pod/default/g0 to n1", "bind Pod/default/g1 to n1 !Conflict", "patch Pod/default/g1/status"],
            ["Normal Pod/default/g0 Scheduled", "Warning Pod/default/g1 FailedScheduling"],
            {(Pod, "default/g1"): UNPLACED},
        ),
    ),
    Scenario(
        name="a binding that the API refuses is planned anew",
        given=[*both(N1), waits()],
        first=[refuse_next(BIND, Conflict("somebody was faster"))],
        want=Want([f"{BIND} !Conflict", BIND], [PLACED], {P: at("n1")}),
    ),
    Scenario(
        name="a pod that somebody else bound first is his",
        given=[*both(N1), waits(), waits("q")],
        first=[before_next(BIND, patch(Pod, "default/p", {"spec": {"nodeName": "n9"}}))],
        want=Want(
            ["bind Pod/default/q to n1", f"{BIND} !Conflict"],
            ["Normal Pod/default/q Scheduled"],
            {P: {"spec": {"nodeName": "n9"}}, Q: at("n1")},
        ),
    ),
    Scenario(
        name="a pod that goes in the middle holds up nobody",
        given=[*both(N1), waits(gpus=2), waits("q", gpus=2)],
        first=[before_next(BIND, delete(Pod, "default/p"))],
        want=Want(
            [f"{BIND} !NotFound", "patch Pod/default/q/status", "bind Pod/default/q to n1"],
            ["Warning Pod/default/q FailedScheduling", "Normal Pod/default/q Scheduled"],
            {Q: at("n1")},
        ),
    ),
    Scenario(
        name="an API that is out of reach is asked again",
        given=[*both(N1.cordoned()), waits()],
        first=[refuse_next(REFUSE), refuse_next(BIND)],
        happens=[patch(Node, "n1", {"spec": {"unschedulable": None}})],
        want=Want([f"{REFUSE} !ServiceUnavailable", REFUSE, f"{BIND} !ServiceUnavailable", BIND], [REFUSED, PLACED]),
    ),
    Scenario(
        name="a lost answer binds nothing twice",
        given=[*both(N1), waits()],
        first=[lose_answer(BIND)],
        want=Want([BIND], [], {P: at("n1")}),
    ),
    *(
        Scenario(
            name=f"devices of a binding whose answer was lost ({type(error).__name__}) are given to nobody else",
            given=[*both(WORN), waits(), waits("older", gpus=2, age=60.0)],
            first=[late(Pod, 20.0), lose_answer(BIND, error)],
            happens=[put(N1.devices())],
            want=Want(
                [BIND, "patch Pod/default/older/status", "patch Pod/default/older/status"],
                ["Warning Pod/default/older FailedScheduling"] * 2,
                {P: at("n1", "gpu-0"), (Pod, "default/older"): UNPLACED},
                errors=not isinstance(error, ApiError),
            ),
        )
        for error in (Unavailable("no answer"), ApiError("etcdserver: request timed out"), TimeoutError(), OSError())
    ),
    Scenario(
        name="a binding that never arrived is sent again to the same place",
        given=[*both(N1, N2), waits()],
        first=[refuse_next(BIND, times=3), refuse_next("get Pod/default/p")],
        happens=[do(lambda stage: stage.props.update(penalties={"n1": 1})), wait(20.0)],
        want=Want([*[f"{BIND} !ServiceUnavailable"] * 3, BIND], [PLACED], {P: at("n1", "gpu-0")}),
    ),
    Scenario(
        name="the devices of a binding that cannot have arrived any more are free",
        given=[*both(N1, N2), waits()],
        first=[refuse_next(BIND), refuse_next("get Pod/default/p", times=14)],
        happens=[patch(Node, "n1", {"spec": {"unschedulable": True}}), wait(80.0)],
        want=Want([f"{BIND} !ServiceUnavailable", "bind Pod/default/p to n2"], [PLACED], {P: at("n2")}),
    ),
    Scenario(
        name="a refusal that comes after a lost answer frees nothing",
        given=[*both(N1), waits(gpus=2), waits("q", gpus=2)],
        first=[
            refuse_next(BIND),
            refuse_next(BIND, Conflict("not now")),
            refuse_next("get Pod/default/p"),
        ],
        happens=[wait(20.0)],
        want=Want(
            [f"{BIND} !ServiceUnavailable", "patch Pod/default/q/status", f"{BIND} !Conflict", BIND],
            ["Warning Pod/default/q FailedScheduling", PLACED],
            {P: at("n1"), Q: UNPLACED},
        ),
    ),
    Scenario(
        name="a new scheduler binds what is left and tells nobody again",
        given=[*both(N1), waits(gpus=2), waits("q")],
        happens=[restart, wait(20.0), restart],
        want=Want([BIND, "patch Pod/default/q/status"], [PLACED, "Warning Pod/default/q FailedScheduling"]),
    ),
    Scenario(
        name="a pod that makes no sense holds up nobody else",
        given=[*both(N1), waits("odd", gang="odd", size="many"), waits("huge", gpus=10**18), waits()],
        happens=[wait(10.0)],
        want=Want(
            ["bind Pod/default/odd to n1", BIND, "patch Pod/default/huge/status"],
            ["Normal Pod/default/odd Scheduled", PLACED, "Warning Pod/default/huge FailedScheduling"],
            {P: at("n1")},
        ),
    ),
    Scenario(
        name="a cycle that fails on a mistake of ours does not end the scheduler",
        given=[*both(N1), waits()],
        first=[do(lambda stage: stage.props.update(broken=1))],
        want=Want([BIND], [PLACED], {P: at("n1")}, errors=1),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_scheduler(scenario: Scenario) -> None:
    scenario.play(_start)
