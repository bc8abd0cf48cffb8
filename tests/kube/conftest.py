"""Fixtures for the tests against a real Kubernetes API server.

Without the binaries these tests skip or fail, see `planes`; the summary says so in capitals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.control_plane import ControlPlane
from tests.kube.planes import MISSING, own_plane, require_binaries, skip_or_fail
from tests.kube.real_node import RealNode, missing, running_node
from tests.kube.whole_cluster import WholeCluster, whole_cluster

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
def node_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodePlace]:
    require_binaries()
    if why := missing():
        skip_or_fail(f"{NO_NODE}: {why}")
    with contextlib.closing(NodePlace(tmp_path_factory)) as place:
        yield place


@pytest.fixture
def real_node(node_place: NodePlace) -> RealNode:
    """One kubelet with real containers and an API server of its own, shared by the session; tests get namespaces from it."""
    return node_place.node_alone()


@pytest.fixture
def whole(node_place: NodePlace) -> WholeCluster:
    """The same with controllers and scheduler, as deploy/ is applied to; shared by the session, with nothing of Remuda on it."""
    return node_place.whole_cluster()


class NodePlace:
    """A machine has room for one real node: whoever asks for the other kind ends the one that is there. Files whose tests want
    the same kind follow each other by name."""

    def __init__(self, temporary: pytest.TempPathFactory) -> None:
        self._temporary = temporary
        self._running = contextlib.ExitStack()
        self._node: RealNode | None = None
        self._whole: WholeCluster | None = None

    def node_alone(self) -> RealNode:
        if self._node is None:
            self.close()
            plane = self._running.enter_context(own_plane(self._temporary.mktemp("real")))
            self._node = self._running.enter_context(running_node(plane))
        return self._node

    def whole_cluster(self) -> WholeCluster:
        if self._whole is None:
            self.close()
            self._whole = self._running.enter_context(whole_cluster(self._temporary.mktemp("whole")))
        return self._whole

    def close(self) -> None:
        self._node = self._whole = None
        self._running.close()
