"""Which checkpoints of a rank may be resumed from.

    <dir>/rank-<R>/step-<N>.ckpt       the data
    <dir>/rank-<R>/step-<N>.json       {"step": N, "bytes": B, "sha256": H}, written last: the commit mark
    <dir>/rank-<R>/step-<N>.bad        it failed its own check: never use it again
    <dir>/rank-<R>/step-<N>.abandoned  intact, but the gang went on from an earlier step: used only when somebody asks for it

Usable = the side file parses and speaks of this step, the size matches, there is no mark and, up to 256 MiB, the digest
matches (a larger file would hold the barrier up; it is verified when loaded).

*Unreadable is not empty.* A look has three answers: these steps, none, or "could not be read" and why (`unreadable`). A
directory that is not there, or is no directory, holds none; any other error of the file system says nothing about what is
there, so nothing may be concluded from it. What was read all the same is in the answer, too.

*Abandoned histories.* A gang that resumes from step 10 because one rank lost step 20 leaves a usable step 20 of the old
history with the others. Were it still offered when the new history reaches step 20, a crash in the middle of that save
would offer a step 20 "all ranks have" that mixes two histories. So before a child starts from step S, everything of its
rank above S is marked abandoned. Nothing is lost by that: the files stay as they are, saving the step again or resuming from
that very step lifts the mark, and so does removing it. A side file newer than the mark was saved again, whoever saved it.

The helper in `pythonpath/` writes these files and must not import this package; `save`, `load` and `mark_bad` here are
the helper's own functions, imported only when used because they need the slow modules.
"""

import os
import stat

from remuda.launch import jsonline
from remuda.launch.small_records import SmallRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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
    mtime_ns: int = 0


def _checkpoint_step(name: str, suffix: str) -> int | None:
    digits = name[5 : -len(suffix)]
    if name.startswith("step-") and name.endswith(suffix) and digits.isascii() and digits.isdigit():
        return int(digits) if len(digits) < 19 and digits == str(int(digits)) else None
    return None


class CheckpointListing(SmallRecord):
    """What the directory says, digests not yet looked at. All newest first."""

    candidates: "tuple[CheckpointCandidate, ...]" = ()
    corrupt: tuple[int, ...] = ()  # not whole: marked bad, torn, or not what the side file says
    abandoned: tuple[int, ...] = ()
    unreadable: str = ""


class CheckpointScan(SmallRecord):
    """The answer of one look: steps to resume from, what failed its check, what is whole but abandoned; newest first.
    `unreadable`: what could not be read, and why. While it says something, the rest is not all there is."""

    steps: tuple[int, ...] = ()
    corrupt: tuple[int, ...] = ()
    abandoned: tuple[int, ...] = ()
    unreadable: str = ""


def _read_error_text(error: OSError) -> str:
    text = f"{error.filename or 'a file'}: {error.strerror or error}"
    return text.encode("utf-8", "backslashreplace").decode()  # a name need not be Unicode; what is said of it must be


def _step_candidate(folder: str, step: int, names: "set[str]") -> "CheckpointCandidate | None":
    """None = it fails its check. Raises OSError when it cannot be read, which says nothing about it."""
    stem = f"{folder}/step-{step}"
    if f"step-{step}.bad" in names or f"step-{step}.json" not in names:
        return None
    try:
        with open(stem + ".json", "rb") as file:
            side = jsonline.parse_json_line(file.read(_SIDE_LIMIT_BYTES))
        found = os.stat(stem + ".ckpt")
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return None
    if not isinstance(side, dict) or side.get("step") != step or side.get("bytes") != found.st_size:
        return None
    if not stat.S_ISREG(found.st_mode) or not isinstance(side.get("sha256"), str):
        return None
    return CheckpointCandidate(step, stem + ".ckpt", found.st_size, side["sha256"].lower(), found.st_mtime_ns)


def _is_abandoned(folder: str, step: int, names: "set[str]") -> bool:
    """Marked, and not saved again since."""
    if f"step-{step}.abandoned" not in names:
        return False
    try:
        marked = os.stat(f"{folder}/step-{step}.abandoned").st_mtime_ns
    except FileNotFoundError:
        return False
    return os.stat(f"{folder}/step-{step}.json").st_mtime_ns <= marked


def list_checkpoints(directory: str | None, rank: int | None) -> CheckpointListing:
    """Nothing when the rank or the directory is not known (a spare)."""
    if directory is None or rank is None:
        return CheckpointListing()
    folder = f"{directory}/rank-{rank}"
    try:
        names = set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return CheckpointListing()
    except OSError as error:
        return CheckpointListing(unreadable=_read_error_text(error))
    found = {_checkpoint_step(name, suffix) for name in names for suffix in (".json", ".ckpt")}
    usable: list[CheckpointCandidate] = []
    corrupt: list[int] = []
    abandoned: list[int] = []
    unreadable = ""
    for step in sorted((step for step in found if step is not None), reverse=True):
        try:
            candidate = _step_candidate(folder, step, names)
            if candidate is None:
                corrupt.append(step)
            elif _is_abandoned(folder, step, names):
                abandoned.append(step)
            else:
                usable.append(candidate)
        except OSError as error:
            unreadable = unreadable or _read_error_text(error)
    return CheckpointListing(tuple(usable), tuple(corrupt), tuple(abandoned), unreadable)


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
    """Raises OSError when it cannot be read."""
    if candidate.size > DIGEST_LIMIT_BYTES:
        return True
    digest = _small_file_digest() if candidate.size <= _CHUNK_BYTES else _big_file_digest()
    try:
        with open(candidate.path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except FileNotFoundError:
        return False
    return bool(digest.hexdigest() == candidate.sha256)


def examine_checkpoints(
    listing: CheckpointListing,
    limit: int = 16,
    intact: "Callable[[CheckpointCandidate], bool]" = is_checkpoint_intact,
) -> CheckpointScan:
    """Reads the newest until `limit` are found intact."""
    steps: list[int] = []
    corrupt = list(listing.corrupt)
    unreadable = listing.unreadable
    for candidate in listing.candidates:
        if len(steps) == limit:
            break
        try:
            (steps if intact(candidate) else corrupt).append(candidate.step)
        except OSError as error:
            unreadable = unreadable or _read_error_text(OSError(error.errno, error.strerror, candidate.path))
    corrupt.sort(reverse=True)
    return CheckpointScan(tuple(steps), tuple(corrupt[:limit]), listing.abandoned[:limit], unreadable)


def scan_checkpoints(directory: str | None, rank: int | None) -> CheckpointScan:
    return examine_checkpoints(list_checkpoints(directory, rank))


def look_at_checkpoints(directory: str, rank: int, known: "tuple[int, CheckpointScan] | None") -> "dict[str, Any]":
    """A scan, as values that can be told. `known`: the `listing` of an earlier look and what was found: where nothing is new,
    nothing is read again. `listing` is a hash, good among forks of one process; None when the next look must read again: what
    could not be read now may be readable while the listing is the same."""
    listing = list_checkpoints(directory, rank)
    found = known[1] if known is not None and known[0] == hash(listing) else examine_checkpoints(listing)
    is_settled = bool(listing.unreadable) or not found.unreadable
    return {**found.__dict__, "listing": hash(listing) if is_settled else None}


def abandon_checkpoints_above(directory: str, rank: int, step: int, why: str) -> list[int]:
    """Mark everything of the rank above `step` (-1 = everything) as abandoned, and `step` itself as not; returns what was
    marked. Raises OSError when that cannot be done."""
    folder = f"{directory}/rank-{rank}"
    listing = list_checkpoints(directory, rank)
    if listing.unreadable:
        raise OSError(listing.unreadable)
    if step in listing.abandoned:
        os.unlink(f"{folder}/step-{step}.abandoned")
    marked = [one.step for one in listing.candidates if one.step > step]
    for found in marked:
        with open(f"{folder}/step-{found}.abandoned", "w", encoding="utf-8") as file:
            file.write(why)
    return marked


def is_checkpoint_commit_on_disk(directory: str, rank: int, step: int) -> bool:
    """The commit mark is where it is looked for at a restart: whoever saved it keeps to the contract of these files."""
    try:
        os.stat(f"{directory}/rank-{rank}/step-{step}.json")
    except OSError:
        return False
    return True


def save(directory: str, rank: int, step: int, data: bytes, keep: int = 3) -> str:
    from remuda.launch.pythonpath import remuda_train

    return remuda_train.write_checkpoint(directory, rank, step, data, keep)


def load(directory: str, rank: int, step: int) -> bytes:
    from remuda.launch.pythonpath import remuda_train

    return remuda_train.read_checkpoint(directory, rank, step)


def mark_bad(directory: str, rank: int, step: int, why: str) -> None:
    from remuda.launch.pythonpath import remuda_train

    remuda_train.mark_bad(directory, rank, step, why)
