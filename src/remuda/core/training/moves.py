"""Members that could go on but had better go elsewhere: their device is slow, or their node is about to go.

Nothing is broken, so nothing is hurried. A move waits for a checkpoint, or asks for one, and is made only when there is somewhere
to go: a gang that stops for a place it does not find has lost more than a slow device costs it. What comes out are faults like
any other (`planned`), so that remedy, budget, record and barrier are those of every interruption.

A slow device (row 80): the job's policy says carry on, swap at the next checkpoint, or swap now. At a checkpoint it is swapped
when that pays: slow-down x the time the job still has, against the price of the swap. A checkpoint is asked for once waiting for
the next one has cost as much as making one does. Several are swapped in one stop. A gang that is slow without anybody to blame,
or degraded as a whole for one reason, has no slow device, and is left be.

Slow ranks that stay are named in the condition SlowRanks, with why and what would help. A condition is a transition: as long as
the same ranks stay for the same reason its words stay, too, although prices and room change with every look.

A node that is about to go (row 76): the gang is asked for a checkpoint at once, and the members there are moved when it is made
or when the time left is just enough for the move. Without room they stay as long as the node does, with a checkpoint as late as
can be; their end is then charged to whoever takes the node, not to the infrastructure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from remuda.api.conditions import find_condition, with_condition
from remuda.api.devices import Verdict
from remuda.api.meta import Condition, to_seconds, to_seconds_or, to_time
from remuda.api.training import Cause, DegradedPolicy, Member
from remuda.core.gang.budgets import charge_budgets, exhausted_budget
from remuda.core.gang.gang_remedy import (
    ChosenRemedy,
    MemberFault,
    RemedyCosts,
    can_gang_members_move,
    choose_gang_remedy,
    gang_price_of_staying_slow,
)
from remuda.core.gang.pod_view import OPEN
from remuda.core.health.slow_ranks import SLOW_RANK
from remuda.core.state.leaving_nodes import NodeLeavingState
from remuda.core.training.checkpoint_handshake import (
    begin_checkpoint_handshake,
    is_checkpoint_fresh,
    may_stop_training_job,
    open_checkpoint_request,
    usual_checkpoint_wait_s,
)
from remuda.core.training.placement_options import training_job_remedy_costs
from remuda.core.training.planning_context import PlanningContext, SlowRankStay
from remuda.core.training.segments import placement_options_for

SLOW_RANKS = "SlowRanks"  # condition
CARRY_ON = "CarryOn"
NO_ROOM = "NoRoomToMove"
NO_BUDGET = "BudgetSpent"
NOT_WORTH_IT = "SwapCostsMore"
WAITS = "WaitsForCheckpoint"
ALL_ALIKE = "AllAlike"
MOST_NAMED = 3

GANG_SLOW = "GangSlow"  # a verdict about nobody: no device to swap
SETTLE_S = 1.0  # that a gang runs before it is moved
MOVE_S = 30.0  # stop, start elsewhere, go on: what a move needs of the time left
CHECKPOINT_S = 5.0  # what a checkpoint costs the gang when the job does not say
URGENT_S = 5.0  # what a checkpoint may take when the node may go at any moment

_FACTOR = re.compile(r"(\d+(?:\.\d+)?) ?(?:x|times|×)")


def plan_member_moves(ctx: PlanningContext) -> list[MemberFault]:
    """The moves that are to be made now. May ask for a checkpoint instead."""
    last = ctx.last_recovery
    if ctx.status.barrier != OPEN or (last is not None and last.first_step_at is None):
        return []  # it has not come to run: what is wrong with that comes first
    if ctx.now < _job_settled_at(ctx):
        return []
    moves = _move_off_leaving_nodes(ctx) or _swap_slow_ranks(ctx)
    if moves:  # a spare whose node is about to go would be moved again at once
        for view in ctx.free():
            if view.leaving is not None:
                ctx.delete_pod(view.uid)
    return moves


def _job_settled_at(ctx: PlanningContext) -> float:
    """From when on a gang that was let go may be stopped again for something that can wait."""
    last = ctx.last_recovery
    known = (ctx.status.started_at, ctx.status.attempt_raised_at, last.opened_at if last is not None else None)
    return max((to_seconds(at) for at in known if at is not None), default=ctx.now) + SETTLE_S


def next_move_at(ctx: PlanningContext) -> float | None:
    """When time alone makes a move due."""
    if ctx.status.barrier != OPEN:
        return None
    found = [at for _, v in slow_training_members(ctx) if (at := _checkpoint_asked_at(ctx, v)) > ctx.now]
    calls = (_last_checkpoint_call_at(ctx, where) for _, where in members_on_leaving_nodes(ctx))
    found += [at for at in calls if at is not None and at > ctx.now]
    if (found or members_on_leaving_nodes(ctx) or slow_training_members(ctx)) and ctx.now < _job_settled_at(ctx):
        found.append(_job_settled_at(ctx))
    return min(found, default=None)


# -- nodes that go ----------------------------------------------------------------------------------------------------


def members_on_leaving_nodes(ctx: PlanningContext) -> list[tuple[Member, NodeLeavingState]]:
    found = ((m, ctx.views.get(m.uid)) for m in ctx.status.members)
    return [(m, v.leaving) for m, v in found if v is not None and v.leaving is not None]


def _move_off_leaving_nodes(ctx: PlanningContext) -> list[MemberFault]:
    going = members_on_leaving_nodes(ctx)
    if not going:
        return []
    faults = [_leaving_node_fault(ctx, member, where) for member, where in going]
    ends = [where.until for _, where in going if where.until is not None]
    left = min(ends, default=ctx.now) - ctx.now
    if _is_move_over_budget(ctx, faults) or not can_gang_members_move(faults, placement_options_for(ctx, faults)):
        # Nowhere to go yet. What can be saved is saved as late as possible.
        if (
            0.0 < left <= usual_checkpoint_wait_s(ctx) + MOVE_S
            and open_checkpoint_request(ctx) is None
            and not is_checkpoint_fresh(ctx)
        ):
            begin_checkpoint_handshake(ctx, faults[0].reason, left)
        return []
    wait = (
        usual_checkpoint_wait_s(ctx) if left > usual_checkpoint_wait_s(ctx) + MOVE_S else max(URGENT_S, left - MOVE_S)
    )
    return faults if may_stop_training_job(ctx, faults[0].reason, wait) else []


def _last_checkpoint_call_at(ctx: PlanningContext, where: NodeLeavingState) -> float | None:
    return None if where.until is None else where.until - usual_checkpoint_wait_s(ctx) - MOVE_S


def _leaving_node_fault(ctx: PlanningContext, member: Member, where: NodeLeavingState) -> MemberFault:
    text = f"Rank {member.rank} ({member.pod}) leaves {member.node}: {where.message}"
    return MemberFault(member.pod, member.uid, where.cause, where.reason, text, True, ctx.now, planned=True)


# -- slow devices -----------------------------------------------------------------------------------------------------


def slow_training_members(ctx: PlanningContext) -> list[tuple[Member, Verdict]]:
    slow = _degraded_members(ctx)
    return [] if _are_all_ranks_slow(ctx, slow) else slow


def _degraded_members(ctx: PlanningContext) -> list[tuple[Member, Verdict]]:
    found = ((m, ctx.views.get(m.uid)) for m in ctx.status.members)
    slow = [(m, v.slow_device) for m, v in found if v is not None and v.slow_device is not None]
    return [(m, verdict) for m, verdict in slow if verdict.reason != GANG_SLOW]


def _are_all_ranks_slow(ctx: PlanningContext, slow: Sequence[tuple[Member, Verdict]]) -> bool:
    """All of a gang for one reason that is not a comparison with its peers: a power cap, a hot row. Nobody is to blame."""
    reasons = {verdict.reason for _, verdict in slow}
    return len(slow) > 1 and len(slow) == len(ctx.status.members) and len(reasons) == 1 and SLOW_RANK not in reasons


def training_rank_slowness(ctx: PlanningContext, verdict: Verdict) -> float:
    """How many times slower its ranks work; 1 when the verdict is about something else."""
    if verdict.reason != SLOW_RANK:
        return 1.0
    found = _FACTOR.search(verdict.message)
    return max(1.0, float(found.group(1))) if found else max(1.0, ctx.spec.failure.straggler.factor)


def _swap_slow_ranks(ctx: PlanningContext) -> list[MemberFault]:
    policy = ctx.spec.failure.straggler.policy
    slow = slow_training_members(ctx)
    if not slow or policy is DegradedPolicy.CARRY_ON:
        ctx.stays = _stay_without_swap(ctx)
        return []
    slow.sort(key=lambda pair: (-training_rank_slowness(ctx, pair[1]), pair[0].rank))
    worst = slow[0]
    every = [_slow_rank_fault(ctx, *pair) for pair in slow]
    # One stop for all of them; when there is not room for all, for the worst.
    faults = next(
        (f for f in (every, every[:1]) if can_gang_members_move(f, placement_options_for(ctx, f), whole=False)), []
    )
    if not faults:
        full = placement_options_for(ctx, every[:1]).why_no_room
        why = f"No spare is ready, and there is no room near the gang{': ' if full else ''}{full.rstrip('.')}."
        _let_slow_ranks_stay(ctx, NO_ROOM, why, "Give the job a spare (spec.spares), or free a node of its domain.")
        return []
    if _is_move_over_budget(ctx, faults):
        why = "The job has used up its budget for device failures: a swap would end it."
        _let_slow_ranks_stay(ctx, NO_BUDGET, why, "Raise spec.failure.budgets.device.")
        return []
    if policy is DegradedPolicy.SWAP_NOW:
        return faults
    if not does_swap_pay(ctx, faults, training_rank_slowness(ctx, worst[1])):
        why = "A swap would cost more GPU-hours than going on like this until the job ends."
        _let_slow_ranks_stay(ctx, NOT_WORTH_IT, why, "To swap anyway, set spec.failure.straggler.policy to SwapNow.")
        return []
    if is_checkpoint_fresh(ctx):
        return faults
    why = "It will be swapped at the next checkpoint."
    _let_slow_ranks_stay(ctx, WAITS, why, "To swap at once, set spec.failure.straggler.policy to SwapNow.")
    if ctx.now >= _checkpoint_asked_at(ctx, worst[1]) and _may_ask_for_checkpoint(ctx):
        begin_checkpoint_handshake(ctx, faults[0].reason, usual_checkpoint_wait_s(ctx))
    return []


def _stay_without_swap(ctx: PlanningContext) -> SlowRankStay:
    """Nobody is slow, or nobody is to be swapped for it."""
    slow = [(m, verdict, training_rank_slowness(ctx, verdict)) for m, verdict in _degraded_members(ctx)]
    if not slow:
        return SlowRankStay()
    if not slow_training_members(ctx):
        why = f"All ranks are slow for the same reason ({slow[0][1].reason}): swapping devices would not help."
        return stay_of_slow_training_ranks(
            slow, ALL_ALIKE, why, "Check what they share: power, cooling, network (`remuda incidents`)."
        )
    why = "It stays, because spec.failure.straggler.policy is CarryOn."
    return stay_of_slow_training_ranks(slow, CARRY_ON, why, "To swap slow ranks, set it to SwapAtCheckpoint.")


def _let_slow_ranks_stay(ctx: PlanningContext, reason: str, why: str, fix: str) -> None:
    slow = [(m, verdict, training_rank_slowness(ctx, verdict)) for m, verdict in slow_training_members(ctx)]
    ctx.stays = stay_of_slow_training_ranks(sorted(slow, key=lambda one: (-one[2], one[0].rank)), reason, why, fix)


def _slow_rank_fault(ctx: PlanningContext, member: Member, verdict: Verdict) -> MemberFault:
    factor = training_rank_slowness(ctx, verdict)
    how = f"{factor:g} times slower than its peers" if factor > 1.0 else verdict.message or verdict.reason
    text = f"Rank {member.rank} ({member.pod}) on {member.node}, {verdict.device}: {how}."
    return MemberFault(
        member.pod, member.uid, Cause.DEVICE, verdict.reason or "DeviceDegraded", text, True, ctx.now, planned=True
    )


def does_swap_pay(ctx: PlanningContext, faults: Sequence[MemberFault], factor: float) -> bool:
    """Whether the swap at a checkpoint costs less than going on as it is."""
    choice, costs = swap_price_at_checkpoint(ctx, faults)
    return choice.price_gpu_hours < gang_price_of_staying_slow(costs, factor)


def swap_price_at_checkpoint(ctx: PlanningContext, faults: Sequence[MemberFault]) -> tuple[ChosenRemedy, RemedyCosts]:
    costs = training_job_remedy_costs(ctx, faults, rollback_s=0.0)
    return choose_gang_remedy(faults, placement_options_for(ctx, faults), costs), costs


def _checkpoint_asked_at(ctx: PlanningContext, verdict: Verdict) -> float:
    """When waiting for the next checkpoint has cost what asking for one costs."""
    lost_share = 1.0 - 1.0 / max(training_rank_slowness(ctx, verdict), 1.01)
    cost = ctx.spec.checkpoint.typical_seconds or CHECKPOINT_S
    raised = to_seconds_or(ctx.status.attempt_raised_at, ctx.now)
    since = to_seconds(verdict.since) if verdict.since is not None else raised
    return max(since, raised) + cost / lost_share


def _may_ask_for_checkpoint(ctx: PlanningContext) -> bool:
    """Not again in one attempt: a script that does not answer will not answer the next time either."""
    request = ctx.status.checkpoint_request
    return request is None or request.attempt != ctx.status.attempt or request.answered_at is not None


def _is_move_over_budget(ctx: PlanningContext, faults: Sequence[MemberFault]) -> bool:
    """A move that would end the job is no remedy."""
    used = charge_budgets(ctx.status.used, sorted({f.cause for f in faults}))
    return exhausted_budget(ctx.spec.failure.budgets, used) is not None


# -- slow ranks that stay, and why -------------------------------------------------------------------------------------


def stay_of_slow_training_ranks(
    slow: Sequence[tuple[Member, Verdict, float]], reason: str, why: str, fix: str
) -> SlowRankStay:
    """`slow`: members, what is said of their device, and how many times slower they are."""
    named = [_slow_rank_text(*one) for one in slow[:MOST_NAMED]]
    more = [f"{len(slow) - MOST_NAMED} more."] if len(slow) > MOST_NAMED else []
    return SlowRankStay(reason, " ".join([*named, *more]), why, fix)


def with_slow_training_ranks(ctx: PlanningContext, conditions: list[Condition]) -> list[Condition]:
    if ctx.is_finished or not ctx.status.members:
        return [c for c in conditions if c.type != SLOW_RANKS]
    said, old = ctx.stays, find_condition(conditions, SLOW_RANKS)
    if said is None or (not said.who and old is None):
        return conditions  # nothing was decided, or there is nothing to take back
    now = to_time(ctx.now)
    if not said.who:
        return with_condition(conditions, SLOW_RANKS, False, "NoSlowRank", "Every rank keeps up.", now)
    if old is not None and (old.status, old.reason) == ("True", said.reason) and old.message.startswith(said.who):
        return conditions
    return with_condition(conditions, SLOW_RANKS, True, said.reason, f"{said.who} {said.why} {said.fix}", now)


def _slow_rank_text(member: Member, verdict: Verdict, factor: float) -> str:
    how = f"{factor:g} times slower than its peers" if factor > 1.0 else verdict.reason or "Degraded"
    since = f" since {verdict.since.isoformat(timespec='seconds')}" if verdict.since is not None else ""
    return f"Rank {member.rank} ({member.pod} on {member.node}, {verdict.device}): {how}{since}."
