"""What the job's status says of copies: which nodes have the checkpoints of each rank, and which ranks have no second node."""

from __future__ import annotations

from remuda.api.conditions import find_condition, with_condition
from remuda.api.meta import Condition, to_time
from remuda.api.training import RankCopies
from remuda.core.gang.pod_view import OPEN
from remuda.core.training.planning_context import PlanningContext

ON_ONE_NODE = "CheckpointsOnOneNode"
NAMED_RANKS = 4


def note_copy_nodes(ctx: PlanningContext) -> None:
    """From the reports of launchers that run this very attempt: by then their agent knows which rank is whose. A rank that moves
    keeps the nodes it had until its new home has found another."""
    status = ctx.status
    if status.barrier != OPEN:
        return
    found = {c.rank: c for c in status.copies}
    for member in status.members:
        view = ctx.views.get(member.uid)
        report = view.report if view is not None else None
        if report is not None and report.copied_to and (report.state, report.attempt) == ("running", status.attempt):
            found[member.rank] = RankCopies(member.rank, member.node, report.copied_to)
    copies = [found[rank] for rank in sorted(found)]
    if copies != status.copies:
        ctx.update(copies=copies)


def with_uncopied_ranks(ctx: PlanningContext, conditions: list[Condition]) -> list[Condition]:
    """Said while a rank's checkpoints are on its node alone, and afterwards that they are not. While the gang stands still nobody
    copies, and what was said stays."""
    status = ctx.status
    is_known = find_condition(conditions, ON_ONE_NODE) is not None
    if status.barrier != OPEN:
        return conditions
    alone = [
        (m, view.report.not_copied)
        for m in status.members
        if (view := ctx.views.get(m.uid)) is not None and view.report is not None and view.report.not_copied
    ]
    if not alone:
        if not is_known:
            return conditions
        return with_condition(conditions, ON_ONE_NODE, False, "CheckpointsCopied", "", to_time(ctx.now))
    named = "; ".join(f"rank {m.rank} on {m.node}: {why}" for m, why in alone[:NAMED_RANKS])
    more = f"; and {len(alone) - NAMED_RANKS} others" if len(alone) > NAMED_RANKS else ""
    text = f"Checkpoints are on one node only and go with it: {named}{more}. "
    fix = "Make room on other nodes (--copy-space, --copy-max), or give the job a shared directory (spec.checkpoint)."
    return with_condition(conditions, ON_ONE_NODE, True, ON_ONE_NODE, text + fix, to_time(ctx.now))
