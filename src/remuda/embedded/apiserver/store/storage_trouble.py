"""What a disk that takes no writes is called: `StorageFull`, `StorageReadOnly`, or `StorageFailed` for any other fault of it.

Sqlite names a full disk only when the write itself was refused for want of room. A read-only file system is a plain I/O error to
it, and so is a full one in some calls. So where the error does not say it, the file system is asked. Each answer is a sentence
and the fix; none asks the client to come again by itself, because somebody has to see to the disk first.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from remuda.api.errors import ApiError, Refusal

FULL, READ_ONLY, FAILED = "StorageFull", "StorageReadOnly", "StorageFailed"
CODES = {FULL: 507, READ_ONLY: 503, FAILED: 503}

_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_TIGHT_BYTES = 64 * 1024  # less room than that is none: a commit needs several pages at once


def storage_trouble(path: Path, error: BaseException) -> ApiError:
    """The answer to writes while the file system of `path` fails with `error`."""
    reason = _storage_trouble_reason(path, error)
    return ApiError(" ".join(_storage_trouble_words(path, reason, error)), reason=reason, code=CODES[reason])


def storage_refusal(path: Path, error: BaseException) -> Refusal | None:
    """Why nothing can be begun on a disk that is full or read-only; None when it is neither."""
    reason = _storage_trouble_reason(path, error)
    return None if reason == FAILED else Refusal(reason, *_storage_trouble_words(path, reason, error))


def _storage_trouble_words(path: Path, reason: str, error: BaseException) -> tuple[str, str]:
    """A sentence and the fix."""
    where = path.parent
    if reason == FULL:
        return f"The disk of {where} is full, so nothing can be written.", "Free some space on it."
    if reason == READ_ONLY:
        fix = "Make it writable again (mount -o remount,rw)."
        return f"The disk of {where} is read-only, so nothing can be written.", fix
    return f"The disk of {where} failed, so nothing can be written: {error}.", "Check the disk and the kernel's log."


def _storage_trouble_reason(path: Path, error: BaseException) -> str:
    name = getattr(error, "sqlite_errorname", "") or ""
    number = error.errno if isinstance(error, OSError) else None
    if name.startswith("SQLITE_FULL") or number in _FULL_ERRNOS:
        return FULL
    if name.startswith("SQLITE_READONLY") or number == errno.EROFS:
        return READ_ONLY
    if isinstance(error, sqlite3.Error) and not name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")):
        return FAILED
    return _asked_of_file_system(path)


def _asked_of_file_system(path: Path) -> str:
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return FAILED
    if found.f_flag & os.ST_RDONLY:
        return READ_ONLY
    return FULL if found.f_bavail * found.f_frsize < _TIGHT_BYTES else FAILED
