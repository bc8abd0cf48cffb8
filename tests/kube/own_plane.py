"""A control plane for one test module that would disturb the others': it restarts the server, or uses names as it likes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kube.conftest import MISSING, is_required
from tests.kube.control_plane import ControlPlane, binaries_dir


@contextmanager
def own_plane(directory: Path) -> Iterator[ControlPlane]:
    if not binaries_dir().is_dir():
        if is_required():
            pytest.fail(MISSING, pytrace=False)
        pytest.skip(MISSING)
    plane = ControlPlane.start(directory)
    try:
        yield plane
    finally:
        plane.stop()
