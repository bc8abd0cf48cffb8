"""A built launcher, an allocation directory, and both ends of its socket."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.launch.zipapp import build_zipapp
from tests.unit.launch.rig import Agent, Container


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_zipapp(tmp_path_factory.mktemp("launch") / "remuda-launch.pyz")


@pytest.fixture
def alloc(tmp_path: Path) -> Path:
    directory = tmp_path / ("alloc-" + "d" * 110)  # no socket address is long enough for this
    directory.mkdir()
    return directory


@pytest.fixture
def container(alloc: Path, pyz: Path) -> Iterator[Container]:
    found = Container(alloc, pyz)
    yield found
    process = found.process
    if process is not None and process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@pytest.fixture
def agent(alloc: Path) -> Iterator[Agent]:
    found = Agent(alloc)
    yield found
    found.go()
