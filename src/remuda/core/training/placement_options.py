"""What the cluster could give a gang right now, tried on a snapshot, and what standing still costs it.

A pod of the gang that is on its way out gives its devices back when its processes are gone, so they count as room, unless
its node is dead, it does not stop, or it has been told to go for too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

import msgspec

from remuda.api.codec import from_wire
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds
from remuda.api.number_bounds import MAX_SECONDS
from remuda.api.training import Loan, Remedy, Role, TrainingJob, gpus_in_role_spec
from remuda.core.gang.gang_remedy import MemberFault, PlacementOptions, RemedyCosts, root_gang_fault
from remuda.core.gang.pod_view import PodView
from remuda.core.scheduling.explain import explain_not_placed
from remuda.core.scheduling.first_fit import count_fitting_pods
from remuda.core.scheduling.gang_placement import place_gang_members
from remuda.core.scheduling.placement_request import GangAsk, PodAsk, placement_ask_of_pod
from remuda.core.state.pod_requests import Amounts, requests_of_pod
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Transaction
from remuda.core.training.faults import NOT_STOPPED
from remuda.core.training.job_pods import build_job_pod
from remuda.core.training.lent_spares import (
    borrower_grace_s,
    borrower_holdings,
    recallable_loans,
    recalled_spare_holdings,
)
from remuda.core.training.planning_context import PlanningContext

NEW_POD_S = RemedyCosts(0, 0, 0.0).new_pod_s
UNKNOWN_REST_S = 3600.0  # that a job which does not say its steps is taken to go on for

Held = tuple[str, tuple[str, ...], Amounts]  # node, device ids, requests


def training_options_in_domain(
    ctx: PlanningContext, faults: Sequence[MemberFault], shrinks_to: int = 0
) -> PlacementOptions:
    """What there is for the pods that the faults cost: a spare each, room beside the gang, or a domain for all of it.

    `shrinks_to`: ranks the gang may go on with instead.

    A spare that is placed but not parked yet counts as room: it sits there already and takes the rank when it is up.
    """
    needed = Counter(_roles_to_move(ctx, faults))
    free = ctx.free(lasting=any(f.planned for f in faults))
    parked = Counter(v.role for v in free if v.is_parked)
    coming = Counter(v.role for v in free if v.is_bound and not v.is_parked)
    after_parked = needed - parked
    after_coming = after_parked - coming
    roles = {role.name: role for role in ctx.spec.roles}
    asks = [trial_ask_for_training_role(ctx, roles[name]) for name in after_coming.elements() if name in roles]
    lost = {f.uid for f in faults if f.lost}
    unstoppable = {f.uid for f in faults if f.reason == NOT_STOPPED}
    transaction, why = _room_in_domain(ctx, snapshot_without_training_leavers(ctx, lost, unstoppable), asks)
    first = ctx.spec.roles[0].name
    lent = recallable_loans(ctx, first)[: after_parked[first]]
    return PlacementOptions(
        spares=needed.total() - after_parked.total(),
        room_in_domain=after_parked.total() - after_coming.total() + transaction,
        domain=ctx.status.placement.domain,
        gang_fits=domain_for_training_job(ctx, unstoppable),
        why_no_room=why,
        shrinks_to=shrinks_to,
        lent=len(lent),
        recall_s=max((borrower_grace_s(ctx, loan) for loan in lent), default=0.0),
    )


def has_training_domain_room_for(
    ctx: PlanningContext, waiting: Iterable[PodView], recalled: Iterable[Loan] = ()
) -> bool:
    """Whether the gang's own domain can take those pods, now or once pods on their way out are gone. `recalled`: loans that
    would be called back as well."""
    asks = [placement_ask_of_pod(v.pod) for v in waiting]
    picture = snapshot_without_training_leavers(ctx, set(), set()).releasing(
        held for loan in recalled for held in borrower_holdings(ctx, loan)
    )
    return _room_in_domain(ctx, picture, asks)[0] >= len(asks)


def domain_for_training_job(
    ctx: PlanningContext, unstoppable: Set[str] = frozenset(), *, elsewhere: bool = False
) -> str | None:
    """A domain that would take the whole gang if it let go of all it holds; another than its own if there is one."""
    where = ctx.status.placement
    picture = ctx.snapshot.releasing(_held_by_pods(v for v in ctx.views.values() if _pod_lets_go(ctx, v, unstoppable)))
    members = tuple(ask for role in ctx.spec.roles for ask in [trial_ask_for_training_role(ctx, role)] * role.replicas)
    ask = GangAsk(ctx.job.name, members, topology=where.topology)
    pictures = [picture.outside(where.topology, where.domain)] if where.domain else []
    if not elsewhere:
        pictures.append(picture)
    for tried in pictures:
        placed = place_gang_members(tried, ask)
        if not isinstance(placed, Refusal):
            return tried.domain_of(placed[0].node, where.topology)
    return None


def training_job_remedy_costs(
    ctx: PlanningContext, faults: Sequence[MemberFault], *, rollback_s: float | None = None
) -> RemedyCosts:
    """`rollback_s`: when it is known otherwise than by the time since the last checkpoint."""
    since = ctx.fresh.checkpoint_time or ctx.status.started_at
    if rollback_s is None:
        rollback_s = max(0.0, ctx.now - to_seconds(since)) if since else 0.0
    roles = {role.name: role for role in ctx.spec.roles}
    moved = sum(gpus_in_role_spec(roles[name]) for name in _roles_to_move(ctx, faults) if name in roles)
    return RemedyCosts(
        gang_gpus=ctx.gang_gpus or len(ctx.ranks),
        moved_gpus=moved or 1,
        rollback_s=rollback_s,
        pull_s=max(0.0, measured_replacement_s(ctx) - NEW_POD_S),
        expected_s=expected_training_job_s(ctx),
        same_pod_failures=training_pod_failures_in_row(ctx, worst_training_pod_fault(ctx, faults)),
    )


def measured_replacement_s(ctx: PlanningContext) -> float:
    """How long the gang's newest replacement took to reach the barrier, image and all; 0 when there was none yet."""
    for record in reversed(ctx.status.recoveries):
        if record.remedy in (Remedy.REPLACE_POD, Remedy.REPLACE_GANG) and record.stopped_at and record.opened_at:
            return max(0.0, to_seconds(record.opened_at) - to_seconds(record.stopped_at))
    return 0.0


def expected_training_job_s(ctx: PlanningContext) -> float:
    """How long the job goes on: by its steps when it says how many, else as long as it has run, an hour at least."""
    if ctx.spec.total_steps and ctx.fresh.step_seconds:
        left_s = (ctx.spec.total_steps - ctx.fresh.step) * ctx.fresh.step_seconds
        return min(max(0.0, left_s), MAX_SECONDS)
    started = ctx.status.started_at
    return max(UNKNOWN_REST_S, ctx.now - to_seconds(started) if started else 0.0)


def worst_training_pod_fault(ctx: PlanningContext, faults: Sequence[MemberFault]) -> MemberFault:
    """The fault of the pod that failed most often without progress in between: replacing another one cures nothing."""
    most = max(training_pod_failures_in_row(ctx, f) for f in faults)
    return root_gang_fault([f for f in faults if training_pod_failures_in_row(ctx, f) == most])


def training_pod_failures_in_row(ctx: PlanningContext, fault: MemberFault) -> int:
    """Earlier interruptions by the same pod at a step that the gang has not got past since."""
    step = ctx.fresh.step
    return sum(1 for r in ctx.status.recoveries if fault.pod in r.members and r.step_at_fault >= step)


def _roles_to_move(ctx: PlanningContext, faults: Sequence[MemberFault]) -> list[str]:
    """Roles of the pods that would be replaced: all lost ones, else the one that keeps failing."""
    uids = [f.uid for f in faults if f.lost] or [worst_training_pod_fault(ctx, faults).uid]
    role_of = {m.uid: m.role for m in ctx.status.members}
    return [role_of.get(uid, "") for uid in uids]


def _room_in_domain(ctx: PlanningContext, picture: Snapshot, asks: Sequence[PodAsk]) -> tuple[int, str]:
    """How many of those pods fit into the gang's domain, and the sentence that says so when not all do."""
    where = ctx.status.placement
    nodes = picture.domains(where.topology).get(where.domain, [])
    fits = count_fitting_pods(picture, nodes, asks, Transaction.of(picture))
    if fits == len(asks):
        return fits, ""
    return fits, explain_not_placed(picture, asks, where.topology, where.domain, Transaction.of(picture)).message


def snapshot_without_training_leavers(ctx: PlanningContext, lost: Set[str], unstoppable: Set[str]) -> Snapshot:
    """The picture once the gang's pods that leave, and borrowers that were called back, are gone."""
    leaving = lost | ctx.retired_uids | ctx.deletions.keys()
    views = (v for v in ctx.views.values() if v.pod.is_deleting or v.uid in leaving)
    gang = _held_by_pods(v for v in views if _pod_lets_go(ctx, v, unstoppable))
    return ctx.snapshot.releasing([*gang, *recalled_spare_holdings(ctx)])


def snapshot_freed_by_training_pods(ctx: PlanningContext, views: Iterable[PodView], unstoppable: Set[str]) -> Snapshot:
    """The picture once those pods have given back what they hold, as far as they will."""
    return ctx.snapshot.releasing(_held_by_pods(v for v in views if _pod_lets_go(ctx, v, unstoppable)))


def _pod_lets_go(ctx: PlanningContext, view: PodView, unstoppable: Set[str]) -> bool:
    never = unstoppable | {r.uid for r in ctx.status.retired if r.reason == NOT_STOPPED}
    return view.is_bound and not view.node_dead and not view.is_stuck(ctx.now) and view.uid not in never


def _held_by_pods(views: Iterable[PodView]) -> list[Held]:
    return [(v.node, v.devices, requests_of_pod(v.pod)) for v in views]


def trial_ask_for_training_role(ctx: PlanningContext, role: Role) -> PodAsk:
    return msgspec.structs.replace(role_pod_ask(ctx.job, role), needs_agent=ctx.on_kubelets)


def role_pod_ask(job: TrainingJob, role: Role) -> PodAsk:
    """What any pod of the role asks for."""
    return placement_ask_of_pod(from_wire(Pod, build_job_pod(job, role, 0, spare=False, domain="")))
