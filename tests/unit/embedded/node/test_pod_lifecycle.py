"""Every situation a pod can be in on its node, and what the node does about it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remuda.api.codec import from_wire, to_wire
from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.node.container_record import ContainerExit, ContainerPhase, ContainerRecord
from remuda.embedded.node.pod_lifecycle import (
    Action,
    AdmitPod,
    DeviceAdmission,
    ExpirePod,
    KillContainers,
    PodPlan,
    PodRecord,
    PullImage,
    ReleaseDevices,
    RemovePod,
    StartContainer,
    StopContainers,
    plan_pod_lifecycle_on_node,
)
from tests.builders.pods import a_pod

NOW = 1000.0
GRANTED = DeviceAdmission.GRANTED
DELETING = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}


def waiting() -> ContainerRecord:
    return ContainerRecord("main")


def running(run: int = 0) -> ContainerRecord:
    return ContainerRecord("main", ContainerPhase.RUNNING, run, NOW - 5)


def ended(code: int = 1, run: int = 0, not_before: float = 0.0) -> ContainerRecord:
    return ContainerRecord(
        "main", ContainerPhase.EXITED, run, NOW - 5, ContainerExit(code, NOW - 1), crashes=1, not_before=not_before
    )


def record(container: ContainerRecord, **fields: Any) -> PodRecord:
    return PodRecord((container,), **{"admission": GRANTED, "held": True, "address": "127.1.0.1", **fields})


@pytest.mark.parametrize(
    ("pod", "known", "actions", "wake_at"),
    [
        pytest.param(
            a_pod(), record(waiting(), admission=DeviceAdmission.NONE), [AdmitPod()], None, id="new: ask for devices"
        ),
        pytest.param(a_pod(), record(waiting(), admission=DeviceAdmission.ASKED), [], None, id="asked: wait"),
        pytest.param(a_pod(), record(waiting()), [StartContainer("main", 0)], None, id="admitted: start"),
        pytest.param(a_pod(image="a"), record(waiting()), [StartContainer("main", 0)], None, id="image present: start"),
        pytest.param(a_pod(image="b"), record(waiting()), [PullImage("b")], None, id="image absent: pull"),
        pytest.param(a_pod(image="b"), record(waiting(), pulling=frozenset({"b"})), [], None, id="pulling: wait"),
        pytest.param(a_pod(), record(running()), [], None, id="running: nothing"),
        pytest.param(
            a_pod(), record(running(), admission=DeviceAdmission.NONE), [AdmitPod()], None, id="adopted: tell the agent"
        ),
        pytest.param(a_pod(), record(ended(1)), [StartContainer("main", 1)], None, id="Always, failed: again"),
        pytest.param(a_pod(), record(ended(0, 4)), [StartContainer("main", 5)], None, id="Always, done: again"),
        pytest.param(a_pod(), record(ended(1, 0, NOW + 7)), [], NOW + 7, id="back-off: later"),
        pytest.param(
            a_pod(policy="OnFailure"), record(ended(1)), [StartContainer("main", 1)], None, id="OnFailure, failed"
        ),
        pytest.param(
            a_pod(policy="OnFailure"), record(ended(0)), [ReleaseDevices()], None, id="OnFailure, done: finished"
        ),
        pytest.param(a_pod(policy="Never"), record(ended(1)), [ReleaseDevices()], None, id="Never, failed: finished"),
        pytest.param(a_pod(policy="Never"), record(ended(0), held=False), [], None, id="finished and released"),
        pytest.param(
            a_pod(),
            record(waiting(), admission=DeviceAdmission.REFUSED, held=False),
            [],
            None,
            id="refused: nothing more",
        ),
        pytest.param(a_pod(meta=DELETING), record(running()), [StopContainers(30.0)], NOW + 30, id="deleted: TERM"),
        pytest.param(
            a_pod(meta=DELETING), record(running(), stopping_since=NOW - 10), [], NOW + 20, id="in grace: wait"
        ),
        pytest.param(
            a_pod(meta=DELETING),
            record(running(), stopping_since=NOW - 30),
            [KillContainers()],
            None,
            id="grace over: KILL",
        ),
        pytest.param(
            a_pod(meta={**DELETING, "deletionGracePeriodSeconds": 5}),
            record(running(), stopping_since=NOW - 10),
            [KillContainers()],
            None,
            id="grace shortened meanwhile: KILL",
        ),
        pytest.param(
            a_pod(meta=DELETING),
            record(running(), stopping_since=NOW - 40, killed=True),
            [],
            None,
            id="killed: wait for the kernel",
        ),
        pytest.param(
            a_pod(meta=DELETING), record(ended(143)), [ReleaseDevices()], None, id="deleted and dead: release"
        ),
        pytest.param(
            a_pod(meta=DELETING), record(ended(143), held=False), [RemovePod()], None, id="deleted and released: remove"
        ),
        pytest.param(
            a_pod(meta=DELETING),
            record(waiting(), admission=DeviceAdmission.NONE, held=False),
            [RemovePod()],
            None,
            id="deleted before it began",
        ),
        pytest.param(
            a_pod(meta=DELETING),
            record(waiting(), admission=DeviceAdmission.ASKED, held=False),
            [],
            None,
            id="deleted while the agent decides: wait for what it grants",
        ),
        pytest.param(
            a_pod(), record(running(), vanished=True), [KillContainers()], None, id="removed by force: KILL at once"
        ),
        pytest.param(a_pod(), record(ended(137), vanished=True), [ReleaseDevices()], None, id="removed by force, dead"),
        pytest.param(
            a_pod(status={"phase": "Failed"}),
            record(running()),
            [StopContainers(30.0)],
            NOW + 30,
            id="failed by another: stop",
        ),
        pytest.param(
            a_pod(status={"phase": "Failed"}), record(ended(1)), [ReleaseDevices()], None, id="failed by another, dead"
        ),
    ],
)
def test_next_step(pod: Pod, known: PodRecord, actions: list[Action], wake_at: float | None) -> None:
    plan = plan_pod_lifecycle_on_node(pod, known, {"a"}, NOW)
    assert list(plan.actions) == actions
    assert plan.wake_at == wake_at
    assert not plan.finished
    assert plan_pod_lifecycle_on_node(pod, known, {"a"}, NOW) == plan


@pytest.mark.parametrize(
    ("known", "actions", "wake_at"),
    [
        (record(running(), start_time=NOW - 20), [], NOW + 10),
        (record(ended(1, 0, NOW + 7), start_time=NOW - 20), [], NOW + 7),
        (record(ended(1, 0, NOW + 70), start_time=NOW - 20), [], NOW + 10),
        (record(running(), start_time=NOW - 30), [ExpirePod()], None),
        (record(running(), start_time=NOW - 30, expired=True), [StopContainers(30)], NOW + 30),
        (record(ended(0), start_time=NOW - 30, expired=True), [ReleaseDevices()], None),
    ],
    ids=["before", "back-off first", "deadline first", "at the deadline", "expired", "stopped"],
)
def test_the_active_deadline(known: PodRecord, actions: list[Action], wake_at: float | None) -> None:
    pod = a_pod()
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, active_deadline_seconds=30))
    plan = plan_pod_lifecycle_on_node(pod, known, {"a"}, NOW)
    assert (list(plan.actions), plan.wake_at) == (actions, wake_at)


def test_devices_go_back_before_the_end_is_published() -> None:
    done = record(ended(0))
    assert not plan_pod_lifecycle_on_node(a_pod(policy="Never"), done, (), NOW).settled
    assert plan_pod_lifecycle_on_node(a_pod(policy="Never"), record(ended(0), held=False), (), NOW).settled


def test_the_object_is_removed_only_after_its_last_status_is_written() -> None:
    pod, known = a_pod(meta=DELETING), record(ended(143), held=False)
    assert plan_pod_lifecycle_on_node(pod, known, (), NOW, written=False).actions == ()
    assert plan_pod_lifecycle_on_node(pod, known, (), NOW, written=True).actions == (RemovePod(),)


def test_nothing_is_left_of_a_vanished_pod() -> None:
    assert plan_pod_lifecycle_on_node(a_pod(), record(ended(137), vanished=True, held=False), (), NOW).finished


def test_a_pod_with_a_zero_grace_is_killed_at_once() -> None:
    pod = a_pod(meta={**DELETING, "deletionGracePeriodSeconds": 0})
    assert plan_pod_lifecycle_on_node(pod, record(running()), (), NOW).actions == (KillContainers(),)


def test_two_containers_end_together_only_when_both_are_done() -> None:
    pod = a_pod(policy="Never")
    two = [{"name": "main", "command": ["a"]}, {"name": "side", "command": ["b"]}]
    body = to_wire(pod)
    body["spec"]["containers"] = two
    pod = from_wire(Pod, body)
    side = ContainerRecord("side", ContainerPhase.RUNNING, 0, NOW - 5)
    known = PodRecord((ended(0), side), admission=GRANTED, held=True)
    assert plan_pod_lifecycle_on_node(pod, known, (), NOW).actions == ()
    known = PodRecord((ended(0), ContainerRecord("side", ContainerPhase.WAITING)), admission=GRANTED, held=True)
    assert plan_pod_lifecycle_on_node(pod, known, (), NOW).actions == (StartContainer("side", 0),)


# --- init containers and sidecars -----------------------------------------------------------------------------------------


def with_inits(policy: str = "Always", **options: Any) -> Pod:
    """`first` runs to its end, `side` stays, `last` runs to its end."""
    inits = [{"name": "first"}, {"name": "side", "restartPolicy": "Always"}, {"name": "last"}]
    return a_pod(policy=policy, inits=inits, **options)


def at(name: str, phase: ContainerPhase = ContainerPhase.WAITING, code: int | None = None) -> ContainerRecord:
    if code is not None:
        return ContainerRecord(name, ContainerPhase.EXITED, 0, NOW - 5, ContainerExit(code, NOW - 1), crashes=1)
    return ContainerRecord(name, phase, 0, NOW - 5 if phase is ContainerPhase.RUNNING else 0.0)


UP = ContainerPhase.RUNNING


@pytest.mark.parametrize(
    ("policy", "inits", "main", "actions"),
    [
        pytest.param(
            "Always",
            (at("first"), at("side"), at("last")),
            waiting(),
            [StartContainer("first", 0)],
            id="one after the other",
        ),
        pytest.param("Always", (at("first", UP), at("side"), at("last")), waiting(), [], id="the first runs: wait"),
        pytest.param(
            "Always",
            (at("first", code=0), at("side"), at("last")),
            waiting(),
            [StartContainer("side", 0)],
            id="then the sidecar",
        ),
        pytest.param(
            "Always",
            (at("first", code=0), at("side", UP), at("last")),
            waiting(),
            [StartContainer("last", 0)],
            id="it is up: go on",
        ),
        pytest.param(
            "Always",
            (at("first", code=0), at("side", UP), at("last", code=0)),
            waiting(),
            [StartContainer("main", 0)],
            id="then main",
        ),
        pytest.param(
            "Always",
            (at("first", code=1), at("side"), at("last")),
            waiting(),
            [StartContainer("first", 1)],
            id="failed: again",
        ),
        pytest.param(
            "Never", (at("first", code=1), at("side"), at("last")), waiting(), [ReleaseDevices()], id="failed, Never"
        ),
        pytest.param(
            "Never",
            (at("first", code=0), at("side", code=1), at("last", code=0)),
            running(),
            [StartContainer("side", 1)],
            id="a sidecar restarts whatever the policy",
        ),
        pytest.param(
            "Always",
            (at("first", code=1), at("side", UP), at("last")),
            running(),
            [],
            id="once main has begun, init containers are over",
        ),
        pytest.param(
            "Never",
            (at("first", code=0), at("side", UP), at("last", code=0)),
            ended(0),
            [StopContainers(30.0, True)],
            id="main done",
        ),
        pytest.param(
            "Never",
            (at("first", code=0), at("side", code=143), at("last", code=0)),
            ended(0),
            [ReleaseDevices()],
            id="main done and the sidecar gone",
        ),
    ],
)
def test_init_containers(
    policy: str, inits: tuple[ContainerRecord, ...], main: ContainerRecord, actions: list[Action]
) -> None:
    assert list(plan_pod_lifecycle_on_node(with_inits(policy), record(main, inits=inits), (), NOW).actions) == actions


def test_sidecars_are_stopped_last_and_within_the_grace() -> None:
    pod = with_inits(meta=DELETING)
    inits = (at("first", code=0), at("side", UP), at("last", code=0))
    assert plan_pod_lifecycle_on_node(pod, record(running(), inits=inits), (), NOW).actions == (StopContainers(30.0),)
    half = record(ended(143), inits=inits, stopping_since=NOW - 10)
    assert plan_pod_lifecycle_on_node(pod, half, (), NOW).actions == (StopContainers(20.0, True),)
    told = record(ended(143), inits=inits, stopping_since=NOW - 10, sidecars_told=True)
    assert plan_pod_lifecycle_on_node(pod, told, (), NOW) == PodPlan((), NOW + 20)
    late = record(ended(143), inits=inits, stopping_since=NOW - 30, sidecars_told=True)
    assert plan_pod_lifecycle_on_node(pod, late, (), NOW).actions == (KillContainers(),)


def test_a_container_whose_devices_are_being_prepared_is_not_started_twice() -> None:
    known = record(waiting(), preparing=frozenset({"main"}))
    assert plan_pod_lifecycle_on_node(a_pod(), known, (), NOW).actions == ()
