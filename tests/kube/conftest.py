"""Fixtures for the tests against a real Kubernetes API server.

Without the binaries of `make kube` these tests skip and the run's summary says so in capitals; with
REMUDA_REQUIRE_KUBE=1 (CI) they fail instead, so they can never be missed silently.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.control_plane import ControlPlane, binaries_dir
from tests.kube.real_node import RealNode, missing

pytest.register_assert_rewrite(
    "tests.kubelet_rows.plugin_rows",
    "tests.kubelet_rows.pod_rows",
    "tests.kubelet_rows.rig",
)

HERE = Path(__file__).parent
NO_NODE = "there is no real kubelet here (`make kube` as root sets one up)"
MISSING = "the real control plane is not built; run `make kube` (Go >= 1.26) and try again"


def is_required() -> bool:
    return os.environ.get("REMUDA_REQUIRE_KUBE", "") not in ("", "0")


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
    if not binaries_dir().is_dir():
        if is_required():
            pytest.fail(MISSING, pytrace=False)
        pytest.skip(MISSING)
    plane = ControlPlane.start(tmp_path_factory.mktemp("kube"))
    try:
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def real_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """One kubelet with real containers and an API server of its own; tests get namespaces from it."""
    if not binaries_dir().is_dir():
        if is_required():
            pytest.fail(MISSING, pytrace=False)
        pytest.skip(MISSING)
    if why := missing():
        if is_required():
            pytest.fail(f"{NO_NODE}: {why}", pytrace=False)
        pytest.skip(f"{NO_NODE}: {why}")
    plane = ControlPlane.start(tmp_path_factory.mktemp("real"))
    try:
        node = RealNode.start(plane)
        try:
            yield node
        finally:
            node.stop()
    finally:
        plane.stop()
