"""What the program's own log shows: nothing that a person did not ask for. REMUDA_DEBUG=1 shows all of it."""

from __future__ import annotations

import logging
import os
import sys


def show_logs(level: int) -> None:
    """From `level` on, on stderr; so a command's answer on stdout stays clean."""
    import structlog

    shown = logging.DEBUG if os.environ.get("REMUDA_DEBUG") else level
    # Plain tracebacks: with rich ones, the default, the locals of every frame are drawn. They hold secrets, and take seconds.
    drawn = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[*structlog.get_config()["processors"][:-1], drawn],
        wrapper_class=structlog.make_filtering_bound_logger(shown),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
