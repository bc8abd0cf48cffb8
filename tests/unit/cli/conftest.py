"""A command line in front of a small cluster."""

from pathlib import Path

import pytest

from tests.unit.cli.scenes import Cli, a_job, machines, pods


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Nothing in it."""
    return Cli(tmp_path)


@pytest.fixture
def busy(tmp_path: Path) -> Cli:
    """Six nodes and one running job; drills are carried out."""
    done = {"phase": "Done", "message": "SIGKILL to the user's process of pod hello-worker-3 on node-04."}
    return Cli(tmp_path, [*machines(), *pods(), a_job()], drills=done)
