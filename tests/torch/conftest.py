"""A cluster for real framework jobs, and the refusal to skip them where `.ci/run` needs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.clusters import embedded
from tests.e2e.rig import Rig, sweep

PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="session")
def torch() -> str:
    """The Python that has PyTorch."""
    try:
        subprocess.run([PYTHON, "-c", "import torch.distributed"], check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        words = "PyTorch is not installed: `make kube` as root installs it, or run: apt-get install python3-torch"
        if os.environ.get("REMUDA_REQUIRE_KUBE"):
            pytest.fail(words)
        pytest.skip(words)
    return PYTHON


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "state"
    path.mkdir()
    yield path
    sweep(path)


@pytest.fixture
async def rig(state: Path) -> AsyncIterator[Rig]:
    async with embedded(state) as found:
        yield found
