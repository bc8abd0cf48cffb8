"""Foreign workloads: pods of others whose device, plugin or node fails get their condition first, and then go as they asked."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.errors import Invalid, TooManyRequests
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, LeaseSpec, Node, Pod
from remuda.api.meta import JsonObject, ObjectMeta
from remuda.api.names import (
    ANNOTATION_DEVICE_FAILED,
    ANNOTATION_REJECTIONS,
    ANNOTATION_REPLACE_UNREACHABLE,
    ANNOTATION_RETRY_ADMISSION,
    LABEL_GANG,
    RESOURCE_GPU,
)
from remuda.api.remedies import Mode
from remuda.controllers.foreign_workloads import WORKERS, ForeignController, ForeignSettings
from remuda.kube.runtime.work_queue import WorkQueue
from tests.builders.api_trouble import before_next, late, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.gangs import a_node
from tests.builders.happenings import Happening, after, do, patch, put, restart, wait
from tests.builders.incidents import a_device_pod, a_sight, a_verdict
from tests.builders.pods import a_pod
from tests.builders.remedies import remedy_policy


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[str]()
    controller = ForeignController(
        stage.api,
        view,
        queue,
        stage.clock,
        settings=ForeignSettings(forgives=True),
        events=stage.events,
        shut_until=lambda node, now: stage.props.get("shut_until"),
    )
    await stage.sync(view.devices, view.pods, view.nodes, view.policies, view.leases)
    stage.run(queue, controller, WORKERS)


def ledger(state: DeviceState = DeviceState.UNHEALTHY, device: str = "gpu-0", **more: Any) -> NodeDevices:
    other = "gpu-1" if device == "gpu-0" else "gpu-0"
    found = a_sight(a_verdict(device, state), a_verdict(other, DeviceState.HEALTHY), **more).devices
    assert found is not None
    return found


def holder(
    name: str = "p",
    reaction: str = "",
    owner: tuple[str, str] | None = ("ReplicaSet", "web"),
    policy: str = "Always",
    **more: Any,
) -> Pod:
    """A pod of somebody else that holds gpu-0."""
    pod = a_device_pod(name, owner=owner, **more)
    marks = {**pod.annotations, **({ANNOTATION_DEVICE_FAILED: reaction} if reaction else {})}
    return replace(
        pod, metadata=replace(pod.metadata, annotations=marks), spec=replace(pod.spec, restart_policy=policy)
    )


def refused(name: str, owner: str = "train", **annotations: str) -> Pod:
    """A pod that node-1 did not admit, of a Job or bare."""
    refs = [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": "o", "controller": True}] if owner else []
    words = f"Allocate failed for {RESOURCE_GPU}, which is unexpected"
    return a_pod(
        name,
        uid=f"uid-{name}",
        node="node-1",
        policy="Never",
        limits={RESOURCE_GPU: 1},
        annotations=annotations,
        meta={"ownerReferences": refs, "creationTimestamp": after(0.0).isoformat()},
        status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": words},
    )


def lease(renewed: float) -> Lease:
    meta = ObjectMeta(name="node-1", namespace=NODE_LEASE_NAMESPACE)
    return Lease(metadata=meta, spec=LeaseSpec("node-1", 8, renew_time=after(renewed)))


def shut(until: float | None) -> Happening:
    """The breaker over the node is open until then."""
    return do(lambda stage: stage.props.update(shut_until=None if until is None else after(until).timestamp()))


def says(*conditions: tuple[str, str], **more: object) -> JsonObject:
    return {"status": {"conditions": [{"type": t, "status": s} for t, s in conditions], **more}}


NODE = a_node("node-1").node()
NOTE = "patch NodeDevices/node-1"
MARK, EVICT, REMOVE = "patch Pod/default/p/status", "evict Pod/default/p", "delete Pod/default/p"
TOLD, GONE = "Warning Pod/default/p DeviceFailed", "Normal Pod/default/p DeviceFailedRemoved"
JOB = Job(metadata=ObjectMeta(name="train", namespace="default", uid="o"))
P = (Pod, "default/p")

PATIENT = replace(holder(), metadata=replace(holder().metadata, annotations={ANNOTATION_REPLACE_UNREACHABLE: "30"}))
ANOTHER: JsonObject = {"metadata": {"uid": "another", "annotations": {"remuda.dev/devices": "gpu-1"}}, "status": None}
NOT_READY: JsonObject = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}

SCENARIOS = [
    Scenario(
        name="holders of healthy devices are left alone",
        given=[NODE, ledger(DeviceState.HEALTHY), holder()],
        happens=[restart],
    ),
    Scenario(
        name="a Degraded device and one nobody holds touch nobody",
        given=[NODE, ledger(DeviceState.DEGRADED), holder(), ledger(device="gpu-1", name="node-2")],
    ),
    Scenario(
        name="a holder is told first and then evicted once",
        given=[NODE, ledger(), holder()],
        happens=[wait(30.0)],
        want=Want([MARK, EVICT], [TOLD, GONE], {P: {**says(("DeviceFailed", "True"))}}),
    ),
    Scenario(
        name="one that never restarts is deleted and says why it goes",
        given=[NODE, ledger(), holder(policy="Never")],
        want=Want([MARK, REMOVE], [TOLD, GONE], {P: says(("DeviceFailed", "True"), ("DisruptionTarget", "True"))}),
    ),
    Scenario(
        name="a bare pod stays and is told again when the device is well",
        given=[NODE, ledger(), holder(owner=None)],
        happens=[put(ledger(DeviceState.HEALTHY))],
        want=Want([MARK, MARK], [TOLD, "Normal Pod/default/p DeviceFailed"], {P: says(("DeviceFailed", "False"))}),
    ),
    Scenario(
        name="restart in place gets its time and then it goes",
        given=[NODE, ledger(), holder(reaction="restart")],
        happens=[wait(290.0), wait(20.0)],
        want=Want([MARK, EVICT], [TOLD, GONE]),
    ),
    Scenario(
        name="a gang is marked as a whole before the first of it goes",
        given=[
            NODE,
            ledger(),
            holder(
                reaction="gang",
                policy="Never",
                owner=("Job", "train"),
                labels={"jobset.sigs.k8s.io/jobset-name": "set"},
            ),
            holder(
                "q",
                "gang",
                owner=("Job", "train"),
                policy="Never",
                devices=["gpu-1"],
                labels={"jobset.sigs.k8s.io/jobset-name": "set"},
            ),
        ],
        want=Want(
            [MARK, "patch Pod/default/q/status", "delete Pod/default/q", REMOVE],
            [
                TOLD,
                "Warning Pod/default/q DisruptionTarget",
                "Normal Pod/default/q DeviceFailedRemoved",
                GONE,
            ],
        ),
    ),
    Scenario(
        name="fail ends the pod and gives its Job no further try",
        given=[NODE, ledger(), holder(reaction="fail", owner=("Job", "train"), policy="Never"), JOB],
        want=Want(
            [MARK, "patch Job/default/train"],
            [TOLD],
            {
                P: {"status": {"phase": "Failed", "reason": "DeviceFailed"}},
                (Job, "default/train"): {"spec": {"backoffLimit": 0}},
            },
        ),
    ),
    Scenario(
        name="a word nobody knows is told and counts as none",
        given=[NODE, ledger(), holder(reaction="explode", owner=None)],
        happens=[restart],
        want=Want([MARK], ["Warning Pod/default/p UnknownDevicePolicy", TOLD]),
    ),
    Scenario(
        name="a policy that only observes sends nobody away",
        given=[NODE, ledger(), holder(), remedy_policy(mode=Mode.OBSERVE)],
        happens=[wait(60.0)],
        want=Want([MARK], [TOLD], {P: {"metadata": {"deletionTimestamp": None}}}),
    ),
    Scenario(
        name="while the breaker is open holders are told and stay",
        given=[NODE, ledger(), holder(), holder("q", policy="Never")],
        first=[shut(1000.0)],
        happens=[wait(60.0)],
        want=Want([MARK, "patch Pod/default/q/status"], [TOLD, "Warning Pod/default/q DeviceFailed"]),
    ),
    Scenario(
        name="they go when the breaker closes without anybody's word",
        given=[NODE, ledger(), holder()],
        first=[shut(30.0)],
        happens=[wait(20.0), shut(None), wait(20.0)],
        want=Want([MARK, EVICT], [TOLD, GONE]),
    ),
    Scenario(
        name="a budget that refuses is asked again for a while",
        given=[NODE, ledger(), holder()],
        first=[refuse_next(EVICT, TooManyRequests("the budget allows none"), times=2)],
        happens=[wait(30.0)],
        want=Want(
            [MARK, f"{EVICT} !TooManyRequests", f"{EVICT} !TooManyRequests", EVICT],
            [TOLD, *["Normal Pod/default/p EvictionHeldUp"] * 2, GONE],
        ),
    ),
    Scenario(
        name="a refused pod gets its number and its Job the try back once",
        given=[NODE, ledger(DeviceState.HEALTHY), refused("p"), replace(JOB, spec=replace(JOB.spec, backoff_limit=3))],
        happens=[restart],
        want=Want(
            [NOTE, "patch Job/default/train", "patch Pod/default/p", MARK],
            ["Warning Pod/default/p AdmissionRejected"],
            {
                (Job, "default/train"): {"spec": {"backoffLimit": 4}},
                P: {"metadata": {"annotations": {ANNOTATION_REJECTIONS: "1"}}, **says(("AdmissionRejected", "True"))},
            },
        ),
    ),
    Scenario(
        name="a refusal is told once although the informer has yet to show it",
        given=[NODE, ledger(DeviceState.HEALTHY), refused("p"), JOB],
        first=[late(Pod, 0.5)],
        happens=[patch(Node, "node-1", NOT_READY)],
        want=Want(
            [NOTE, "patch Job/default/train", "patch Pod/default/p", MARK],
            ["Warning Pod/default/p AdmissionRejected"],
        ),
    ),
    Scenario(
        name="a bare one that asks for it is made again",
        given=[NODE, ledger(DeviceState.HEALTHY), refused("p", "", **{ANNOTATION_RETRY_ADMISSION: "true"})],
        happens=[wait(10.0)],
        want=Want(
            [NOTE, "patch Pod/default/p", MARK, "create Pod/default/p-retry1", REMOVE],
            ["Warning Pod/default/p AdmissionRejected", "Normal Pod/default/p MadeAgain"],
            {(Pod, "default/p-retry1"): {"spec": {"nodeName": None}}},
        ),
    ),
    Scenario(
        name="a bare one that may not be made again stays and says why",
        given=[NODE, ledger(DeviceState.HEALTHY), refused("p", "", **{ANNOTATION_RETRY_ADMISSION: "true"})],
        first=[refuse_next("create Pod/default/p-retry1", Invalid("TooMuchPrivilege: ..."))],
        happens=[wait(10.0)],
        want=Want(
            [NOTE, "patch Pod/default/p", MARK, "create Pod/default/p-retry1 !Invalid"],
            ["Warning Pod/default/p AdmissionRejected", "Warning Pod/default/p NotMadeAgain"],
        ),
    ),
    Scenario(
        name="a pod on a node that does not answer counts as ended when its time is over",
        given=[NODE, ledger(DeviceState.HEALTHY), PATIENT, lease(0.0)],
        happens=[wait(20.0), patch(Node, "node-1", NOT_READY), wait(30.0)],
        want=Want(
            [MARK],
            ["Warning Pod/default/p DisruptionTarget"],
            {P: says(("DisruptionTarget", "True"), phase="Failed", reason="NodeUnreachable")},
        ),
    ),
    Scenario(
        name="a node that answers again in time loses nobody",
        given=[NODE, ledger(DeviceState.HEALTHY), PATIENT, lease(0.0)],
        happens=[
            wait(20.0),
            patch(Node, "node-1", NOT_READY),
            put(lease(26.0)),
            wait(5.0),
            put(lease(33.0)),
            wait(7.0),
        ],
    ),
    Scenario(
        name="a node that refuses one pod after another has the resource withheld",
        given=[NODE, ledger(DeviceState.HEALTHY), *(refused(f"p{n}") for n in range(6))],
        happens=[restart],
        want=Want(
            [
                NOTE,
                *(f"patch Pod/default/p{n}{part}" for n in range(6) for part in ("", "/status")),
                *(f"delete Pod/default/p{n}" for n in range(3)),
            ],
            [
                "Warning Node/node-1 ResourceWithheld",
                *(f"Warning Pod/default/p{n} AdmissionRejected" for n in range(6)),
            ],
            {(NodeDevices, "node-1"): {"withheld": {RESOURCE_GPU: {"reason": "BlackHole"}}}},
        ),
    ),
    Scenario(
        name="somebody who writes first costs a second look and keeps what he wrote",
        given=[NODE, ledger(), holder(owner=None)],
        first=[
            before_next(
                MARK, patch(Pod, "default/p", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
            )
        ],
        want=Want([f"{MARK} !Conflict", MARK], [TOLD], {P: says(("Ready", "False"), ("DeviceFailed", "True"))}),
    ),
    Scenario(
        name="an API that is out of reach is asked again and nobody goes untold",
        given=[NODE, ledger(), holder(policy="Never")],
        first=[refuse_next(MARK), refuse_next(REMOVE)],
        want=Want([f"{MARK} !ServiceUnavailable", MARK, f"{REMOVE} !ServiceUnavailable", REMOVE], [TOLD, GONE]),
    ),
    Scenario(
        name="a lost answer repeats nothing",
        given=[NODE, ledger(), holder(policy="Never")],
        first=[lose_answer(MARK), lose_answer(REMOVE)],
        want=Want([MARK, REMOVE], []),
    ),
    Scenario(
        name="a pod that goes in the middle and another that takes its name are let be",
        given=[NODE, ledger(), holder(policy="Never")],
        first=[before_next(REMOVE, patch(Pod, "default/p", ANOTHER))],
        want=Want(
            [MARK, f"{REMOVE} !Conflict"], [TOLD], {P: {"metadata": {"uid": "another", "deletionTimestamp": None}}}
        ),
    ),
    Scenario(
        name="pods of TrainingJobs are left to theirs",
        given=[NODE, ledger(), a_device_pod("p", owner=("TrainingJob", "job"), labels={LABEL_GANG: "job"})],
    ),
    Scenario(
        name="a new manager repeats nothing",
        given=[NODE, ledger(), holder(owner=None), holder("q", policy="Never")],
        happens=[restart, restart],
        want=Want(
            [MARK, "patch Pod/default/q/status", "delete Pod/default/q"],
            [TOLD, "Warning Pod/default/q DeviceFailed", "Normal Pod/default/q DeviceFailedRemoved"],
        ),
    ),
    Scenario(
        name="pods and ledgers that make no sense spoil no other node",
        given=[
            NODE,
            ledger(),
            holder(owner=None),
            replace(ledger(name="odd"), verdicts=[a_verdict(""), a_verdict("gpu-9", DeviceState.QUARANTINED)]),
            refused("x", "", **{ANNOTATION_REJECTIONS: "²", ANNOTATION_REPLACE_UNREACHABLE: "-1"}),
        ],
        want=Want(
            [NOTE, "patch Pod/default/x", "patch Pod/default/x/status", MARK],
            ["Warning Pod/default/x AdmissionRejected", TOLD],
        ),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_foreign_workloads(scenario: Scenario) -> None:
    scenario.play(_start)
