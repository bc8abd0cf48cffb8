"""What the program's own log shows: nothing that a person did not ask for. REMUDA_DEBUG=1 shows all of it.

Tracebacks never show local variables: a request's headers, and with them a token, are among them.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TextIO, cast


def show_program_logs(level: int, file: Path | None = None) -> None:
    """From `level` on, on stderr; so a command's answer on stdout stays clean. `file`: what stderr and stdout of this process
    are, when it runs in the background; it is kept within bounds, and nothing that is printed can fail."""
    import structlog

    from remuda.cli.own_log import OwnLog

    shown = logging.DEBUG if os.environ.get("REMUDA_DEBUG") else level
    own = cast(TextIO, OwnLog(sys.stderr, file))
    if file is not None:
        sys.stdout = sys.stderr = own
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.StackInfoRenderer(),
            structlog.dev.set_exc_info,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=own.isatty() and not os.environ.get("NO_COLOR"),
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(shown),
        logger_factory=structlog.PrintLoggerFactory(own),
    )


def show_plain_program_logs() -> None:
    """For commands that ask for nothing else: warnings, unless somebody has said more."""
    import structlog

    if not structlog.is_configured():
        show_program_logs(logging.WARNING)
