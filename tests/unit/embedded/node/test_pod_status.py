"""What the API gets to see of a pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remuda.api.codec import to_wire
from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.kubernetes.core_v1 import Pod, PodStatus
from remuda.api.meta import Condition, to_time
from remuda.embedded.node.container_record import ContainerExit, ContainerPhase, ContainerRecord
from remuda.embedded.node.devices.device_ledger import DeviceHealth
from remuda.embedded.node.pod_lifecycle import DeviceAdmission, PodRecord
from remuda.embedded.node.pod_status import (
    device_health_in_status,
    kubelet_pod_status_patch,
    merge_pod_conditions,
    pod_status_of,
    with_kubelet_conditions_only,
)
from remuda.embedded.node.runtime_port import NO_LOCAL_COMMAND
from tests.builders.pods import a_pod

NOW = 1000.0
NEW = PodStatus()
DELETING = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}


def of(container: ContainerRecord, **fields: Any) -> PodRecord:
    return PodRecord(
        (container,), **{"admission": DeviceAdmission.GRANTED, "address": "127.1.0.1", "start_time": 900.0, **fields}
    )


WAITING = ContainerRecord("main")
RUNNING = ContainerRecord("main", ContainerPhase.RUNNING, 2, NOW - 5)
FAILED = ContainerRecord("main", ContainerPhase.EXITED, 0, NOW - 5, ContainerExit(7, NOW - 1, message="bad"), crashes=1)
DONE = ContainerRecord("main", ContainerPhase.EXITED, 0, NOW - 5, ContainerExit(0, NOW - 1), crashes=1)
LOOPING = msgspec.structs.replace(FAILED, crashes=2, not_before=NOW + 9)


@pytest.mark.parametrize(
    ("pod", "record", "phase", "state", "reason", "ready"),
    [
        pytest.param(a_pod(), of(WAITING), "Pending", "waiting", "ContainerCreating", False, id="new"),
        pytest.param(
            a_pod(image="i"), of(WAITING, pulling=frozenset("i")), "Pending", "waiting", "Pulling", False, id="pulling"
        ),
        pytest.param(a_pod(), of(RUNNING), "Running", "running", "", True, id="running"),
        pytest.param(a_pod(), of(LOOPING), "Running", "waiting", "CrashLoopBackOff", False, id="crash loop"),
        pytest.param(a_pod(policy="Never"), of(FAILED), "Failed", "terminated", "Error", False, id="failed"),
        pytest.param(a_pod(policy="Never"), of(DONE), "Succeeded", "terminated", "Completed", False, id="succeeded"),
        pytest.param(a_pod(meta=DELETING), of(FAILED), "Failed", "terminated", "Error", False, id="deleted, dead"),
        pytest.param(a_pod(meta=DELETING), of(RUNNING), "Running", "running", "", True, id="deleted, still there"),
        pytest.param(
            a_pod(meta=DELETING), of(WAITING), "Pending", "waiting", "ContainerCreating", False, id="deleted, never ran"
        ),
    ],
)
def test_status(pod: Pod, record: PodRecord, phase: str, state: str, reason: str, ready: bool) -> None:
    status = pod_status_of(pod, record, NEW, NOW)
    assert status.phase == phase
    (container,) = status.container_statuses
    told = {k: v for k, v in msgspec.structs.asdict(container.state).items() if v is not None}
    assert list(told) == [state]
    assert getattr(told[state], "reason", "") == reason
    assert container.ready is ready
    assert is_condition_true(status.conditions, "Ready") is ready
    assert status.pod_ip == "127.1.0.1"
    assert status.start_time == to_time(900.0)


def test_a_crash_loop_shows_the_end_of_the_last_run() -> None:
    (container,) = pod_status_of(a_pod(), of(LOOPING), NEW, NOW).container_statuses
    assert container.last_state.terminated is not None
    assert (container.last_state.terminated.exit_code, container.last_state.terminated.message) == (7, "bad")


def test_what_kubernetes_requires_is_written_also_when_empty() -> None:
    wire = to_wire(pod_status_of(a_pod(), of(WAITING), NEW, NOW))
    (container,) = wire["containerStatuses"]
    required = {key: container[key] for key in ("name", "ready", "restartCount", "image", "imageID")}
    assert required == {"name": "main", "ready": False, "restartCount": 0, "image": "", "imageID": ""}
    for condition in wire["conditions"]:
        assert {"type", "status", "reason", "message", "lastTransitionTime"} <= condition.keys()


def test_a_container_has_an_id_from_its_first_run_on() -> None:
    pod = a_pod()
    ids = [pod_status_of(pod, of(c), NEW, NOW).container_statuses[0].container_id for c in (WAITING, RUNNING, LOOPING)]
    assert ids == ["", f"remuda://{pod.uid}/main/2", f"remuda://{pod.uid}/main/0"]


def test_a_refused_pod_fails_like_on_a_kubelet() -> None:
    record = of(
        WAITING, admission=DeviceAdmission.REFUSED, refusal="Allocate failed: DeviceHeld: gpu-0 is held by a/b."
    )
    status = pod_status_of(a_pod(), record, NEW, NOW)
    assert (status.phase, status.reason) == ("Failed", "UnexpectedAdmissionError")
    assert "DeviceHeld" in status.message


def test_a_pod_without_command_says_so_while_it_runs() -> None:
    status = pod_status_of(a_pod(), of(RUNNING, notice=NO_LOCAL_COMMAND), NEW, NOW)
    assert status.reason == "NoLocalCommand"
    assert "command" in status.message
    assert pod_status_of(a_pod(policy="Never"), of(DONE, notice=NO_LOCAL_COMMAND), NEW, NOW).reason == ""


def test_a_finished_pod_never_comes_back() -> None:
    known = PodStatus(phase="Failed", reason="Evicted", message="by hand")
    status = pod_status_of(a_pod(), of(RUNNING), known, NOW)
    assert (status.phase, status.reason, status.message) == ("Failed", "Evicted", "by hand")


def test_rendering_again_changes_nothing() -> None:
    first = pod_status_of(a_pod(), of(RUNNING), NEW, NOW)
    again = pod_status_of(a_pod(), of(RUNNING), first, NOW + 60)
    assert again == first
    assert kubelet_pod_status_patch(first, again) == {}


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    first = pod_status_of(a_pod(), of(WAITING), NEW, NOW)
    later = pod_status_of(a_pod(), of(RUNNING), first, NOW + 5)
    for type_, at in (("PodScheduled", NOW), ("Initialized", NOW), ("Ready", NOW + 5), ("ContainersReady", NOW + 5)):
        condition = find_condition(later.conditions, type_)
        assert condition is not None
        assert condition.last_transition_time == to_time(at)


def test_the_patch_names_what_changed_and_takes_back_what_is_gone() -> None:
    first = pod_status_of(a_pod(), of(RUNNING, notice=NO_LOCAL_COMMAND), NEW, NOW)
    then = pod_status_of(a_pod(), of(RUNNING), first, NOW)
    assert kubelet_pod_status_patch(first, then) == {"reason": None, "message": None}
    assert kubelet_pod_status_patch(NEW, pod_status_of(a_pod(), of(WAITING), NEW, NOW)).keys() == {
        "podIP",
        "podIPs",
        "startTime",
        "conditions",
        "containerStatuses",
    }


def test_the_default_phase_reaches_the_api() -> None:
    failed = pod_status_of(a_pod(policy="Never"), of(FAILED), NEW, NOW)
    assert kubelet_pod_status_patch(failed, NEW)["phase"] == "Pending"


def test_conditions_of_others_are_carried_along_and_not_ours_to_write() -> None:
    theirs = Condition("DisruptionTarget", "True", "Preempted")
    stale = Condition("Ready", "False", "Old")
    ours = [Condition("Ready", "True")]
    assert merge_pod_conditions([stale, theirs], ours) == [ours[0], theirs]
    assert merge_pod_conditions([theirs], ours) == [theirs, ours[0]]
    assert with_kubelet_conditions_only(PodStatus(conditions=[theirs, stale])).conditions == [stale]


def test_row_49_devices_are_named_as_upstream_does_it() -> None:
    devices = [
        DeviceHealth("nvidia.com/gpu", "gpu-0", True),
        DeviceHealth("nvidia.com/gpu", "gpu-1", False, "x" * 2000),
    ]
    status = pod_status_of(a_pod(), of(RUNNING), NEW, NOW, lambda container: devices)
    (container,) = status.container_statuses
    assert to_wire(container)["allocatedResourcesStatus"] == [
        {
            "name": "nvidia.com/gpu",
            "resources": [
                {"resourceID": "gpu-0", "health": "Healthy"},
                {"resourceID": "gpu-1", "health": "Unhealthy", "message": "x" * 1024},
            ],
        }
    ]
    assert device_health_in_status(status)["main"][0] == devices[0]


def test_a_pod_is_pending_while_it_initializes() -> None:
    pod = a_pod(inits=[{"name": "first"}])
    begun = pod_status_of(
        pod, of(WAITING, inits=(ContainerRecord("first", ContainerPhase.RUNNING, 0, 900.0),)), NEW, NOW
    )
    assert begun.phase == "Pending"
    assert not is_condition_true(begun.conditions, "Initialized")
    waits = begun.container_statuses[0].state.waiting
    assert waits is not None
    assert waits.reason == "PodInitializing"
    assert not begun.init_container_statuses[0].ready
    done = ContainerRecord("first", ContainerPhase.EXITED, 0, 900.0, ContainerExit(0, 950.0))
    ready = pod_status_of(pod, of(RUNNING, inits=(done,)), begun, NOW)
    assert ready.phase == "Running"
    assert is_condition_true(ready.conditions, "Initialized")
    assert is_condition_true(ready.conditions, "Ready")
    assert ready.init_container_statuses[0].ready


def test_the_end_is_not_told_while_a_sidecar_runs() -> None:
    pod = a_pod(policy="Never", inits=[{"name": "side", "restartPolicy": "Always"}])
    live = of(DONE, inits=(ContainerRecord("side", ContainerPhase.RUNNING, 0, 900.0),))
    assert pod_status_of(pod, live, NEW, NOW).phase == "Running"
    over = of(DONE, inits=(ContainerRecord("side", ContainerPhase.EXITED, 0, 900.0, ContainerExit(143, 950.0)),))
    assert pod_status_of(pod, over, NEW, NOW).phase == "Succeeded"


def test_a_container_that_could_not_be_prepared_says_why() -> None:
    stuck = ContainerRecord("main", problem="endpoint not found in cache")
    waits = pod_status_of(a_pod(), of(stuck), NEW, NOW).container_statuses[0].state.waiting
    assert waits is not None
    assert (waits.reason, waits.message) == ("CreateContainerConfigError", "endpoint not found in cache")
