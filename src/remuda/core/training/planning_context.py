"""What one planning pass works on: what was observed, the status as decided so far, and the pods to make and to delete.

The steps of a pass are functions over a `PlanningContext`, in the order that `job_plan` gives them. Each reads the views and the
status and moves the status on; pods to delete and pods to make are collected beside it. A context lives for one call of
`plan_training`; nothing of it outlives the plan. "A look" is one such pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, repeat

import msgspec

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.api.training import Recovery, Role, TrainingJob, TrainingJobSpec, TrainingJobStatus, gpus_in_role_spec
from remuda.core.gang.pod_view import PodView
from remuda.core.health.own_stalls import NO_STALLS, StallHistory
from remuda.core.health.step_samples import GangSlow
from remuda.core.state.cluster_capacity import ClusterCapacity
from remuda.core.state.snapshot import Snapshot
from remuda.core.training.kept_checkpoints import BarrierHold
from remuda.core.training.role_stages import present_roles

GANG_TOO_LARGE = "GangTooLarge"  # condition and reason: the cluster could not hold the gang even if it were empty
FEW_PODS = 64  # so many harm nobody, wherever they can go
PODS_A_LOOK = 512  # made for one gang at one look: other gangs get their turn in between


class LendingView(msgspec.Struct, frozen=True):
    """What a gang that lends sees beyond itself: preemptible pods the scheduler has refused, oldest first; those and its
    borrowers, by uid; and one node as the gang may have it."""

    waiting: tuple[Pod, ...]
    pods: Mapping[str, Pod]
    picture: Callable[[str], Snapshot]


class SlowRankStay(msgspec.Struct, frozen=True):
    """Why slow ranks are not moved now. `who` is empty when there are none."""

    reason: str = ""
    who: str = ""
    why: str = ""
    fix: str = ""


class GangObserved(msgspec.Struct, frozen=True):
    """One look. `snapshot` is a thunk because only a fault needs the picture of the whole cluster. `refusal`: what the API
    said when it last would not make pods of the gang; "" when it made them. `slow`: what the straggler watch says of the gang as
    a whole; None when it cannot know yet. `heard_since`: when this manager began to listen to heartbeats."""

    job: TrainingJob
    pods: tuple[PodView, ...]
    snapshot: Callable[[], Snapshot]
    refusal: str = ""
    slow: GangSlow | None = None
    heard_since: float = 0.0
    stalls: StallHistory = NO_STALLS  # this manager's own
    lending: LendingView | None = None  # of a gang that lends, or has lent
    capacity: Callable[[], ClusterCapacity] | None = None  # what the cluster has in all; None = nobody knows
    on_kubelets: bool = False  # nodes need an agent for the launcher, and each keeps checkpoints on a disk of its own


class BorrowerRecall(msgspec.Struct, frozen=True):
    """A borrower that has to give a place back: told, and deleted with its grace."""

    pod: Pod
    reason: str
    message: str


class PodDeletion(msgspec.Struct, frozen=True):
    """A pod to delete. `force`: its node is dead and will never confirm, so nothing is waited for."""

    name: str
    uid: str
    force: bool = False


class DeviceQuarantine(msgspec.Struct, frozen=True):
    node: str
    device: str
    reason: str
    message: str


class TrainingPlan(msgspec.Struct, frozen=True):
    """Applied in this order: status (raises the attempt: the fence comes first), quarantine, deletes, recalls, creates."""

    status: TrainingJobStatus
    quarantine: tuple[DeviceQuarantine, ...] = ()
    delete: tuple[PodDeletion, ...] = ()
    create: tuple[JsonObject, ...] = ()
    recall: tuple[BorrowerRecall, ...] = ()
    look_again_s: float | None = None
    is_over: bool = False  # the job itself is to go: it ended long enough ago


class PlanningContext:
    def __init__(self, observed: GangObserved, now: float) -> None:
        self.before = observed.job.status
        self.status = observed.job.status
        self._job = observed.job
        self.spec = observed.job.spec
        self.refusal = observed.refusal
        self.slow = observed.slow
        self.heard_since = observed.heard_since
        self.stalls = observed.stalls
        self.lending = observed.lending
        self.now = now
        self.views = {v.uid: v for v in sorted(observed.pods, key=lambda v: (v.index, v.uid))}
        self.deletions: dict[str, PodDeletion] = {}
        self.create: list[JsonObject] = []
        self.fresh = self.status.progress  # not throttled, unlike what is written
        self.stays: SlowRankStay | None = (
            None  # why slow ranks are left where they are; None = not decided at this look
        )
        self.hold: BarrierHold | None = None  # why the barrier stays closed although everyone is ready
        self.take_capacity = observed.capacity
        self.on_kubelets = observed.on_kubelets
        self.too_large: Refusal | None = None
        self.is_size_judged = False
        self.ranks: list[Role] = []
        self.gang_gpus = 0
        self.restage()
        self._take_snapshot = observed.snapshot
        self._snapshot: Snapshot | None = None

    def restage(self) -> None:
        """Looks again which roles are there; only those count. Asked when that has been decided anew."""
        roles = [_role_at_size(role, self.status.sizes) for role in present_roles(self._job.spec, self.status)]
        self.spec = msgspec.structs.replace(self._job.spec, roles=roles)
        self.ranks = list(chain.from_iterable(repeat(role, role.replicas) for role in self.spec.roles))
        self.gang_gpus = sum(role.replicas * gpus_in_role_spec(role) for role in self.spec.roles)

    @property
    def asked_size(self) -> int:
        """Ranks that the roles which are there would have if there were room for all."""
        there = {role.name for role in self.spec.roles}
        return sum(role.replicas for role in self._job.spec.roles if role.name in there)

    @property
    def whole_spec(self) -> TrainingJobSpec:
        """With the roles that are still to come, and those that have gone."""
        return self._job.spec

    @property
    def job(self) -> TrainingJob:
        """The job with the status as decided so far, and the roles that are there."""
        return msgspec.structs.replace(self._job, spec=self.spec, status=self.status)

    @property
    def is_finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self._take_snapshot()
        return self._snapshot

    def update(self, **changes: object) -> None:
        self.status = msgspec.structs.replace(self.status, **changes)

    # -- recoveries -------------------------------------------------------------------------------------------------

    @property
    def last_recovery(self) -> Recovery | None:
        return self.status.recoveries[-1] if self.status.recoveries else None

    @property
    def under_way(self) -> Recovery | None:
        """The interruption the gang stands in now: the barrier has not opened since."""
        last = self.last_recovery
        return last if last is not None and last.opened_at is None else None

    def amend_recovery(self, **changes: object) -> None:
        last = msgspec.structs.replace(self.status.recoveries[-1], **changes)
        self.update(recoveries=[*self.status.recoveries[:-1], last])

    # -- pods -------------------------------------------------------------------------------------------------------

    @property
    def member_uids(self) -> set[str]:
        return {m.uid for m in self.status.members}

    @property
    def retired_uids(self) -> set[str]:
        return {r.uid for r in self.status.retired}

    def free(self, role: str | None = None, *, lasting: bool = False) -> list[PodView]:
        """Pods without a rank that may be given one: parked first, then placed, then in the order they were made, and last
        those on nodes that are silent with most others. `lasting`: only those whose node stays."""
        taken = self.member_uids | self.retired_uids | self.deletions.keys()
        found = [v for v in self.views.values() if v.uid not in taken and v.is_usable and role in (None, v.role)]
        if lasting:
            found = [v for v in found if v.leaving is None]
        return sorted(found, key=lambda v: (v.node_held, not v.is_parked, not v.is_bound, v.index))

    def vacant(self, role: Role) -> int:
        return role.replicas - sum(1 for m in self.status.members if m.role == role.name)

    def delete_pod(self, uid: str) -> None:
        """To be deleted. Asked again on every look until it is gone; only a dead node's pods need asking twice."""
        view = self.views.get(uid)
        if view is not None and (view.node_dead or not view.pod.is_deleting):
            self.deletions[uid] = PodDeletion(view.pod.name, uid, force=view.node_dead)


def _role_at_size(role: Role, sizes: Mapping[str, int]) -> Role:
    """The role as large as it is now."""
    size = sizes.get(role.name, role.replicas)
    return role if size >= role.replicas else msgspec.structs.replace(role, replicas=size)
