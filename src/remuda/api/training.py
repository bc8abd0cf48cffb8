"""TrainingJob: a gang that trains together, its spares, and what may be spent on keeping it alive.

`spec` is the user's; `status` is written by the training controller alone. Two status fields steer every launcher of the
gang and are therefore small and written first: `attempt` (the gang's restart number, the barrier's epoch, the fencing token:
it never goes down) and `barrier` (Closed: everyone stops and gets ready for `attempt`; Open: everyone runs it).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

import msgspec

from remuda.api.injected_fields import MOUNT_ROOT
from remuda.api.kubernetes.quantity import parse_whole_quantity
from remuda.api.meta import Condition, JsonObject, KObject, ObjectMeta, Resource
from remuda.api.names import GROUP, RESOURCE_GPU, VERSION

UNLIMITED = -1
VOLUME_PATH = f"{MOUNT_ROOT}/checkpoints"  # where a job's checkpoint volume is mounted when the job names no path


class Cause(StrEnum):
    """Why a gang had to be interrupted; each has its own budget."""

    CODE = "code"
    DEVICE = "device"
    INFRA = "infra"
    HANG = "hang"
    PREEMPTION = "preemption"
    MAINTENANCE = "maintenance"


class Remedy(StrEnum):
    """The rungs of the workload ladder, cheapest first."""

    RESTART_IN_PLACE = "RestartInPlace"
    PROMOTE_SPARE = "PromoteSpare"
    REPLACE_POD = "ReplacePod"
    RECALL_SPARE = "RecallSpare"  # the same, on devices of a spare that were lent to preemptible work
    MOVE_SEGMENT = "MoveSegment"
    REPLACE_GANG = "ReplaceGang"
    SHRINK = "Shrink"  # go on with fewer ranks
    GROW = "Grow"  # take in the ranks that were missing; nothing failed
    FAIL = "Fail"


class DeviceFailedPolicy(StrEnum):
    """What a failed device means for this workload, when it is not to be the cheapest cure."""

    CHEAPEST = "Cheapest"
    IGNORE = "Ignore"
    RESTART_IN_PLACE = "RestartInPlace"
    REPLACE_POD = "ReplacePod"
    REPLACE_GANG = "ReplaceGang"
    FAIL = "Fail"


class DegradedPolicy(StrEnum):
    """What a slow device means for this workload."""

    CARRY_ON = "CarryOn"
    SWAP_AT_CHECKPOINT = "SwapAtCheckpoint"
    SWAP_NOW = "SwapNow"


class RuleAction(StrEnum):
    IGNORE = "Ignore"  # restart in place, charged to nobody
    RESTART_IN_PLACE = "RestartInPlace"
    REPLACE_POD = "ReplacePod"
    REPLACE_GANG = "ReplaceGang"
    FAIL = "Fail"


class PodTemplate(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """`spec` is a Kubernetes PodSpec kept word for word: fields Remuda never reads must reach the pod all the same."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JsonObject = {}


class RoleAfter(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    role: str
    is_: str = msgspec.field(name="is", default="Running")  # Running | Succeeded


class Role(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A set of identical pods. `gpus` is the plain way to ask; the template's resource limits work as well."""

    name: str = "worker"
    replicas: int = 1
    min_replicas: int = 0  # elastic: the gang goes on with so many when there is no room for all; 0 = all or nothing
    gpus: int = 0
    after: list[RoleAfter] = []  # roles that must have got somewhere before this one's pods are made
    template: PodTemplate = PodTemplate()


class Topology(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """`required`: a node label (say `topology.remuda.dev/rack`) whose value all members and spares must share."""

    required: str = ""
    segment_size: int = 0  # ranks that must share one domain of `required`; 0 = all of them


class CheckpointFallBack(StrEnum):
    """What happens when a checkpoint that the gang was known to have is not there at a restart."""

    HOLD = "Hold"  # the gang waits until it is there again, or somebody says which step to go on from
    ALLOWED = "Allowed"  # it goes on from the newest step that all ranks have, or from the beginning


class ResumeFrom(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Consent, once: the next start goes on from `step` (0 = from the beginning). `attempt`: the job's attempt when it was
    given; it is used up when that attempt, or a later one, starts."""

    step: int = 0
    attempt: int = 0


class Checkpoint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Where checkpoints go. `path`: in every rank's container; what is there is its node's alone unless a volume is mounted
    there. Empty = a directory of the job's own on each node, copied to one other. `volume`: mounted at path, in all of them."""

    path: str = ""
    volume: JsonObject = {}  # a Kubernetes volume source, say {persistentVolumeClaim: {claimName: x}}
    typical_seconds: float = 0.0
    signal: str = "SIGUSR1"  # sent to ask for one; remuda_train answers it
    fall_back: CheckpointFallBack = CheckpointFallBack.HOLD
    resume_from: ResumeFrom | None = None  # `remuda resume JOB --from-step N` writes it

    @property
    def directory(self) -> str:
        """In the container, as the job says it; "" = its own on each node."""
        return self.path or (VOLUME_PATH if self.volume else "")


class Budgets(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Interruptions allowed per cause; -1 = no limit. Refilled when training gets `refillAfterSteps` further: a budget tells a
    job that gets nowhere from one that runs for months."""

    code: int = 3
    device: int = 10
    infra: int = 10
    hang: int = 3
    preemption: int = UNLIMITED
    maintenance: int = UNLIMITED
    refill_after_steps: int = 1000

    def limit(self, cause: Cause) -> int:
        return int(getattr(self, cause.value))


class FailureRule(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """First match wins. All that is given must match: a rank's exit code, a regular expression in the end of its log, a reason
    or fault class (say Xid79, ecc, NodeLost)."""

    action: RuleAction
    name: str = ""  # named in the job's reason
    exit_codes: list[int] = []
    log_pattern: str = ""
    faults: list[str] = []
    charge: Cause | None = None  # another budget than the fault's own


class Straggler(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """When a rank is called slow, and what then. 0 = off."""

    factor: float = 1.3  # times the median of its peers
    policy: DegradedPolicy = DegradedPolicy.SWAP_AT_CHECKPOINT


class SuccessPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The job has succeeded when these ranks have; empty = all of them. With a role, ranks are counted within it."""

    role: str = ""
    ranks: list[int] = []


class Failure(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What may be spent on keeping the gang alive, and how long to wait for what."""

    budgets: Budgets = Budgets()
    rules: list[FailureRule] = []
    device_failed: DeviceFailedPolicy = DeviceFailedPolicy.CHEAPEST
    straggler: Straggler = Straggler()
    hang_after_seconds: float = 0.0  # no new step for that long = hung; 0 = off
    hang_after_steps: float = 0.0  # no new step for so many median steps = hung; 0 = off
    look_back_seconds: float = 10.0  # a crash so shortly before its device is reported bad was the device's
    same_step_limit: int = 3  # failing so often at one step, on two pods or more, is not the hardware's fault; 0 = off
    backoff_max_seconds: float = 30.0  # longest pause before a gang that fails without getting further starts again
    stop_grace_seconds: float = 2.0  # SIGTERM to SIGKILL when the gang stops for a recovery
    stop_deadline_seconds: float = 10.0  # a member not stopped by then is replaced and its devices quarantined
    start_deadline_seconds: float = 600.0  # a placed member that never reaches the barrier is replaced


class TrainingJobSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    roles: list[Role] = []
    spares: int = 0
    topology: Topology = Topology()
    checkpoint: Checkpoint = Checkpoint()
    failure: Failure = Failure()
    suspend: bool = False  # give everything back, keep the record; resumes from the last checkpoint
    active_deadline_seconds: float = 0.0  # since the first start, suspended time not counted; 0 = none
    ttl_seconds_after_finished: float | None = None
    success: SuccessPolicy = SuccessPolicy()
    total_steps: int = 0  # for progress and ETA
    lend_spares: bool = False  # preemptible pods may use the devices of parked spares until one is needed


class Member(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One rank of the gang and the pod that has it now, `since` when."""

    rank: int
    role: str
    pod: str
    uid: str
    node: str = ""
    devices: list[str] = []
    address: str = ""
    since: datetime | None = None


class SparePod(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pod: str
    uid: str
    role: str = ""
    node: str = ""
    devices: list[str] = []
    parked: bool = False


class Borrower(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A preemptible pod that the devices of a spare were promised to."""

    namespace: str
    pod: str
    uid: str
    since: datetime | None = None


class Loan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The place of a spare that was given up for preemptible work. It stays the gang's: nobody else is placed there. It goes one
    way: lent, then called back (`recalled_at`, the gang needs it) or returned (`returned_at`, no borrower is left), then over."""

    spare: str  # the pod that was parked there
    uid: str
    role: str
    node: str
    devices: list[str] = []
    since: datetime | None = None
    borrowers: list[Borrower] = []
    requests: dict[str, str] = {}  # of that pod: what is kept beside the devices
    recalled_at: datetime | None = None
    reason: str = ""  # of the recall
    message: str = ""
    returned_at: datetime | None = None


class RetiredPod(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod that was taken out of the gang and has to go. Kept until it is seen gone, so that no crash between writing the
    status and deleting the pod brings it back. `until`: nothing is made in its place before then."""

    pod: str
    uid: str
    reason: str = ""
    until: datetime | None = None


class KeptCheckpoint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A step that the whole gang was seen to have a checkpoint of: `ranks` of them wrote it, one for all or each its own."""

    step: int
    ranks: int = 1


class Progress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How far the gang is: the slowest member's step, and the newest step every member has a checkpoint of."""

    step: int = 0
    checkpoint_step: int = 0
    checkpoint_time: datetime | None = None
    step_seconds: float = 0.0
    time: datetime | None = None
    steps: list[int] = []  # of each rank, in rank order
    # Of this history, the newest few, oldest first: a restart does not go below them without being told to.
    kept: list[KeptCheckpoint] = []
    total_steps: int = 0
    eta: datetime | None = None


class Recovery(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One interruption, from the first signal to the first new step. The newest ones stay in the status."""

    attempt: int
    cause: Cause
    remedy: Remedy
    reason: str
    message: str = ""
    price_gpu_hours: float = 0.0
    members: list[str] = []  # pods that failed
    seats: list[
        Member
    ] = []  # where those sat, as it was then: what says which device or node the interruption was about
    exit_codes: dict[str, int] = {}  # of processes that ended, by pod
    replaced: list[str] = []  # pods that took over
    why_not: list[str] = []  # cheaper rungs and why they were not taken
    rule: str = ""  # the job's own rule that decided
    charged: str | None = None  # the budget that paid when it was not the cause's own; "" = nobody's
    signal_at: datetime | None = None
    detected_at: datetime | None = None
    stopped_at: datetime | None = None
    opened_at: datetime | None = None
    first_step_at: datetime | None = None
    step_at_fault: int = 0
    resume_step: int = 0
    lost_gpu_seconds: float = 0.0


class CheckpointRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A checkpoint the gang is asked for. Agents pass it on to the launchers of `attempt`, once per `id`. It is answered when
    every rank has reported a checkpoint of `step` or later; whoever asked goes on then, or at `deadline`."""

    id: int
    attempt: int
    asked_at: datetime
    deadline: datetime
    step: int = 0  # the first step it may be of, ahead of every rank when it was asked: so all save the same one
    why: str = ""
    answered_at: datetime | None = None


class World(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """So many ranks wrote the checkpoints of the steps behind `from_step`."""

    ranks: int
    from_step: int = 0


class Resume(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The attempt went on from that step; 0 = from the beginning."""

    attempt: int
    step: int = 0


class RankCopies(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Which nodes have the checkpoints of a rank that are in no shared directory: its home, where they were saved, and the node
    that has copies of them."""

    rank: int
    home: str
    copy: str


class Goodput(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """ETTR = (time since the first start - time lost) / time since the first start."""

    ettr: float = 1.0
    wall_seconds: float = 0.0
    lost_seconds: float = 0.0
    lost_gpu_seconds: dict[str, float] = {}


class Placement(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    topology: str = ""
    domain: str = ""
    segments: list[str] = []  # of a gang in segments: the domain of each; "" = nowhere yet


class TrainingJobStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    phase: str = msgspec.field(
        default_factory=lambda: "Pending"
    )  # no plain default: tables show it, so it is always written
    reason: str = ""
    message: str = ""
    attempt: int = 0
    barrier: str = "Closed"
    resume_step: int | None = None
    opened_attempt: int = 0  # the last one whose barrier opened
    members: list[Member] = []
    spares: list[SparePod] = []
    retired: list[RetiredPod] = []
    loans: list[Loan] = []  # places of spares that preemptible work has
    lent_at: datetime | None = None  # when a loan was last made or ended: the next one is not made at once
    pods_created: int = 0
    placement: Placement = Placement()
    progress: Progress = Progress()
    used: dict[str, int] = {}  # interruptions charged per cause since the last refill
    refill_step: int = 0
    best_step_seconds: float = 0.0  # of the whole gang; kept while GangSlow says that it is slower than that
    recoveries: list[Recovery] = []
    interruptions: int = msgspec.field(default_factory=int)  # written also when it is 0: it has a column
    goodput: Goodput = Goodput()
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempt_raised_at: datetime | None = None
    suspended_at: datetime | None = None  # it stands still since, because it was told to
    suspended_seconds: float = 0.0  # so long in all before that
    done_roles: list[str] = []  # roles that have ended well and left; others waited for that
    joined_roles: list[str] = []  # roles that waited for another one to run, and had their turn
    held_roles: list[str] = []  # of those, the ones that do not run yet although the barrier is open
    stage: int = 0  # roles that had ended when the barrier last opened
    checkpoint_request: CheckpointRequest | None = None  # the newest
    resumes: list[Resume] = []  # which attempt went on from where, as far as it tells what belongs to this history
    copies: list[RankCopies] = []  # by rank: where its checkpoints are, of a job without a shared directory
    worlds: list[World] = []  # who wrote which checkpoints, oldest first; the last one is the size it runs with
    sizes: dict[str, int] = {}  # ranks of roles that go on with fewer than were asked for
    conditions: list[Condition] = []


class TrainingJob(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A gang of pods that train together: placed whole or not at all, restarted together, and repaired by the cheapest remedy
    that cures."""

    resource: ClassVar[Resource] = Resource(
        GROUP, VERSION, "TrainingJob", "trainingjobs", subresources=("status",), short=("tj",)
    )

    spec: TrainingJobSpec = TrainingJobSpec()
    status: TrainingJobStatus = TrainingJobStatus()

    @property
    def is_finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


def gpus_in_role_spec(role: Role) -> int:
    """Devices each pod of the role gets, whichever way they were asked for."""
    if role.gpus:
        return role.gpus
    containers = role.template.spec.get("containers") or [{}]
    resources = containers[0].get("resources") or {}
    for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
        if RESOURCE_GPU in amounts:
            return parse_whole_quantity(amounts[RESOURCE_GPU])
    return 0
