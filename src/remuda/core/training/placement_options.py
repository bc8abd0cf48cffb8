"""What the cluster could give a gang right now, tried on a snapshot, and what standing still costs it.

A pod of the gang that is on its way out gives its devices back when its processes are gone, so they count as room, unless
its node is dead, it does not stop, or it has been told to go for too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from remuda.api.codec import from_wire
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds
from remuda.api.training import Loan, Remedy, Role
from remuda.api.validation.validate import gpus_of
from remuda.core.gang.gang_remedy import Costs, Fault, Offer, root_fault
from remuda.core.gang.pod_view import PodView
from remuda.core.scheduling.explain import explain
from remuda.core.scheduling.first_fit import count_fit
from remuda.core.scheduling.gang_placement import place_members
from remuda.core.scheduling.placement_request import GangAsk, PodAsk, ask_of
from remuda.core.state.pod_requests import Amounts, requests_of
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Room
from remuda.core.training.faults import NOT_STOPPED
from remuda.core.training.job_pods import build_pod
from remuda.core.training.lent_spares import coming_back, grace_s, held_by, recallable
from remuda.core.training.planning_context import Look

NEW_POD_S = Costs(0, 0, 0.0).new_pod_s
UNKNOWN_REST_S = 3600.0  # that a job which does not say its steps is taken to go on for

Held = tuple[str, tuple[str, ...], Amounts]  # node, device ids, requests


def offer_for(look: Look, faults: Sequence[Fault], shrinks_to: int = 0) -> Offer:
    """What there is for the pods that the faults cost: a spare each, room beside the gang, or a domain for all of it.

    `shrinks_to`: ranks the gang may go on with instead.

    A spare that is placed but not parked yet counts as room: it sits there already and takes the rank when it is up.
    """
    needed = Counter(_roles_to_move(look, faults))
    free = look.free(lasting=any(f.planned for f in faults))
    parked = Counter(v.role for v in free if v.is_parked)
    coming = Counter(v.role for v in free if v.is_bound and not v.is_parked)
    after_parked = needed - parked
    after_coming = after_parked - coming
    roles = {role.name: role for role in look.spec.roles}
    asks = [trial(look, roles[name]) for name in after_coming.elements() if name in roles]
    lost = {f.uid for f in faults if f.lost}
    unstoppable = {f.uid for f in faults if f.reason == NOT_STOPPED}
    room, why = _room(look, with_leavers(look, lost, unstoppable), asks)
    first = look.spec.roles[0].name
    lent = recallable(look, first)[: after_parked[first]]
    return Offer(
        spares=needed.total() - after_parked.total(),
        room_in_domain=after_parked.total() - after_coming.total() + room,
        domain=look.status.placement.domain,
        gang_fits=domain_for_gang(look, unstoppable),
        why_no_room=why,
        shrinks_to=shrinks_to,
        lent=len(lent),
        recall_s=max((grace_s(look, loan) for loan in lent), default=0.0),
    )


def has_room_for(look: Look, waiting: Iterable[PodView], recalled: Iterable[Loan] = ()) -> bool:
    """Whether the gang's own domain can take those pods, now or once pods on their way out are gone. `recalled`: loans that
    would be called back as well."""
    asks = [ask_of(v.pod) for v in waiting]
    picture = with_leavers(look, set(), set()).releasing(held for loan in recalled for held in held_by(look, loan))
    return _room(look, picture, asks)[0] >= len(asks)


def domain_for_gang(look: Look, unstoppable: Set[str] = frozenset(), *, elsewhere: bool = False) -> str | None:
    """A domain that would take the whole gang if it let go of all it holds; another than its own if there is one."""
    where = look.status.placement
    picture = look.snapshot.releasing(_held(v for v in look.views.values() if _lets_go(look, v, unstoppable)))
    members = tuple(ask for role in look.spec.roles for ask in [trial(look, role)] * role.replicas)
    ask = GangAsk(look.job.name, members, topology=where.topology)
    pictures = [picture.outside(where.topology, where.domain)] if where.domain else []
    if not elsewhere:
        pictures.append(picture)
    for tried in pictures:
        placed = place_members(tried, ask)
        if not isinstance(placed, Refusal):
            return tried.domain_of(placed[0].node, where.topology)
    return None


def costs_of(look: Look, faults: Sequence[Fault], *, rollback_s: float | None = None) -> Costs:
    """`rollback_s`: when it is known otherwise than by the time since the last checkpoint."""
    since = look.fresh.checkpoint_time or look.status.started_at
    if rollback_s is None:
        rollback_s = max(0.0, look.now - to_seconds(since)) if since else 0.0
    roles = {role.name: role for role in look.spec.roles}
    moved = sum(gpus_of(roles[name]) for name in _roles_to_move(look, faults) if name in roles)
    return Costs(
        gang_gpus=look.gang_gpus or len(look.ranks),
        moved_gpus=moved or 1,
        rollback_s=rollback_s,
        pull_s=max(0.0, measured_new_pod_s(look) - NEW_POD_S),
        expected_s=expected_s(look),
        same_pod_failures=failures_in_row(look, worst_fault(look, faults)),
    )


def measured_new_pod_s(look: Look) -> float:
    """How long the gang's newest replacement took to reach the barrier, image and all; 0 when there was none yet."""
    for record in reversed(look.status.recoveries):
        if record.remedy in (Remedy.REPLACE_POD, Remedy.REPLACE_GANG) and record.stopped_at and record.opened_at:
            return max(0.0, to_seconds(record.opened_at) - to_seconds(record.stopped_at))
    return 0.0


def expected_s(look: Look) -> float:
    """How long the job goes on: by its steps when it says how many, else as long as it has run, an hour at least."""
    if look.spec.total_steps and look.fresh.step_seconds:
        return max(0.0, (look.spec.total_steps - look.fresh.step) * look.fresh.step_seconds)
    started = look.status.started_at
    return max(UNKNOWN_REST_S, look.now - to_seconds(started) if started else 0.0)


def worst_fault(look: Look, faults: Sequence[Fault]) -> Fault:
    """The fault of the pod that failed most often without progress in between: replacing another one cures nothing."""
    most = max(failures_in_row(look, f) for f in faults)
    return root_fault([f for f in faults if failures_in_row(look, f) == most])


def failures_in_row(look: Look, fault: Fault) -> int:
    """Earlier interruptions by the same pod at a step that the gang has not got past since."""
    step = look.fresh.step
    return sum(1 for r in look.status.recoveries if fault.pod in r.members and r.step_at_fault >= step)


def _roles_to_move(look: Look, faults: Sequence[Fault]) -> list[str]:
    """Roles of the pods that would be replaced: all lost ones, else the one that keeps failing."""
    uids = [f.uid for f in faults if f.lost] or [worst_fault(look, faults).uid]
    role_of = {m.uid: m.role for m in look.status.members}
    return [role_of.get(uid, "") for uid in uids]


def _room(look: Look, picture: Snapshot, asks: Sequence[PodAsk]) -> tuple[int, str]:
    """How many of those pods fit into the gang's domain, and the sentence that says so when not all do."""
    where = look.status.placement
    nodes = picture.domains(where.topology).get(where.domain, [])
    fits = count_fit(picture, nodes, asks, Room.of(picture))
    if fits == len(asks):
        return fits, ""
    return fits, explain(picture, asks, where.topology, where.domain, Room.of(picture)).message


def with_leavers(look: Look, lost: Set[str], unstoppable: Set[str]) -> Snapshot:
    """The picture once the gang's pods that leave, and borrowers that were called back, are gone."""
    leaving = lost | look.retired_uids | look.doomed.keys()
    views = (v for v in look.views.values() if v.pod.is_deleting or v.uid in leaving)
    gang = _held(v for v in views if _lets_go(look, v, unstoppable))
    return look.snapshot.releasing([*gang, *coming_back(look)])


def released(look: Look, views: Iterable[PodView], unstoppable: Set[str]) -> Snapshot:
    """The picture once those pods have given back what they hold, as far as they will."""
    return look.snapshot.releasing(_held(v for v in views if _lets_go(look, v, unstoppable)))


def _lets_go(look: Look, view: PodView, unstoppable: Set[str]) -> bool:
    never = unstoppable | {r.uid for r in look.status.retired if r.reason == NOT_STOPPED}
    return view.is_bound and not view.node_dead and not view.is_stuck(look.now) and view.uid not in never


def _held(views: Iterable[PodView]) -> list[Held]:
    return [(v.node, v.devices, requests_of(v.pod)) for v in views]


def trial(look: Look, role: Role) -> PodAsk:
    return ask_of(from_wire(Pod, build_pod(look.job, role, 0, spare=False, domain="")))
