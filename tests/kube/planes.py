"""A real control plane for as long as a test, a module or a session lasts; or the refusal to go without one.

Without the binaries of `make kube` tests skip, and the run's summary says so in capitals; with REMUDA_REQUIRE_KUBE=1 (CI) they
fail instead, so they can never be missed silently.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kube.control_plane import ControlPlane, binaries_dir

MISSING = "the real control plane is not built; run `make kube` (Go >= 1.26) and try again"


def skip_or_fail(why: str) -> None:
    if os.environ.get("REMUDA_REQUIRE_KUBE", "") not in ("", "0"):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


def require_binaries() -> Path:
    """Where they are."""
    if not binaries_dir().is_dir():
        skip_or_fail(MISSING)
    return binaries_dir()


@contextmanager
def own_plane(directory: Path) -> Iterator[ControlPlane]:
    """For whoever would disturb the others: restarts the server, or uses names as it likes."""
    require_binaries()
    plane = ControlPlane.start(directory)
    try:
        yield plane
    finally:
        plane.stop()
