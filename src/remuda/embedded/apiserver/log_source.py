"""The port through which `pods/log` finds what containers wrote. The server knows no files; the runtime gives it a source."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from remuda.api.meta import JsonObject


class LogQuery(msgspec.Struct, frozen=True):
    """`tail` None: everything. `previous`: of the container's run before the present one. `since`: only what was written from
    that moment on (unix seconds). `timestamps`: the time before each line."""

    container: str
    follow: bool = False
    previous: bool = False
    tail: int | None = None
    limit_bytes: int | None = None
    since: float | None = None
    timestamps: bool = False


class ApiLogSource(Protocol):
    def read(self, pod: JsonObject, query: LogQuery) -> AsyncIterator[bytes]:
        """The log piece by piece; raises ApiError before the first piece, never after. Following ends with the container."""
        ...
