"""A cluster for real framework jobs, and the refusal to skip them where `.ci/run` needs them."""

from __future__ import annotations

import subprocess

import pytest

from tests.e2e.conftest import rig as rig
from tests.e2e.conftest import state as state
from tests.kube.planes import skip_or_fail

PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="session")
def torch() -> str:
    """The Python that has PyTorch."""
    try:
        subprocess.run([PYTHON, "-c", "import torch.distributed"], check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        words = "PyTorch is not installed: `make kube` as root installs it, or run: apt-get install python3-torch"
        skip_or_fail(words)
    return PYTHON
