"""Options of the test suite."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# No test of ours is about speed, and a busy machine must not fail one; a failing example prints how to run it again.
# In CI the same examples are drawn every time: a change is judged by what it changed; runs by hand go on searching.
settings.register_profile(
    "remuda",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
# For `make check`, where two minutes are all there is; `make test` draws the whole number instead.
settings.register_profile("quick", settings.get_profile("remuda"), max_examples=25)
settings.load_profile("remuda")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="run the random schedule of this seed alone")
    parser.addoption("--schedules", type=int, default=500, help="how many random schedules to run")
    parser.addoption("--losses", type=int, default=8, help="how many losses a gang suffers in tests/e2e/test_copies.py")


class SideBySide(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """What `--dist loadgroup` means here: tests that share a server, a node or a cluster run in one process, which starts it
    once; groups, and tests without one, run side by side. (xdist's own way, by marks, groups nothing under pytest 9.)"""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        for pattern, group in GROUPS.items():
            if fnmatch(file, pattern):
                return group or file
        return nodeid


# Files, and the group of their tests: "" stands for the file itself.
GROUPS = {
    "tests/kube/test_kubelet_*.py": "the real node",
    "tests/kube/test_*_oracle.py": "a real API server",
    "tests/kube/test_transport.py": "a real API server",
    "tests/kube/test_link_identity.py": "a real API server",
    "tests/kube/*.py": "",
    "tests/conformance/*.py": "two API servers",
    "tests/e2e/test_cli.py": "",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SideBySide | None:
    return SideBySide(config, log) if config.getvalue("dist") == "loadgroup" else None
