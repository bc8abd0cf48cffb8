"""Interruptions of a gang -> the incidents they belong to.

The training controller records each interruption (`TrainingJob.status.recoveries`) and who sat where (`seats`). An interruption
that a device or node explains is written into that one's incident as a workload remedy, with its price, its outcome and the
GPU-hours it cost. One that nothing explains (a crash of the code, a hang, a deleted pod) is an incident of the gang itself;
crashing again before getting past the fault is the same incident.
Preemption and maintenance are somebody's decisions, not failures, and open none.

When the explanation comes late (the crash first, the device's report a few seconds after), the gang's incident is *Merged* into
the device's, which takes over its remedies and evidence. An interruption with several explanations is told in each of their
incidents and its GPU-hours are counted in the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from remuda.api.devices import DeviceState
from remuda.api.incidents import (
    Affected,
    Evidence,
    Incident,
    IncidentOutcome,
    IncidentPhase,
    IncidentStatus,
    IncidentVerdict,
    SubjectKind,
)
from remuda.api.meta import to_seconds, to_time
from remuda.api.training import Cause, Recovery, TrainingJob
from remuda.core.incidents.closing import closed_status
from remuda.core.incidents.evidence import with_affected, with_evidence
from remuda.core.incidents.names import (
    IncidentPlan,
    IncidentTimes,
    blank_incident,
    gang_subject,
    incident_name,
    incidents_of,
)
from remuda.core.incidents.node_incidents import NODE_LOST
from remuda.core.incidents.workload_remedies import (
    conclude_incident_workload_remedies,
    incident_with_workload_remedy,
    is_incident_recovery_under_way,
    workload_record,
)

STANDING_S = 60.0  # a gang that stands still since its crash: its node's or device's report may take so long
TOO_OLD_S = 3600.0  # an interruption of long ago that no incident tells of was told once, and the incident is removed


class GangIncidentView(msgspec.Struct, frozen=True):
    """What one look at a gang's incidents is made of. `job`: None when it is deleted."""

    namespace: str
    gang: str
    job: TrainingJob | None = None
    exits: tuple[Evidence, ...] = ()  # of its processes, as their launchers last said

    @property
    def target(self) -> str:
        return f"{self.namespace}/{self.gang}"


def plan_gang_incidents(
    sight: GangIncidentView, incidents: Sequence[Incident], now: float, times: IncidentTimes
) -> IncidentPlan:
    """`incidents`: the gang's own, those that name it, and those of the nodes its interruptions were on."""
    return _GangIncidentPlanner(sight, incidents, now, times).plan()


class _GangIncidentPlanner:
    def __init__(
        self, sight: GangIncidentView, incidents: Sequence[Incident], now: float, times: IncidentTimes
    ) -> None:
        self.sight = sight
        self.now = now
        self.times = times
        self.before = {i.name: i for i in incidents}
        self.status: dict[str, IncidentStatus] = {i.name: i.status for i in incidents}
        self.fresh: dict[str, Incident] = {}
        self.looks: list[float] = []

    def plan(self) -> IncidentPlan:
        job = self.sight.job
        for recovery in job.status.recoveries if job is not None else ():
            if recovery.cause is not Cause.PREEMPTION and recovery.detected_at is not None:
                self._place_interruption(recovery)
        for name, status in self.status.items():
            self.status[name] = conclude_incident_workload_remedies(status, self.sight.target, job, self.now)
        for incident in self._all_incidents():
            if incident.spec.subject == gang_subject(self.sight.namespace, self.sight.gang):
                self.status[incident.name] = self._conclude_gang(incident, self.status[incident.name])
        # One that takes over is written before the one that is merged into it is closed.
        in_order = sorted(self._all_incidents(), key=lambda i: i.spec.subject.kind is SubjectKind.GANG)
        changed = tuple((i, self.status[i.name]) for i in in_order if self.status[i.name] != i.status)
        again = min((at for at in self.looks if at >= self.now), default=None)
        wait = None if again is None else again - self.now + 0.01
        return IncidentPlan(tuple(self.fresh.values()), changed, look_again_s=wait)

    def _all_incidents(self) -> list[Incident]:
        return [*self.before.values(), *self.fresh.values()]

    # -- where an interruption belongs ------------------------------------------------------------------------------

    def _place_interruption(self, recovery: Recovery) -> None:
        homes = [i for i in self._all_incidents() if self._has_interruption(i, recovery)]
        found = explaining_incidents(recovery, self.before.values(), self.times)
        if found:
            for home in homes:
                if home.spec.subject.kind is SubjectKind.GANG:
                    self._merge_into(home, found[0])
            counted = next((i for i in homes if i in found and not self._is_counted_elsewhere(i, recovery)), found[0])
            for incident in found:
                self._record_interruption(incident, recovery, "" if incident is counted else counted.name)
            return
        for home in homes:
            if self.status[home.name].outcome is not IncidentOutcome.MERGED:
                self._record_interruption(home, recovery, "")
        if not homes and recovery.cause is not Cause.MAINTENANCE:
            self._open_gang_incident(recovery)

    def _has_interruption(self, incident: Incident, recovery: Recovery) -> bool:
        remedies = self.status[incident.name].remedies
        return any(r.target == self.sight.target and r.started_at == recovery.detected_at for r in remedies)

    def _is_counted_elsewhere(self, incident: Incident, recovery: Recovery) -> bool:
        mine = (r for r in incident.status.remedies if r.started_at == recovery.detected_at)
        return any(r.via.startswith("counted in ") for r in mine)

    def _open_gang_incident(self, recovery: Recovery) -> None:
        assert recovery.detected_at is not None
        detected = to_seconds(recovery.detected_at)
        if recovery.reason == NODE_LOST or recovery.cause is Cause.DEVICE:
            wait = self.times.look_back + (self.times.hold_down if recovery.reason == NODE_LOST else 0.0)
            if self.now < detected + wait:
                self.looks.append(detected + wait)  # its own incident is about to be opened
                return
        if self.now > detected + TOO_OLD_S and not is_incident_recovery_under_way(recovery, self.sight.job):
            return
        subject = gang_subject(self.sight.namespace, self.sight.gang)
        past = incidents_of(self._all_incidents(), subject)
        home = next((i for i in past if self.status[i.name].phase is not IncidentPhase.CLOSED), None)
        if home is None:
            name = incident_name(subject, recovery.detected_at)
            home = next((i for i in past if i.name == name), None)  # closed within a second: it is noted there
            if home is None:
                home = self.fresh[name] = blank_incident(subject, recovery.detected_at)
                self.status[name] = home.status
        self._record_interruption(home, recovery, "")

    # -- what is written --------------------------------------------------------------------------------------------

    def _record_interruption(self, incident: Incident, recovery: Recovery, counted_in: str) -> None:
        subject, status = incident.spec.subject, self.status[incident.name]
        is_own = subject.kind is SubjectKind.GANG
        if is_own and status.outcome is None:
            status = self._begun_gang_status(status, recovery)
        record = workload_record(recovery, self.sight.target, self.sight.job, counted_in)
        status = incident_with_workload_remedy(status, record)
        status = with_affected(
            status, _affected_seats(self.sight, recovery, None if is_own else (subject.node, subject.device))
        )
        if is_own and status.outcome is None:
            status = with_evidence(
                status, [*_interruption_evidence(self.sight, recovery), *self._exit_evidence(recovery)]
            )
        elif not is_own:
            status = with_evidence(status, _seat_exit_evidence(self.sight, recovery, subject.node, subject.device))
        self.status[incident.name] = status

    def _begun_gang_status(self, status: IncidentStatus, recovery: Recovery) -> IncidentStatus:
        newest = status.opened_at is None or not any(
            r.started_at is not None and recovery.detected_at is not None and r.started_at > recovery.detected_at
            for r in status.remedies
        )
        if not newest:
            return status
        return msgspec.structs.replace(
            status,
            opened_at=status.opened_at or to_time(self.now),
            first_signal_at=status.first_signal_at or recovery.signal_at or recovery.detected_at,
            verdict=IncidentVerdict(
                state=DeviceState.UNKNOWN,
                reason=recovery.reason,
                message=recovery.message,
                source="gang",
                cause=recovery.cause.value,
            ),
        )

    def _exit_evidence(self, recovery: Recovery) -> list[Evidence]:
        pods = {f"{self.sight.namespace}/{pod}" for pod in recovery.members}
        return [e for e in self.sight.exits if e.pod in pods]

    def _merge_into(self, home: Incident, into: Incident) -> None:
        status = self.status[home.name]
        if status.outcome is IncidentOutcome.MERGED:
            return
        merged = closed_status(status, IncidentOutcome.MERGED, f"Explained by {into.name}.", self.now)
        self.status[home.name] = msgspec.structs.replace(merged, part_of=into.name, lost_gpu_hours=0.0)
        target = self.status[into.name]
        for record in status.remedies:
            target = incident_with_workload_remedy(target, record)
        target = with_evidence(target, status.evidence)
        if status.first_signal_at is not None and target.first_signal_at is not None:
            first = min(status.first_signal_at, target.first_signal_at)
            target = msgspec.structs.replace(target, first_signal_at=first)
        if home.name not in target.parts:
            target = msgspec.structs.replace(target, parts=[*target.parts, home.name])
        self.status[into.name] = target

    # -- the end of a gang's own ------------------------------------------------------------------------------------

    def _conclude_gang(self, incident: Incident, status: IncidentStatus) -> IncidentStatus:
        if status.phase is IncidentPhase.CLOSED:
            return status
        job, target = self.sight.job, self.sight.target
        if incident.spec.dismiss:
            return closed_status(status, IncidentOutcome.DISMISSED, f"Dismissed: {incident.spec.dismiss}", self.now)
        if status.opened_at is None:
            status = msgspec.structs.replace(
                status, opened_at=incident.metadata.creation_timestamp or to_time(self.now)
            )
        if job is None:
            text = f"{target} was deleted before it got past the fault."
            return closed_status(status, IncidentOutcome.NOT_CURED, text, self.now)
        if job.status.phase == "Failed":
            text = f"{target} failed: {job.status.reason}: {job.status.message}"
            return closed_status(status, IncidentOutcome.NOT_CURED, text, self.now)
        if job.status.phase == "Succeeded":
            return closed_status(status, IncidentOutcome.CURED, f"{target} succeeded.", self.now)
        mine = {r.started_at for r in status.remedies if r.target == target}
        told = [r for r in job.status.recoveries if r.detected_at in mine]
        if not told:
            text = f"{target} went on. Its record no longer shows what interrupted it."
            return closed_status(status, IncidentOutcome.FALSE_ALARM, text, self.now)
        last = told[-1]
        step = max(r.step_at_fault for r in told)
        # Another interruption may have come before its first step; then the gang got on with that one's attempt.
        back = next(
            (r for r in job.status.recoveries if r.attempt >= last.attempt and r.first_step_at is not None), None
        )
        if back is not None and job.status.progress.step > step:
            text = f"{target} got past step {step}, where it failed, in attempt {back.attempt}."
            return closed_status(status, IncidentOutcome.CURED, text, self.now)
        if back is not None:
            phase, text = IncidentPhase.VERIFYING, f"{target} runs again. This closes when it is past step {step}."
        else:
            phase = IncidentPhase.OPEN
            waits = max(last.attempt, job.status.attempt)
            text = f"{target} was interrupted ({status.verdict.reason}). Waits for the first step of attempt {waits}"
            text += f": {job.status.message}" if job.status.message else "."
        return msgspec.structs.replace(status, phase=phase, message=text)


def explaining_incidents(recovery: Recovery, incidents: Iterable[Incident], times: IncidentTimes) -> list[Incident]:
    """Incidents of devices and nodes that the interruption is the doing of, the likeliest first."""
    assert recovery.detected_at is not None
    detected = to_seconds(recovery.detected_at)
    found: list[tuple[tuple[object, ...], Incident]] = []
    for incident in incidents:
        subject, status = incident.spec.subject, incident.status
        seats = [s for s in recovery.seats if s.node == subject.node]
        if not seats or status.first_signal_at is None:
            continue
        began = to_seconds(status.first_signal_at)
        if subject.kind is SubjectKind.NODE:
            is_it = recovery.reason == NODE_LOST and status.verdict.reason == NODE_LOST
        elif subject.kind is SubjectKind.DEVICE and any(_holds_device(s.devices, subject.device) for s in seats):
            is_it = _device_incident_explains(recovery, status, began, times)
        else:
            continue
        over = status.closed_at is not None and detected > to_seconds(status.closed_at) + times.look_back
        if is_it and not over and began <= detected + STANDING_S:
            same = recovery.reason == status.verdict.reason
            found.append(((not same, abs(began - detected), incident.name), incident))
    return [incident for _, incident in sorted(found, key=lambda pair: pair[0])]


def _device_incident_explains(recovery: Recovery, status: IncidentStatus, began: float, times: IncidentTimes) -> bool:
    """A device that was broken when the gang stopped, or was reported broken right after."""
    assert recovery.detected_at is not None
    detected = to_seconds(recovery.detected_at)
    if recovery.cause in (Cause.DEVICE, Cause.MAINTENANCE):
        return began <= detected + times.look_back
    if status.verdict.state is DeviceState.DEGRADED:
        return False
    stood_still = recovery.first_step_at is None or to_seconds(recovery.first_step_at) >= began
    window = STANDING_S if stood_still else times.look_back
    return -times.look_back <= began - detected <= window


def _holds_device(devices: Sequence[str], device: str) -> bool:
    """Of a slice the device is named first: `gpu-0` and `gpu-0/3g.40gb-0`, or `gpu-0-mig-1`."""
    return any(d == device or d.startswith((f"{device}/", f"{device}-", f"{device}:")) for d in devices)


def _affected_seats(sight: GangIncidentView, recovery: Recovery, place: tuple[str, str] | None) -> list[Affected]:
    """Those that failed; for a device or node only who sat there."""
    return [
        Affected(
            pod=f"{sight.namespace}/{seat.pod}",
            uid=seat.uid,
            node=seat.node,
            devices=[place[1]] if place is not None and place[1] else list(seat.devices),
            gang=sight.gang,
            rank=seat.rank,
            exit_code=recovery.exit_codes.get(seat.pod),
        )
        for seat in recovery.seats
        if place is None or (seat.node == place[0] and (not place[1] or _holds_device(seat.devices, place[1])))
    ]


def _seat_exit_evidence(sight: GangIncidentView, recovery: Recovery, node: str, device: str) -> list[Evidence]:
    """Processes on that device or node that ended by themselves, as the gang's own record has them."""
    return [
        Evidence(
            kind="exit",
            message=f"{seat.pod}: its process ended with code {recovery.exit_codes[seat.pod]}.",
            time=recovery.signal_at or recovery.detected_at,
            source="gang",
            code=recovery.reason,
            node=seat.node,
            pod=f"{sight.namespace}/{seat.pod}",
            exit_code=recovery.exit_codes[seat.pod],
            rank=seat.rank,
        )
        for seat in recovery.seats
        if seat.pod in recovery.exit_codes and seat.node == node and (not device or _holds_device(seat.devices, device))
    ]


def _interruption_evidence(sight: GangIncidentView, recovery: Recovery) -> list[Evidence]:
    first = recovery.seats[0] if recovery.seats else None
    pod = recovery.members[0] if recovery.members else ""
    more = f" ({len(recovery.members) - 1} more ranks stopped with it)" if len(recovery.members) > 1 else ""
    code = recovery.exit_codes.get(pod)
    return [
        Evidence(
            kind="exit",
            message=f"{recovery.message or recovery.reason}{more}",
            time=recovery.signal_at or recovery.detected_at,
            source="gang",
            code=recovery.reason,
            node=first.node if first is not None else "",
            pod=f"{sight.namespace}/{pod}" if pod else "",
            exit_code=code,
            rank=first.rank if first is not None else None,
        )
    ]
