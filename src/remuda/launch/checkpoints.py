"""Which checkpoints of a rank may be resumed from.

    <dir>/rank-<R>/step-<N>.ckpt    the data
    <dir>/rank-<R>/step-<N>.json    {"step": N, "bytes": B, "sha256": H}, written last: the commit mark
    <dir>/rank-<R>/step-<N>.bad     somebody found it corrupt, or its history was abandoned: never use it again

Usable = the side file parses and speaks of this step, the size matches, there is no .bad mark and, up to 256 MiB, the
digest matches (a larger file would hold the barrier up; it is verified when loaded).

*Abandoned histories.* A gang that resumes from step 10 because one rank lost step 20 leaves a usable step 20 of the old
history with the others. Were it still there when the new history reaches step 20, a crash in the middle of that save
would offer a step 20 "all ranks have" that mixes two histories. So before a child starts from step S, everything of its
rank above S is marked bad; saving the step again lifts the mark.

The helper in `pythonpath/` writes these files and must not import this package; `save`, `load` and `mark_bad` here are
the helper's own functions, imported only when used because they need the slow modules.
"""

import os
import stat

from remuda.launch import jsonline
from remuda.launch.small_records import SmallRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

DIGEST_LIMIT_BYTES = 256 << 20
_SIDE_LIMIT_BYTES = 4096  # a side file is about 120 bytes
_CHUNK_BYTES = 1 << 20


class CheckpointCandidate(SmallRecord):
    """A committed checkpoint of the right size, digest not yet looked at."""

    step: int
    path: str
    size: int
    sha256: str


def _checkpoint_step(name: str, suffix: str) -> int | None:
    digits = name[5 : -len(suffix)]
    if name.startswith("step-") and name.endswith(suffix) and digits.isascii() and digits.isdigit():
        return int(digits) if len(digits) < 19 and digits == str(int(digits)) else None
    return None


def _committed_checkpoints(folder: str) -> list[int]:
    """Steps with a side file and no bad mark, newest first."""
    try:
        names = set(os.listdir(folder))
    except OSError:  # no folder yet, or not ours to read: nothing to resume from
        return []
    steps = (_checkpoint_step(name, ".json") for name in names)
    return sorted((step for step in steps if step is not None and f"step-{step}.bad" not in names), reverse=True)


def _checkpoint_candidate(folder: str, step: int) -> CheckpointCandidate | None:
    stem = f"{folder}/step-{step}"
    try:
        with open(stem + ".json", "rb") as file:
            side = jsonline.parse_json_line(file.read(_SIDE_LIMIT_BYTES))
        found = os.stat(stem + ".ckpt")
    except (OSError, ValueError):
        return None
    if not isinstance(side, dict) or side.get("step") != step or side.get("bytes") != found.st_size:
        return None
    if not stat.S_ISREG(found.st_mode) or not isinstance(side.get("sha256"), str):
        return None
    return CheckpointCandidate(step, stem + ".ckpt", found.st_size, side["sha256"].lower())


def checkpoint_candidates(directory: str | None, rank: int | None) -> list[CheckpointCandidate]:
    """Newest first; none when the rank or the directory is not known (a spare)."""
    if directory is None or rank is None:
        return []
    folder = f"{directory}/rank-{rank}"
    return [
        found for step in _committed_checkpoints(folder) if (found := _checkpoint_candidate(folder, step)) is not None
    ]


def _small_file_digest() -> "Any":
    """SHA-256 without OpenSSL: five times slower, but `hashlib` costs 5 ms to load, which is 1 MiB of slow hashing."""
    try:
        from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        try:
            from _sha2 import sha256  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            from hashlib import sha256
    return sha256()


def _big_file_digest() -> "Any":
    import hashlib

    return hashlib.sha256()


def is_checkpoint_intact(candidate: CheckpointCandidate) -> bool:
    if candidate.size > DIGEST_LIMIT_BYTES:
        return True
    digest = _small_file_digest() if candidate.size <= _CHUNK_BYTES else _big_file_digest()
    try:
        with open(candidate.path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return False
    return bool(digest.hexdigest() == candidate.sha256)


def usable_checkpoints(
    found: "Iterable[CheckpointCandidate]",
    limit: int = 16,
    intact: "Callable[[CheckpointCandidate], bool]" = is_checkpoint_intact,
) -> list[int]:
    """Steps of the intact ones, in the order given, at most `limit`."""
    steps: list[int] = []
    for candidate in found:
        if len(steps) == limit:
            break
        if intact(candidate):
            steps.append(candidate.step)
    return steps


def scan_checkpoints(directory: str | None, rank: int | None) -> list[int]:
    """Usable steps of the rank, newest first."""
    return usable_checkpoints(checkpoint_candidates(directory, rank))


def abandon_checkpoints_above(directory: str, rank: int, step: int, why: str) -> list[int]:
    """Mark everything of the rank above `step` (-1 = everything) as never to be used; returns what was marked."""
    folder = f"{directory}/rank-{rank}"
    marked = [found for found in _committed_checkpoints(folder) if found > step]
    for found in marked:
        with open(f"{folder}/step-{found}.bad", "w", encoding="utf-8") as file:
            file.write(why)
    return marked


def save(directory: str, rank: int, step: int, data: bytes, keep: int = 3) -> str:
    from remuda.launch.pythonpath import remuda_train

    return remuda_train.write_checkpoint(directory, rank, step, data, keep)


def load(directory: str, rank: int, step: int) -> bytes:
    from remuda.launch.pythonpath import remuda_train

    return remuda_train.read_checkpoint(directory, rank, step)


def mark_bad(directory: str, rank: int, step: int, why: str) -> None:
    from remuda.launch.pythonpath import remuda_train

    remuda_train.mark_bad(directory, rank, step, why)
