"""What a job's status says of checkpoints on single nodes: who has those of each rank; and the condition `CheckpointsNotShared`:

NotCopiedYet   no copy has been made yet, of some ranks or of any
Copied         each is on two nodes
NotCopied      some rank's are on one node only: which, why, and what helps
PathNotCopied  spec.checkpoint.path without a volume there
Shared         (status False) it is over
"""

from __future__ import annotations

import re

from remuda.api.checkpoint_volume import (
    NOT_SHARED,
    ON_NODE_DISKS,
    PATH_ALONE_TEXT,
    SAFER,
    spec_lacks_checkpoint_volume,
)
from remuda.api.conditions import find_condition, with_condition
from remuda.api.meta import Condition, to_time
from remuda.api.training import Member, RankCopies
from remuda.core.gang.pod_view import OPEN
from remuda.core.training.checkpoint_copies import has_checkpoints_per_node
from remuda.core.training.planning_context import PlanningContext

SHARED, NOT_YET = "Shared", "NotCopiedYet"
NAMED_RANKS = 4
NO_COPIES = "its agent is of a release that makes no copies (NoCopies)"
FIXES = {  # by reason, as agents say it
    "NoPeers": "let agents meet (--link-token, --peer-host, --peer-port and a fence)",
    "NoPeer": "have agents with peers on more nodes",
    "NotReached": "open the agents' --peer-port between nodes",
    "NoSpaceForCopies": "make room on other nodes (--copy-space)",
    "CopyTooLarge": "raise --copy-max of the agents",
    "CheckpointNotHere": "save to $REMUDA_CHECKPOINT_DIR in a namespace that allows host paths",
    "NoCopies": "bring agents up to date",
}


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


def with_checkpoints_not_shared(ctx: PlanningContext, conditions: list[Condition]) -> list[Condition]:
    """One condition for all that can be said of checkpoints on the disks of single nodes, from the first look on. Its reason and
    sentence say which case it is. Once it was said, afterwards it says that it is over."""
    found = _where_checkpoints_are(ctx, find_condition(conditions, NOT_SHARED))
    if found is None:
        return conditions
    reason, message = found
    if reason == SHARED and find_condition(conditions, NOT_SHARED) is None:
        return conditions
    return with_condition(conditions, NOT_SHARED, reason != SHARED, reason, message, to_time(ctx.now))


def _where_checkpoints_are(ctx: PlanningContext, said: Condition | None) -> tuple[str, str] | None:
    """Reason and sentence; None: nothing new is known. While the gang stands still nobody copies, and what was said stays."""
    status = ctx.status
    running = [
        (m, view.report)
        for m in status.members
        if (view := ctx.views.get(m.uid)) is not None
        and view.report is not None
        and (view.report.state, view.report.attempt) == ("running", status.attempt)
    ]
    is_per_node = has_checkpoints_per_node(ctx.job)
    is_known = is_per_node and (any(r.per_node for _, r in running) or (said is not None and said.status == "True"))
    if not is_known and not (ctx.on_kubelets and spec_lacks_checkpoint_volume(ctx.whole_spec)):
        return SHARED, ""
    if running and all(r.shared for _, r in running):
        return SHARED, ""
    if not is_per_node:
        return "PathNotCopied", PATH_ALONE_TEXT
    if status.barrier != OPEN:
        return None if said is not None else (NOT_YET, f"{ON_NODE_DISKS}. None has been copied to another one yet.")
    alone = [(m, r.not_copied or NO_COPIES) for m, r in running if r.not_copied or not (r.per_node or r.shared)]
    if alone:
        return "NotCopied", _not_copied_text(alone)
    homes = {c.rank: c.home for c in status.copies}
    waiting = sum(homes.get(m.rank) != m.node for m in status.members)
    if waiting:
        text = f"{ON_NODE_DISKS}. Those of {waiting} of {len(status.members)} ranks have not been copied to another one yet."
        return NOT_YET, text
    return (
        "Copied",
        f"{ON_NODE_DISKS}, and each is copied to one other node. They survive the loss of either, not of both. {SAFER}",
    )


def _not_copied_text(alone: list[tuple[Member, str]]) -> str:
    named = "; ".join(f"rank {m.rank} on {m.node}: {why}" for m, why in alone[:NAMED_RANKS])
    more = f"; and {len(alone) - NAMED_RANKS} others" if len(alone) > NAMED_RANKS else ""
    reasons = {word for _, why in alone for word in re.split(r"\W+", why)}
    fixes = ", ".join(fix for reason, fix in FIXES.items() if reason in reasons)
    fix = f"{fixes}, or give" if fixes else "give"
    return (
        f"Checkpoints are on one node only and go with it: {named}{more}. "
        f"{fix[0].upper()}{fix[1:]} the job a volume that all nodes reach (spec.checkpoint.volume)."
    )
