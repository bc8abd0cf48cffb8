"""What the driver process expects of a make's library wrapper (`nvml_calls`, `amd_calls`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Emit = Callable[[dict[str, Any]], None]


class DriverFault(Exception):
    """The library refused: `code` is its own word (GpuIsLost, NotSupported, InUse)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Driver(Protocol):
    """One make's library. Every public method is a call; `open` comes first and may come again."""

    def open(self) -> dict[str, Any]: ...
