"""A pod of a gang with everything that decides about it: the object, what its launcher last reported, how far it got, whether a
device under it is bad, whether its node is dead.
"""

from __future__ import annotations

import msgspec

from remuda.api.conditions import find_condition
from remuda.api.devices import LauncherReport, Signal, Verdict
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds
from remuda.api.names import ANNOTATION_DOMAIN, ANNOTATION_SEGMENT, ANNOTATION_SPARE, LABEL_INDEX, LABEL_ROLE
from remuda.api.number_bounds import MAX_COUNT, MAX_SECONDS, are_plausible_seconds, is_count_within_number_bounds
from remuda.core.health.own_stalls import DeafTime
from remuda.core.state.leaving_nodes import NodeLeavingState
from remuda.core.state.snapshot import snapshot_devices_of_pod

OPEN, CLOSED = "Open", "Closed"

# How long after its grace a terminating pod may still be there before nobody counts on its devices any more.
STUCK_AFTER_S = 10.0


class MemberProgress(msgspec.Struct, frozen=True):
    """Newest heartbeat of one pod, in seconds of the cluster's clock. A number that cannot be counts as its edge, or as not said:
    whoever reads it may calculate with it."""

    attempt: int
    step: int
    time: float
    first_step_time: float
    step_seconds: float | None = None
    checkpoint: int | None = None
    checkpoint_time: float = 0.0
    checkpoint_seconds: float = 0.0  # the longest one took
    total_steps: int | None = None
    kept: int | None = None  # newest checkpoint of this attempt that its launcher has seen on disk
    safe: tuple[int, ...] | None = None  # checkpoints that outlive its node; None = all that it keeps do

    def __post_init__(self) -> None:
        counts = (self.step, self.checkpoint, self.total_steps, self.kept, *(self.safe or ()))
        spans = (self.time, self.first_step_time, self.step_seconds, self.checkpoint_time, self.checkpoint_seconds)
        if all(map(is_count_within_number_bounds, counts)) and all(map(are_plausible_seconds, spans)):
            return
        for name in ("step", "time", "first_step_time", "checkpoint_time", "checkpoint_seconds"):
            value, most = getattr(self, name), MAX_COUNT if name == "step" else MAX_SECONDS
            meant = 0 if not value > 0 else min(value, most)  # what is no number (NaN) is not above 0
            msgspec.structs.force_setattr(self, name, meant)
        if self.safe is not None:
            msgspec.structs.force_setattr(self, "safe", tuple(filter(is_count_within_number_bounds, self.safe)))
        for name, is_plausible in (
            ("checkpoint", is_count_within_number_bounds),
            ("total_steps", is_count_within_number_bounds),
            ("kept", is_count_within_number_bounds),
            ("step_seconds", are_plausible_seconds),
        ):
            if not is_plausible(getattr(self, name)):
                msgspec.structs.force_setattr(self, name, None)


class PodView(msgspec.Struct, frozen=True):
    pod: Pod
    report: LauncherReport | None = None
    progress: MemberProgress | None = None
    bad_device: Verdict | None = None
    slow_device: Verdict | None = None  # Degraded: it serves, but not as it should
    leaving: NodeLeavingState | None = None  # its node is about to go
    node_dead: bool = False
    node_held: bool = False  # silent together with most others: neither lost nor at fault
    unheard: tuple[DeafTime, ...] = ()  # times in which nothing that its node's agent reports could reach us
    held: tuple[str, ...] = ()  # devices its node says it was given
    signals: tuple[Signal, ...] = ()  # of those devices and of its node
    memory_pressure: bool = False  # of its node

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def role(self) -> str:
        return self.pod.labels.get(LABEL_ROLE, "")

    @property
    def index(self) -> int:
        text = self.pod.labels.get(LABEL_INDEX, "")
        return int(text) if text.isdecimal() else -1

    @property
    def is_spare(self) -> bool:
        """Made as a spare. Once promoted it is a member like any other; only its birth differs."""
        return self.pod.annotations.get(ANNOTATION_SPARE) == "true"

    @property
    def made_for(self) -> str:
        """The domain the pod was made for, '' when the gang sat nowhere then."""
        return self.pod.annotations.get(ANNOTATION_DOMAIN, "")

    @property
    def segment(self) -> int:
        """The segment it was made for; -1 for a spare, and in a gang without segments."""
        text = self.pod.annotations.get(ANNOTATION_SEGMENT, "")
        return int(text) if text.isdecimal() else -1

    @property
    def node(self) -> str:
        return self.pod.spec.node_name

    @property
    def devices(self) -> tuple[str, ...]:
        """Those its node says it has; until then those the scheduler chose."""
        return self.held or snapshot_devices_of_pod(self.pod)

    @property
    def is_bound(self) -> bool:
        return bool(self.pod.spec.node_name)

    @property
    def bound_at(self) -> float | None:
        """When it got its node: what a spare is given to start in is counted from here."""
        scheduled = find_condition(self.pod.status.conditions, "PodScheduled")
        if scheduled is not None and scheduled.status == "True" and scheduled.last_transition_time is not None:
            return to_seconds(scheduled.last_transition_time)
        known = self.pod.status.start_time or self.pod.metadata.creation_timestamp
        return to_seconds(known) if known is not None and self.is_bound else None

    @property
    def is_parked(self) -> bool:
        return self.report is not None and self.report.state == "parked" and self.pod.status.phase == "Running"

    @property
    def is_silent(self) -> bool:
        """Nobody speaks for it: its launcher never did, or ended."""
        return self.report is None or self.report.state == "gone"

    @property
    def may_run(self) -> bool:
        """A process of some attempt may be alive in it. On a dead node none is: its agent has fenced itself."""
        at_work = self.report is not None and self.report.state in ("running", "stopping")
        return at_work and not self.node_dead and not self.pod.is_terminal

    def is_unheard(self, now: float) -> bool:
        return bool(self.unheard) and self.unheard[-1].until >= now

    def may_start(self, attempt: int) -> bool:
        """Ready for an attempt before this one: an agent that is the last to hear of this one could still start that."""
        is_behind = self.report is not None and self.report.state == "ready" and self.report.attempt < attempt
        return is_behind and not self.node_dead and not self.pod.is_terminal

    @property
    def is_usable(self) -> bool:
        """May be given a rank, now or when it is bound."""
        return not (self.pod.is_deleting or self.pod.is_terminal or self.bad_device or self.node_dead)

    def is_ready_for(self, attempt: int) -> bool:
        return self.report is not None and self.report.state == "ready" and self.report.attempt == attempt

    def is_stuck(self, now: float) -> bool:
        """Told to go long ago and still there."""
        told = self.pod.metadata.deletion_timestamp  # Kubernetes': when the grace ends
        return told is not None and now > to_seconds(told) + STUCK_AFTER_S
