"""What a node does next with one pod: a pure function of the pod, what the node remembers of it, and the time.

The life of a pod on a node, as a kubelet lives it:

    admit (the agent hands over the devices)  ->  pull  ->  start  ->  running  ->  exited  ->  start again, or finished
    over (deleted, finished, refused, gone)   ->  TERM  ->  grace  ->  KILL  ->  release the devices  ->  remove

Init containers run first, each to its good end before the next; a sidecar (an init container that restarts always) only has to
be up, stays beside the others, and is stopped after them. The pod's end is that of its other containers.

Invariants:
- a container is started only for an admitted pod that is not over;
- devices are released only when no container of the pod is live, and *before* the API can show that the pod is finished or
  gone: the scheduler may hand them on the moment it sees that;
- the object is removed only after its last status is written and its devices are released.

`plan_pod_lifecycle_on_node` returns the actions to take now, in order, and when to look again. The worker folds what the
actions did into the record and asks again; nothing here waits, and asking twice gives the same answer.
"""

from __future__ import annotations

from collections.abc import Container as Membership
from enum import StrEnum

import msgspec

from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.embedded.node.container_record import (
    ContainerPhase,
    ContainerRecord,
    is_sidecar_container,
    kubelet_sidecar_container_names,
    terminated_state,
)
from remuda.embedded.node.restart_rules import container_comes_back, restarts_whole_pod

ADMISSION_ERROR = "UnexpectedAdmissionError"


class DeviceAdmission(StrEnum):
    NONE = "none"  # the agent has not been asked
    ASKED = "asked"
    GRANTED = "granted"
    REFUSED = "refused"


class PodRecord(msgspec.Struct, frozen=True):
    """What the node remembers of a pod."""

    containers: tuple[ContainerRecord, ...]
    inits: tuple[ContainerRecord, ...] = ()
    admission: DeviceAdmission = DeviceAdmission.NONE
    refused_as: str = ADMISSION_ERROR
    refusal: str = ""  # what the pod's status will say
    held: bool = False  # the agent may hold devices for the pod
    address: str = ""
    start_time: float = 0.0
    notice: str = ""  # what the user should know of how the pod runs, say NoLocalCommand
    pulling: frozenset[str] = frozenset()
    preparing: frozenset[str] = frozenset()  # containers whose start waits for the device manager
    stopping_since: float | None = None  # TERM was sent
    sidecars_told: bool = False  # TERM was sent to the sidecars as well
    killed: bool = False
    expired: bool = False  # it was active longer than it may be
    vanished: bool = False  # the object is gone from the API
    untold: int | None = (
        None  # exit code of a container that ended while no node was here: the agent has not heard of it
    )

    @property
    def is_live(self) -> bool:
        return any(c.is_live for c in self.every)

    @property
    def every(self) -> tuple[ContainerRecord, ...]:
        return (*self.inits, *self.containers)

    @property
    def begun(self) -> bool:
        """One of the pod's own containers has started: its init containers are over for good."""
        return any(c.phase is not ContainerPhase.WAITING for c in self.containers)

    def container(self, name: str) -> ContainerRecord:
        return next(c for c in self.every if c.name == name)

    def with_container(self, new: ContainerRecord) -> PodRecord:
        containers = tuple(new if c.name == new.name else c for c in self.containers)
        inits = tuple(new if c.name == new.name else c for c in self.inits)
        return msgspec.structs.replace(self, containers=containers, inits=inits)


class AdmitPod(msgspec.Struct, frozen=True):
    """Ask the agent for the pod's devices."""


class PullImage(msgspec.Struct, frozen=True):
    image: str


class StartContainer(msgspec.Struct, frozen=True):
    container: str
    run: int


class StopContainers(msgspec.Struct, frozen=True):
    """TERM to every live container but the sidecars, or to those."""

    grace_s: float
    sidecars: bool = False


class KillContainers(msgspec.Struct, frozen=True):
    """KILL to everything every live container started."""


class ReleaseDevices(msgspec.Struct, frozen=True):
    """Tell the agent that the pod's processes are gone."""


class ExpirePod(msgspec.Struct, frozen=True):
    """The pod has been active for as long as it may be: it fails."""


class RestartPod(msgspec.Struct, frozen=True):
    """Every container has ended: the pod starts anew from its init containers."""


class RemovePod(msgspec.Struct, frozen=True):
    """Delete the object for good."""


Action = (
    AdmitPod
    | PullImage
    | StartContainer
    | StopContainers
    | KillContainers
    | ReleaseDevices
    | ExpirePod
    | RestartPod
    | RemovePod
)


class PodPlan(msgspec.Struct, frozen=True):
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
    settled: bool = True  # False: the status must wait (devices go back before the end is published)
    finished: bool = False  # nothing will ever be left to do


def plan_pod_lifecycle_on_node(
    pod: Pod, record: PodRecord, images: Membership[str], now: float, *, written: bool = True
) -> PodPlan:
    """`images`: those present on the node. `written`: the API has the status that follows from `record`."""
    if is_pod_record_over(pod, record):
        return _plan_pod_end(pod, record, now, written)
    deadline = active_deadline_on_node(pod, record)
    if deadline is not None and now >= deadline:
        return PodPlan((ExpirePod(),))
    plan = _plan_active_pod(pod, record, images, now, written)
    if deadline is None:
        return plan
    return msgspec.structs.replace(plan, wake_at=min(deadline, deadline if plan.wake_at is None else plan.wake_at))


def active_deadline_on_node(pod: Pod, record: PodRecord) -> float | None:
    """When a pod that is not over by then fails; counted from the moment its node took it on."""
    seconds = pod.spec.active_deadline_seconds
    return None if seconds is None or not record.start_time else record.start_time + seconds


def _plan_active_pod(pod: Pod, record: PodRecord, images: Membership[str], now: float, written: bool) -> PodPlan:
    if is_pod_restarting(pod, record):
        return _plan_pod_restart(record, written)
    if record.admission is DeviceAdmission.NONE:
        return PodPlan((AdmitPod(),))
    if record.admission is DeviceAdmission.ASKED:
        return PodPlan(settled=False)  # mostly answered at once: not worth a status of its own
    return _plan_pod_run(pod, record, images, now)


def is_pod_record_over(pod: Pod, record: PodRecord) -> bool:
    return (
        record.vanished
        or pod.is_deleting
        or pod.is_terminal
        or record.admission is DeviceAdmission.REFUSED
        or record.expired
        or pod_outcome_from_container_exits(pod, record) is not None
    )


def pod_outcome_from_container_exits(pod: Pod, record: PodRecord) -> str | None:
    """`Succeeded` or `Failed` when every container has ended for good, else None."""
    if not record.containers:
        return None
    failed = False
    if is_pod_restarting(pod, record):
        return None
    for spec in () if record.begun else pod.spec.init_containers:
        end = record.container(spec.name).exit
        if end is not None and end.code and not container_comes_back(pod, spec, end.code):
            return "Failed"
    for spec in pod.spec.containers:
        end = record.container(spec.name).exit
        if end is None or container_comes_back(pod, spec, end.code):
            return None
        failed = failed or end.code != 0
    return "Failed" if failed else "Succeeded"


def is_pod_restarting(pod: Pod, record: PodRecord) -> bool:
    """One of its containers has ended in a way that takes all of them down."""
    known = {c.name for c in record.every}
    specs = (*pod.spec.init_containers, *pod.spec.containers)
    return any(restarts_whole_pod(spec, record.container(spec.name)) for spec in specs if spec.name in known)


def record_after_restart(record: PodRecord) -> PodRecord:
    """As before the first start, but for counts and what the last run ended with."""

    def anew(container: ContainerRecord) -> ContainerRecord:
        last = terminated_state(container) or container.last
        crashes, not_before = container.crashes, container.not_before  # a pod that keeps ending so is slowed down
        return ContainerRecord(
            container.name, run=container.next_run, last=last, crashes=crashes, not_before=not_before
        )

    return msgspec.structs.replace(
        record,
        containers=tuple(anew(c) for c in record.containers),
        inits=tuple(anew(c) for c in record.inits),
        killed=False,
    )


def _plan_pod_restart(record: PodRecord, written: bool) -> PodPlan:
    """Down at once and without grace; up again when the API has been told."""
    if record.is_live:
        return PodPlan() if record.killed else PodPlan((KillContainers(),))
    return PodPlan((RestartPod(),)) if written else PodPlan()


def termination_grace_s(pod: Pod, record: PodRecord) -> float:
    """TERM to KILL. An object removed by force has no grace left: whoever did it counts the pod as gone already."""
    if record.vanished:
        return 0.0
    given = pod.metadata.deletion_grace_period_seconds if pod.is_deleting else None
    return float(pod.spec.termination_grace_period_seconds if given is None else given)


def _plan_pod_end(pod: Pod, record: PodRecord, now: float, written: bool) -> PodPlan:
    if record.is_live:
        grace = termination_grace_s(pod, record)
        last = is_pod_down_to_sidecars(pod, record)
        if record.stopping_since is None and grace > 0:
            return PodPlan((StopContainers(grace, last),), now + grace)
        if record.killed:
            return PodPlan()
        kill_at = (now if record.stopping_since is None else record.stopping_since) + grace
        if now < kill_at and last and not record.sidecars_told:
            return PodPlan((StopContainers(kill_at - now, last),), kill_at)
        return PodPlan((KillContainers(),)) if now >= kill_at else PodPlan((), kill_at)
    if record.admission is DeviceAdmission.ASKED:
        return PodPlan(settled=False)  # the answer is on its way; what it grants is released then
    if record.held:
        return PodPlan((ReleaseDevices(),), settled=False)
    if record.vanished:
        return PodPlan(finished=True)
    if pod.is_deleting and written:
        return PodPlan((RemovePod(),))
    return PodPlan()


def _plan_pod_run(pod: Pod, record: PodRecord, images: Membership[str], now: float) -> PodPlan:
    actions: list[Action] = []
    wakes: list[float] = []
    pulling = set(record.pulling)
    for spec in containers_due(pod, record):
        container = record.container(spec.name)
        if spec.name in record.preparing or not _wants_container_start(pod, spec, container):
            continue
        if not is_image_present(spec, images):
            if spec.image not in pulling:
                pulling.add(spec.image)
                actions.append(PullImage(spec.image))
        elif now < container.not_before:
            wakes.append(container.not_before)
        else:
            actions.append(StartContainer(spec.name, container.next_run))
    return PodPlan(tuple(actions), min(wakes, default=None))


def containers_due(pod: Pod, record: PodRecord) -> list[Container]:
    """The containers whose turn has come: init containers one after the other, then the rest; sidecars stay due."""
    turn: list[Container] = []
    for spec in pod.spec.init_containers:
        container = record.container(spec.name)
        if is_sidecar_container(spec):
            turn.append(spec)
            if not record.begun and not container.is_live:
                return turn
        elif not record.begun and not _is_container_done(container):
            return [*turn, spec]
    return [*turn, *pod.spec.containers]


def are_init_containers_done(pod: Pod, record: PodRecord) -> bool:
    return record.begun or all(
        record.container(c.name).is_live if is_sidecar_container(c) else _is_container_done(record.container(c.name))
        for c in pod.spec.init_containers
    )


def is_pod_down_to_sidecars(pod: Pod, record: PodRecord) -> bool:
    names = kubelet_sidecar_container_names(pod)
    return bool(names) and all(c.name in names for c in record.every if c.is_live)


def _is_container_done(container: ContainerRecord) -> bool:
    return container.exit is not None and container.exit.code == 0


def is_image_present(spec: Container, images: Membership[str]) -> bool:
    return not spec.image or spec.image in images


def _wants_container_start(pod: Pod, spec: Container, container: ContainerRecord) -> bool:
    if container.phase is ContainerPhase.EXITED and container.exit is not None:
        return container_comes_back(pod, spec, container.exit.code)
    return container.phase is ContainerPhase.WAITING
