from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agent.hardware.rig import Clock, Library, build_library


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def library(tmp_path: Path, nvml_library: Path) -> Library:
    return Library(tmp_path, nvml_library)


@pytest.fixture
def clock() -> Clock:
    return Clock()
