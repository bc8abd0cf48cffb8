"""`Disk`: stands between sqlite and the file system of this process, sees every write and sync, and can make them fail.

A VFS of sqlite that hands everything on to the usual one. Installed as the default, so the code under test opens its database
as always. `events` is what happened, in order. A write can be torn: part of its bytes arrive, then the process is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OK, _FULL = 0, 13
_OPEN_WAL = 0x80000
_OPEN_DATABASE = 0x100

_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)
)
_Write = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    _fields_ = [
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        ("pNext", ctypes.c_void_p),
        ("zName", ctypes.c_char_p),
        ("pAppData", ctypes.c_void_p),
        ("xOpen", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 15),
    ]


class _Methods(ctypes.Structure):
    _fields_ = [
        ("iVersion", ctypes.c_int),
        ("xClose", ctypes.c_void_p),
        ("xRead", ctypes.c_void_p),
        ("xWrite", ctypes.c_void_p),
        ("xTruncate", ctypes.c_void_p),
        ("xSync", ctypes.c_void_p),
        ("xFileSize", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 12),
    ]


class Disk:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []  # (write | sync, wal | database | other)
        self.is_full = False
        self.kill_at = 0  # the number of the write that is the last
        self.tear = 0.0  # how much of that one arrives
        self._writes = 0
        self._library = _sqlite_library()
        self._tables: dict[tuple[int, str], _Methods] = {}
        self._callbacks: list[Any] = []  # C holds pointers to them

    @contextmanager
    def installed(self) -> Iterator[Disk]:
        library = self._library
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        usual = library.sqlite3_vfs_find(None)
        vfs = _Vfs()
        ctypes.pointer(vfs)[0] = usual.contents
        vfs.zName = b"remuda-disk"
        original = ctypes.cast(usual.contents.xOpen, _Open)
        address = ctypes.addressof(usual.contents)

        def opened(_: int, name: int, file: int, flags: int, out: Any) -> int:
            code = int(original(address, name, file, flags, out))
            if code == _OK:
                kind = "wal" if flags & _OPEN_WAL else "database" if flags & _OPEN_DATABASE else "other"
                methods = ctypes.cast(file, ctypes.POINTER(ctypes.c_void_p))
                table = self._table(methods[0] or 0, kind)
                methods[0] = ctypes.addressof(table)
            return code

        vfs.xOpen = ctypes.cast(self._kept(_Open(opened)), ctypes.c_void_p)
        assert library.sqlite3_vfs_register(ctypes.byref(vfs), 1) == _OK
        try:
            yield self
        finally:
            library.sqlite3_vfs_unregister(ctypes.byref(vfs))

    def _table(self, usual: int, kind: str) -> _Methods:
        known = self._tables.get((usual, kind))
        if known is not None:
            return known
        table = _Methods.from_buffer_copy(_Methods.from_address(usual))
        write, sync = ctypes.cast(table.xWrite, _Write), ctypes.cast(table.xSync, _Sync)

        def written(file: int, data: int, size: int, offset: int) -> int:
            if self.is_full:
                return _FULL
            self._writes += 1
            if self._writes == self.kill_at:
                if part := int(size * self.tear):
                    write(file, data, part, offset)
                os.kill(os.getpid(), signal.SIGKILL)
            code = int(write(file, data, size, offset))
            self.events.append(("write", kind))
            return code

        def synced(file: int, flags: int) -> int:
            code = int(sync(file, flags))
            self.events.append(("sync", kind))
            return code

        table.xWrite = ctypes.cast(self._kept(_Write(written)), ctypes.c_void_p)
        table.xSync = ctypes.cast(self._kept(_Sync(synced)), ctypes.c_void_p)
        self._tables[usual, kind] = table
        return table

    def _kept(self, callback: Any) -> Any:
        self._callbacks.append(callback)
        return callback


def _sqlite_library() -> ctypes.CDLL:
    """The one that Python's own module uses, wherever it is linked from."""
    sqlite3.connect(":memory:").close()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line}
    for path in sorted(paths, key=lambda path: "libsqlite3" not in path):
        if "sqlite3" in path or "libpython" in path:
            library = ctypes.CDLL(path)
            if hasattr(library, "sqlite3_vfs_find"):
                return library
    library = ctypes.CDLL(None)
    assert hasattr(library, "sqlite3_vfs_find"), "this Python hides its sqlite library"
    return library
