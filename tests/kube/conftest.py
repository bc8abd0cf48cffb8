"""Fixtures for the tests against a real Kubernetes API server.

Without the binaries these tests skip or fail, see `planes`; the summary says so in capitals.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.control_plane import ControlPlane
from tests.kube.planes import MISSING, own_plane, require_binaries, skip_or_fail
from tests.kube.real_node import RealNode, missing, running_node

pytest.register_assert_rewrite(
    "tests.kubelet_rows.plugin_rows",
    "tests.kubelet_rows.pod_rows",
    "tests.kubelet_rows.rig",
)

HERE = Path(__file__).parent
NO_NODE = "there is no real kubelet here (`make kube` as root sets one up)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.kube)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    for reason in (MISSING, NO_NODE):
        count = sum(reason in str(report.longrepr) for report in skipped)
        if count:
            terminalreporter.section("KUBERNETES TESTS DID NOT RUN", sep="!", red=True, bold=True)
            terminalreporter.line(f"{count} skipped: {reason}.", red=True, bold=True)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One kube-apiserver with its etcd, shared by the session; give each test a namespace of its own."""
    with own_plane(tmp_path_factory.mktemp("kube")) as plane:
        yield plane


@pytest.fixture(scope="session")
def real_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """One kubelet with real containers and an API server of its own; tests get namespaces from it."""
    require_binaries()
    if why := missing():
        skip_or_fail(f"{NO_NODE}: {why}")
    with own_plane(tmp_path_factory.mktemp("real")) as plane, running_node(plane) as node:
        yield node
