"""What another ladder has left: rungs that were begun under a policy which has since been changed or deleted. Pure.

What is under way ends also when no policy asks for it any more: the newest stage that was begun is followed to its probe and
its soak, unless the ladder of today has begun one later. Nothing of it is begun anew: a drain whose rung was not reached
yet is given up. Whatever else would run or wait for ever, because no ladder leads to it, is closed or forgotten. So no such
record holds a place within the limits, or asks operators a question that nobody needs answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remuda.api.incidents import RemedyOutcome, RemedyRecord
from remuda.api.meta import to_seconds
from remuda.api.remedies import Rung
from remuda.core.remedies.ladder.state import LadderState, is_rung_open
from remuda.core.remedies.remedy_keys import is_remedy_key_of_recheck, parse_rung_key
from remuda.core.remedies.rungs import LadderStage

POLICY_CHANGED = "PolicyChanged"
NOBODY_WAITS = "The policy was changed or deleted meanwhile, so this step was given up."

_NEVER = float("-inf")


def take_over_abandoned_rungs(
    state: LadderState, stages: Sequence[LadderStage], *, follows: bool
) -> LadderStage | None:
    """Close what runs outside of these stages, and forget what waits there. With `follows`, what is given back is the stage
    that comes before them: its rung was begun, and last of all."""
    known = {key for stage in stages for key in stage.keys}
    strange = [key for key in state.records if key not in known and not is_remedy_key_of_recheck(key)]
    if not strange:
        return None
    left = _newest_abandoned_stage(state.records, strange, stages) if follows else None
    for key in strange:
        if left is not None and key in left.keys:
            continue
        if state.records[key].outcome is RemedyOutcome.RUNNING:
            state.amend(key, RemedyOutcome.FAILED, POLICY_CHANGED, NOBODY_WAITS)
        elif is_rung_open(state.records[key]):
            del state.records[key]
    return left


def _newest_abandoned_stage(
    records: Mapping[str, RemedyRecord], strange: Sequence[str], stages: Sequence[LadderStage]
) -> LadderStage | None:
    found = [stage for stage in map(_stage_of_key, strange) if stage is not None]
    newest = max(found, key=lambda stage: _stage_began_at(records, stage), default=None)
    if newest is None or _stage_began_at(records, newest) <= max(
        (_stage_began_at(records, s) for s in stages), default=_NEVER
    ):
        return None
    rung = records.get(newest.key)
    return newest if rung is not None and rung.started_at is not None else None


def _stage_of_key(key: str) -> LadderStage | None:
    """The stage a record of that key is of; None for the key of no stage."""
    parsed = parse_rung_key(key)
    return LadderStage(parsed.rung, Rung(parsed.action)) if parsed is not None else None


def _stage_began_at(records: Mapping[str, RemedyRecord], stage: LadderStage) -> float:
    """When its newest step was begun."""
    found = (records[key].started_at for key in stage.keys if key in records)
    return max((to_seconds(at) for at in found if at is not None), default=_NEVER)
