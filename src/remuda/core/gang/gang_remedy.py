"""Which remedy: the cheapest that cures. Pure: faults, what the cluster offers and what things cost in; one choice out.

price = GPUs x (rollback to the last checkpoint + stop + wait for capacity + image pull + restart)
        + slow-down x expected time
        + P(not cured) x price of the next rung that is possible,                       in GPU-hours.

The slow-down is what the gang does less afterwards: a gang that goes on with fewer ranks, or beside a slow device.

Behind the last rung stands waiting for capacity, tried until it cures. That price holds the rollback as often as the rungs
before it do; were it cheaper, a long way back to the checkpoint would make the drastic rungs look like bargains.

Each rung is first asked whether it *can* cure (a restart in place never cures a broken device), then whether it is possible
right now (a spare is parked, the domain has room); of those left the cheapest wins. Every rung that lost says why, so that
`remuda job` can show the decision and not just its result.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remuda.api.training import Cause, Remedy

# P(a restart in place does not cure) after n failures of the same pod without progress in between. Most first crashes are
# transient (the field's own recovery data puts same-node restart success well above 90 %); the third in a row hardly ever is.
NOT_CURED_IN_PLACE = (0.05, 0.3, 0.6, 0.9)
NOT_CURED_ELSEWHERE = 0.05

IN_PLACE_REFUSED = "InPlaceRefused"  # asked for, but nothing is restarted on a device or node that is not well

# When one look finds several faults, the one nearer to the hardware explains the others: it names the recovery. A crash
# explains a hang beside it: ranks that wait in a collective for the one that died stand still, too.
_ROOT = [Cause.DEVICE, Cause.INFRA, Cause.MAINTENANCE, Cause.PREEMPTION, Cause.CODE, Cause.HANG]


class MemberFault(msgspec.Struct, frozen=True):
    """One member that cannot go on. `lost` = its pod cannot be used again (device, node or pod gone)."""

    pod: str
    uid: str
    cause: Cause
    reason: str
    message: str
    lost: bool
    signal_at: float
    planned: bool = False  # nothing is broken: the member is moved while it could go on
    code: int | None = None  # its process ended with
    tail: str = ""  # the last its process wrote, where that is known


class PlacementOptions(msgspec.Struct, frozen=True):
    """What the cluster can give right now."""

    spares: int = 0  # parked and of the right role, for the pods that must be replaced
    room_in_domain: int = 0  # of those that no spare can replace, how many fit beside the gang
    domain: str = ""
    gang_fits: str | None = None  # a domain that would take the whole gang, its own freed devices included
    why_no_room: str = ""
    is_segmented: bool = False
    segment_fits: str | None = None  # a domain that would take the segments that lost pods, whole
    lent: int = 0  # of those that no spare can replace, how many could have the place of a spare that is lent
    recall_s: float = 0.0  # until whoever has those places is gone
    shrinks_to: int = 0  # ranks the gang may go on with, without the lost ones; 0 = all or nothing


class RemedyCosts(msgspec.Struct, frozen=True):
    """Seconds, and the GPUs that stand still meanwhile."""

    gang_gpus: int
    moved_gpus: int  # of the pods that would be replaced
    rollback_s: float
    stop_s: float = 1.0
    restart_s: float = 5.0
    new_pod_s: float = 20.0  # bind + start of a pod
    pull_s: float = 0.0  # its image, where it is not on the node yet
    wait_s: float = 600.0  # for capacity, when there is none
    expected_s: float = 3600.0  # how long the job goes on, as far as is known
    same_pod_failures: int = 0  # of the worst pod, without progress in between


class ChosenRemedy(msgspec.Struct, frozen=True):
    """What is done about `faults`, and who pays. The cheapest rung, unless the workload's own rules say otherwise.

    `charge`: the budgets that pay; None = those of the causes. `rule`: the workload's rule that decided. `is_code`: the hardware
    is not to blame."""

    remedy: Remedy
    cause: Cause
    reason: str
    message: str
    price_gpu_hours: float
    why_not: tuple[str, ...] = ()
    recalled: int = 0  # lent places that are called back, with RecallSpare
    faults: tuple[MemberFault, ...] = ()  # with the pods that are given up marked lost
    charge: tuple[Cause, ...] | None = None
    rule: str = ""
    is_code: bool = False


class _GangRung(msgspec.Struct, frozen=True):
    remedy: Remedy
    seconds: float
    extra_gpu_s: float
    not_cured: float
    blocked: str = ""
    slow_gpu_s: float = 0.0  # slow-down x expected time


def root_gang_fault(faults: Sequence[MemberFault]) -> MemberFault:
    """The fault that explains the others: nearest to the hardware, then earliest."""
    return min(faults, key=lambda f: (_ROOT.index(f.cause), f.signal_at, f.pod))


def causes_to_charge(faults: Sequence[MemberFault]) -> list[Cause]:
    """What to charge. Ranks that crash or stand still beside something broken, or taken away, do so because of it; a rank
    that stands still beside one that crashed waits for it."""
    causes = {f.cause for f in faults}
    outside = causes - {Cause.CODE, Cause.HANG}
    return sorted(outside or {root_gang_fault(faults).cause})


def choose_gang_remedy(
    faults: Sequence[MemberFault], options: PlacementOptions, costs: RemedyCosts, wanted: Remedy | None = None
) -> ChosenRemedy:
    """The cheapest rung that cures all `faults` at once. `wanted`: the rung the job asks for; it is taken when it is possible
    and cures, whatever the others cost. A spare, parked or lent, is as good as a new pod."""
    root = root_gang_fault(faults)
    lost = [f for f in faults if f.lost]
    rungs, waits_for = _gang_rungs(lost, options, costs)
    prices: dict[Remedy, float] = {}
    following = costs.gang_gpus * (costs.rollback_s + costs.stop_s + costs.wait_s) / (1 - NOT_CURED_ELSEWHERE)
    for rung in reversed(rungs):
        base = costs.gang_gpus * (costs.rollback_s + costs.stop_s + rung.seconds) + rung.extra_gpu_s + rung.slow_gpu_s
        prices[rung.remedy] = base + rung.not_cured * following
        if not rung.blocked:
            following = prices[rung.remedy]
    open_rungs = [r for r in rungs if not r.blocked]
    as_good = {Remedy.PROMOTE_SPARE, Remedy.RECALL_SPARE} if wanted is Remedy.REPLACE_POD else set()
    asked_for = {wanted, *as_good}
    best = min([r for r in open_rungs if r.remedy in asked_for] or open_rungs, key=lambda r: prices[r.remedy])
    why_not = tuple(
        _why_not_rung(r, prices[r.remedy], wanted)
        for r in rungs
        if r.remedy is not best.remedy
        and (r.blocked or prices[r.remedy] >= prices[best.remedy] or best.remedy in asked_for)
    )
    return ChosenRemedy(
        remedy=best.remedy,
        cause=root.cause,
        reason=root.reason,
        message=root.message,
        price_gpu_hours=prices[best.remedy] / 3600,
        why_not=(*why_not, f"{best.remedy} at once: {waits_for}") if waits_for else why_not,
        recalled=min(options.lent, max(len(lost), 1) - options.spares) if best.remedy is Remedy.RECALL_SPARE else 0,
        faults=tuple(faults),
    )


def _why_not_rung(rung: _GangRung, price: float, wanted: Remedy | None) -> str:
    if rung.blocked:
        refused = f"{IN_PLACE_REFUSED}: " if rung.remedy is Remedy.RESTART_IN_PLACE and rung.remedy is wanted else ""
        return f"{rung.remedy}: {refused}{rung.blocked}"
    asked = f", and the job asks for {wanted}" if wanted is not None else ""
    return f"{rung.remedy}: costs {price / 3600:.2f} GPU-hours{asked}"


def _gang_rungs(
    lost: Sequence[MemberFault], options: PlacementOptions, costs: RemedyCosts
) -> tuple[list[_GangRung], str]:
    """The rungs, cheapest first, and what is waited for when none is possible now."""
    moved = max(len(lost), 1)
    where = f"in {options.domain}" if options.domain else "in the cluster"
    tries = min(costs.same_pod_failures, len(NOT_CURED_IN_PLACE) - 1)
    no_place = ""
    if lost:
        no_place = f"{lost[0].pod} cannot be used again ({lost[0].reason})"
    no_spare = (
        ""
        if options.spares >= moved
        else f"{options.spares} spare{'' if options.spares == 1 else 's'} parked {where}, {moved} needed"
    )
    short = moved - options.spares
    no_room = "" if options.room_in_domain >= short else (options.why_no_room or f"no room {where}")
    no_gang = "" if options.gang_fits is not None else "no domain has room for the whole gang"
    # A pod taken from the spares is made up for in the background: it costs its own devices' time, not the gang's.
    refill = costs.moved_gpus * costs.new_pod_s
    new_pod_s = costs.new_pod_s + costs.pull_s
    rungs = [
        _GangRung(Remedy.RESTART_IN_PLACE, costs.restart_s, 0.0, NOT_CURED_IN_PLACE[tries], no_place),
        _GangRung(Remedy.PROMOTE_SPARE, costs.restart_s, refill, NOT_CURED_ELSEWHERE, no_spare),
        _GangRung(Remedy.REPLACE_POD, costs.restart_s + new_pod_s, 0.0, NOT_CURED_ELSEWHERE, no_room),
        *_recall_spare_rung(options, costs, short),
        *_move_segment_rung(options, costs),
        _GangRung(Remedy.REPLACE_GANG, costs.restart_s + 2 * new_pod_s, 0.0, NOT_CURED_ELSEWHERE, no_gang),
    ]
    if all(r.blocked for r in rungs):
        # Nothing is possible now. The replacement is asked for and the barrier stays closed until there is room for it; or the
        # gang goes on without, where it may.
        waits = _GangRung(Remedy.REPLACE_POD, costs.wait_s, 0.0, NOT_CURED_ELSEWHERE)
        rungs = [waits if r.remedy is Remedy.REPLACE_POD else r for r in rungs]
        shrink = _shrink_gang_rung(options, costs)
        return [*rungs, *shrink], "" if shrink and _is_rung_cheaper(shrink[0], waits, costs) else no_room
    return rungs, ""


def _recall_spare_rung(options: PlacementOptions, costs: RemedyCosts, short: int) -> list[_GangRung]:
    """A lent place: its borrower's grace, and the start of a pod where the image is there already. What the borrower loses is not
    the gang's to count: it has agreed."""
    if not options.lent or short <= 0:
        return []
    blocked = "" if options.lent + options.room_in_domain >= short else f"{options.lent} lent, {short} needed"
    pull_s = costs.pull_s if options.lent < short else 0.0
    seconds = costs.restart_s + options.recall_s + costs.new_pod_s + pull_s
    return [_GangRung(Remedy.RECALL_SPARE, seconds, 0.0, NOT_CURED_ELSEWHERE, blocked)]


def _move_segment_rung(options: PlacementOptions, costs: RemedyCosts) -> list[_GangRung]:
    if not options.is_segmented:
        return []
    blocked = "" if options.segment_fits is not None else "no domain has room for the whole segment"
    seconds = costs.restart_s + 1.5 * (costs.new_pod_s + costs.pull_s)
    return [_GangRung(Remedy.MOVE_SEGMENT, seconds, 0.0, NOT_CURED_ELSEWHERE, blocked)]


def _shrink_gang_rung(options: PlacementOptions, costs: RemedyCosts) -> list[_GangRung]:
    """Going on with fewer: the work of those that are missing until there is room for them, and one more stop then."""
    if not options.shrinks_to:
        return []
    missing = costs.moved_gpus * min(costs.expected_s, costs.wait_s)
    regrow = costs.gang_gpus * (costs.stop_s + costs.restart_s) if costs.expected_s > costs.wait_s else 0.0
    return [_GangRung(Remedy.SHRINK, costs.restart_s, regrow, NOT_CURED_ELSEWHERE, slow_gpu_s=missing)]


def _is_rung_cheaper(rung: _GangRung, other: _GangRung, costs: RemedyCosts) -> bool:
    def price(r: _GangRung) -> float:
        return costs.gang_gpus * r.seconds + r.extra_gpu_s + r.slow_gpu_s

    return price(rung) < price(other)


# -- moves that nothing forces ----------------------------------------------------------------------------------------

# A device that is Degraded without being slow may fail while the job runs: so often, as far as anybody has counted.
P_DEGRADED_FAILS = 0.25


def can_gang_members_move(faults: Sequence[MemberFault], options: PlacementOptions, *, whole: bool = True) -> bool:
    """Whether there is somewhere to go right now. `whole`: moving the gang is a way, too."""
    moved = max(1, sum(1 for f in faults if f.lost))
    if options.spares >= moved or options.spares + options.room_in_domain >= moved:
        return True
    if whole and options.spares + options.room_in_domain + options.lent >= moved:
        return True
    return whole and (options.gang_fits is not None or options.segment_fits is not None)


def gang_price_of_staying_slow(costs: RemedyCosts, factor: float) -> float:
    """GPU-hours that going on beside a degraded device costs: in coupled steps all work as slowly as the slowest; and a device
    that is only suspect may end in a failure, with the way back to the checkpoint that goes with it."""
    slow = costs.gang_gpus * (1.0 - 1.0 / max(1.0, factor)) * costs.expected_s
    failing = P_DEGRADED_FAILS * costs.gang_gpus * (costs.rollback_s + costs.stop_s + costs.restart_s + costs.new_pod_s)
    return (slow + (failing if factor <= 1.0 else 0.0)) / 3600
