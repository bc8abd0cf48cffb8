"""Is what was read what was written? Sums over the rows, what they say of a damaged state, and what is left of it. Pure.

Model. Every object row has a sum of its own. Every log row has a sum that includes the one before it, so a row that was changed,
lost or added breaks the chain there. Beside the rows stand, written in the same transaction: `anchor` (the sum that the oldest
log row follows), `head` (that of the newest) and `total` (all object rows' sums added up, which a lost row changes). And outside
of the database stands the newest revision that anybody was told: a state that ends before it has lost something.

A torn write that nobody was told of is not damage: it is not in the database, and none of this speaks of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from remuda.embedded.apiserver.store.journal import LogRow, ObjectRow
from remuda.embedded.apiserver.store.record import ADDED, DELETED

_MASK = (1 << 63) - 1  # what an INTEGER of SQL holds


def row_checksum(rv: int, key: str, body: bytes) -> int:
    """Of one version of one object."""
    digest = blake2b(b"%d %b\0" % (rv, key.encode(errors="replace")), digest_size=8)
    digest.update(body)
    return int.from_bytes(digest.digest()) & _MASK


def chained_checksum(before: int, type_: str, row: int) -> int:
    """Of a change, given the sum of the change before it and that of its row."""
    text = b"%d %b %d" % (before, type_.encode(errors="replace"), row)
    return int.from_bytes(blake2b(text, digest_size=8).digest()) & _MASK


def total_store_checksum(sums: Sequence[int]) -> int:
    return sum(sums) & _MASK


class SealedState(msgspec.Struct, frozen=True):
    """A state as it was read, with the sums that were stored beside it. `acked_mark`: the newest revision anybody was told."""

    objects: Sequence[tuple[ObjectRow, int]]
    log: Sequence[tuple[LogRow, int]]
    compacted: int
    anchor: int
    head: int
    total: int
    acked: int = 0

    @property
    def revision(self) -> int:
        newest_log = self.log[-1][0].rv if self.log else 0
        return max(self.compacted, newest_log, *(row.rv for row, _ in self.objects), 0)


class StateDamage(msgspec.Struct, frozen=True):
    """The first revision that cannot be trusted, what is wrong, and the newest revision that can be gone back to."""

    revision: int
    what: str
    good: int


def count_sound_rows(state: SealedState) -> int:
    """How many log rows, from the oldest, follow one from the other as they were written."""
    before = state.anchor
    for count, (row, stored) in enumerate(state.log):
        if chained_checksum(before, row.type, row_checksum(row.rv, row.key, row.body)) != stored:
            return count
        before = stored
    return len(state.log)


def is_sound_row(row: ObjectRow, stored: int) -> bool:
    return row_checksum(row.rv, row.key, row.body) == stored


def find_state_damage(state: SealedState) -> StateDamage | None:
    sound = count_sound_rows(state)
    good = state.log[sound - 1][0].rv if sound else state.compacted
    if sound < len(state.log):
        row = state.log[sound][0]
        return StateDamage(row.rv, f"the change of {row.key} was altered, or an earlier change is missing", good)
    for entry, stored in state.objects:
        if not is_sound_row(entry, stored):
            return StateDamage(entry.rv, f"{entry.key} was altered", good)
    if (state.log[-1][1] if state.log else state.anchor) != state.head:
        return StateDamage(good + 1, "the newest changes are missing", good)
    if total_store_checksum([stored for _, stored in state.objects]) != state.total:
        return StateDamage(good, "an object is missing, or a deleted one is back", good)
    if state.acked > state.revision:
        return StateDamage(
            state.revision + 1,
            f"changes up to revision {state.acked} were acknowledged and are missing",
            state.revision,
        )
    return None


class RecoveredState(msgspec.Struct, frozen=True):
    """What goes on from a damaged state: objects, those that could not be kept, and a revision beyond all ever told."""

    objects: Sequence[ObjectRow]
    lost: Sequence[str]
    revision: int


def recover_state(state: SealedState, revision: int) -> RecoveredState:
    """The objects as of `revision`, which lies from `compacted` to the good revision of the damage.

    An object is taken from its own row when that is sound and not newer, else from the sound part of the log; an object that
    was there and is in neither is lost. No history is kept: whoever watched may have seen what is gone, and has to list again.
    """
    sound = count_sound_rows(state)
    found: dict[str, ObjectRow | None] = {}
    for row, stored in state.objects:
        if row.rv <= revision and is_sound_row(row, stored):
            found[row.key] = row
    for change, _ in state.log[:sound]:
        known = found.get(change.key)
        if change.rv <= revision and (known is None or known.rv < change.rv):
            found[change.key] = None if change.type == DELETED else ObjectRow(change.key, change.rv, change.body)
    later: dict[str, str] = {}
    for change, _ in state.log:
        if change.rv > revision:
            later.setdefault(change.key, change.type)
    keys = {row.key for row, _ in state.objects} | set(later)
    lost = sorted(key for key in keys if key not in found and later.get(key) != ADDED)
    return RecoveredState([row for row in found.values() if row is not None], lost, _newest_revision(state, revision))


def _newest_revision(state: SealedState, revision: int) -> int:
    """Beyond everything that may have been told; a damaged number is not believed."""
    newest = max(revision, state.compacted, state.acked)
    before = state.anchor
    for row, stored in state.log:
        if chained_checksum(before, row.type, row_checksum(row.rv, row.key, row.body)) == stored:
            newest = max(newest, row.rv)
        before = stored
    return max([newest, *(row.rv for row, stored in state.objects if is_sound_row(row, stored))])
