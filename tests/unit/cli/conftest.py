"""A command line in front of a small cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.unit.cli.scenes import Cli, a_job, machines, pods


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that watch silence the log of their process, which here is everybody's."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Nothing in it."""
    return Cli(tmp_path)


@pytest.fixture
def busy(tmp_path: Path) -> Cli:
    """Six nodes and one running job; drills are carried out."""
    done = {"phase": "Done", "message": "SIGKILL to the user's process of pod hello-worker-3 on node-04."}
    return Cli(tmp_path, [*machines(), *pods(), a_job()], drills=done)
