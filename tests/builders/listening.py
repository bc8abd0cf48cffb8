"""What is logged while code under test runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger


@contextmanager
def listening(note_error: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Nothing is printed, and whatever the code under test logs as an error counts against it."""

    def take(logger: WrappedLogger, method: str, entry: EventDict) -> EventDict:
        note_error(dict(entry))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, take],
        wrapper_class=structlog.make_filtering_bound_logger("error"),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
