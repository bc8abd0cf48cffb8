"""The six steps from device to container: where each can break, and what is said then."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remuda.api.codec import from_wire
from remuda.api.devices import Holding, NodeDevices, PluginReport
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import ObjectMeta, to_time
from remuda.cli.devices.pod_start_steps import StartStep, StartStepState, explain_pod_start, stuck_start_step
from tests.builders.gangs import a_node

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
NAMES = ["plugin up", "registered", "capacity published", "bound", "Allocate", "started"]


def moment(seconds: float) -> str:
    return to_time(seconds).isoformat().replace("+00:00", "Z")


def a_pod(*, node: str = "", phase: str = "Pending", scheduled: tuple[str, float] | None = None, **status: Any) -> Pod:
    conditions = []
    if scheduled is not None:
        word, at = scheduled
        conditions = [{"type": "PodScheduled", "status": "True" if word == "True" else "False", "reason": word,
                       "message": "Needs more.", "lastTransitionTime": moment(at)}]  # fmt: skip
    meta = {"name": "p", "namespace": "default", "uid": "u", "creationTimestamp": moment(100)}
    body = {"phase": phase, "conditions": conditions, **status}
    return from_wire(Pod, {"metadata": meta, "spec": {"nodeName": node}, "status": body})


def running(at: float) -> list[dict[str, Any]]:
    return [{"name": "main", "state": {"running": {"startedAt": moment(at)}}}]


def waiting(reason: str) -> list[dict[str, Any]]:
    return [{"name": "main", "state": {"waiting": {"reason": reason, "message": "why"}}}]


def offering(capacity: int | None = 8, allocatable: int | None = None) -> Node:
    node = a_node().node()
    amounts: dict[str, int | str] = {} if capacity is None else {GPU: capacity}
    free: dict[str, int | str] = {} if capacity is None else {GPU: capacity if allocatable is None else allocatable}
    status = msgspec.structs.replace(node.status, capacity=amounts, allocatable=free)
    return msgspec.structs.replace(node, status=status)


def ledger(state: str = "Registered", *holdings: Holding, resource: str = GPU) -> NodeDevices:
    found = a_node().devices()
    plugin = PluginReport(resource, state, to_time(52), "The kubelet said no.", started_at=to_time(50))
    observed = msgspec.structs.replace(found.observed, plugins=[plugin], holdings=list(holdings))
    return msgspec.structs.replace(found, observed=observed)


def steps_of(
    pod: Pod, node: Node | None = None, devices: NodeDevices | None = None, now: float = 110, asks: str = GPU
) -> list[StartStep]:
    return explain_pod_start(pod, [asks], [node or offering()], [devices or ledger()], to_time(now))


def test_a_pod_that_runs_has_every_step_and_its_time() -> None:
    pod = a_pod(node="node-01", phase="Running", scheduled=("True", 103), containerStatuses=running(105))
    held = Holding("default/p", "main", GPU, ["gpu-0"], uid="u", since=to_time(104))
    steps = steps_of(pod, devices=ledger("Registered", held))
    assert [s.name for s in steps] == NAMES
    assert {s.state for s in steps} == {StartStepState.DONE}
    assert [s.took_s for s in steps] == [None, 2, None, 3, 1, 1]
    assert steps[4].message == "gpu-0"
    assert stuck_start_step(steps) is None


@pytest.mark.parametrize(
    ("steps", "name", "words"),
    [
        (steps_of(a_pod(), asks=MIG), "plugin up", "No plugin on node-01 serves nvidia.com/mig-3g.40gb"),
        (steps_of(a_pod(), devices=ledger("Lost")), "registered", "is lost. The kubelet said no."),
        (steps_of(a_pod(), devices=ledger("Starting")), "registered", "The kubelet said no."),
        (steps_of(a_pod(), node=offering(None)), "capacity published", "does not name nvidia.com/gpu"),
        (steps_of(a_pod(), node=offering(8, 0)), "capacity published", "offers 0 of 8"),
        (steps_of(a_pod(scheduled=("DomainFull", 101))), "bound", "DomainFull: Needs more."),
        (steps_of(a_pod()), "bound", "has not looked"),
        (
            steps_of(a_pod(node="node-01", phase="Failed", reason="UnexpectedAdmissionError", message="no")),
            "Allocate",
            "UnexpectedAdmissionError: no",
        ),
        (steps_of(a_pod(node="node-01", scheduled=("True", 101)), now=300), "Allocate", "has not answered"),
        (
            steps_of(
                a_pod(node="node-01", scheduled=("True", 101), containerStatuses=waiting("CreateContainerError")),
                devices=ledger("Registered", Holding("default/p", "main", GPU, ["gpu-0"], uid="u")),
            ),
            "started",
            "CreateContainerError: why",
        ),
    ],
)
def test_the_stuck_step_is_named(steps: list[StartStep], name: str, words: str) -> None:
    stuck = stuck_start_step(steps)
    assert stuck is not None
    assert stuck.name == name
    assert words in stuck.message
    after = steps[steps.index(stuck) + 1 :]
    assert {s.state for s in after} <= {StartStepState.LATER}
    assert stuck.state is StartStepState.WAITING or stuck.fix or name in ("bound", "started")


def test_a_pod_that_has_its_devices_is_past_what_broke_since() -> None:
    pod = a_pod(node="node-01", phase="Running", scheduled=("True", 103), containerStatuses=running(105))
    held = Holding("default/p", "main", GPU, ["gpu-0"], uid="u", since=to_time(104))
    steps = steps_of(pod, node=offering(8, 0), devices=ledger("Lost", held))
    assert {s.state for s in steps} == {StartStepState.DONE}
    assert steps[1].message.startswith("was done; since then: The plugin for nvidia.com/gpu on node-01 is lost.")
    assert "offers 0 of 8" in steps[2].message


def test_devices_given_anew_after_a_node_came_back_count_from_there() -> None:
    pod = a_pod(node="node-01", phase="Running", scheduled=("True", 103), containerStatuses=[
        {"name": "main", "state": {"running": {"startedAt": moment(205)}},
         "lastState": {"terminated": {"exitCode": 1, "startedAt": moment(105)}}}])  # fmt: skip
    held = Holding("default/p", "main", GPU, ["gpu-0"], uid="u", since=to_time(204.4))
    steps = steps_of(pod, devices=ledger("Registered", held), now=300)
    assert steps[5].at == to_time(205)
    assert steps[5].took_s == 0  # less than a second, and not known any better


def test_a_pod_that_has_ended_gave_its_devices_back() -> None:
    ended = [{"name": "main", "state": {"terminated": {"exitCode": 0, "startedAt": moment(105)}}}]
    pod = a_pod(node="node-01", phase="Succeeded", scheduled=("True", 103), containerStatuses=ended)
    assert steps_of(pod)[4].message == "released since"


def test_where_no_node_has_it_all_are_meant() -> None:
    nodes = [offering(), msgspec.structs.replace(offering(), metadata=ObjectMeta(name="node-02"))]
    steps = explain_pod_start(a_pod(), [MIG], nodes, [ledger()], to_time(110))
    assert steps[0].message == "No plugin on any of the 2 nodes serves nvidia.com/mig-3g.40gb."
    assert "nvidia.com/gpu" in steps[0].fix


def test_other_vendors_plugins_are_judged_by_what_they_published() -> None:
    steps = steps_of(a_pod(), devices=a_node().devices())
    assert [s.state for s in steps[:3]] == [StartStepState.DONE] * 3


def test_devices_other_than_the_chosen_ones_are_said() -> None:
    held = Holding("default/p", "main", GPU, ["gpu-5"], uid="u", chosen=["gpu-0"])
    steps = steps_of(a_pod(node="node-01", scheduled=("True", 101)), devices=ledger("Registered", held))
    assert "KubeletChoseOtherDevices: the scheduler had chosen gpu-0" in steps[4].message


def test_a_pod_without_devices_has_the_last_three() -> None:
    steps = explain_pod_start(a_pod(), [], [offering()], [], to_time(110))
    assert [s.name for s in steps] == NAMES[3:]
