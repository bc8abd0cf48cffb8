"""Both servers, started once; a case runs on both (at the same time, if it can), in a namespace of its own on each.

Without the binaries of `make kube` the suite skips, loudly; with REMUDA_REQUIRE_KUBE=1 (CI) it fails instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.catalogue import Case
from tests.conformance.run import Run
from tests.conformance.servers import Server, embedded_server, real_server
from tests.conformance.transcript import Difference, Entry, differences
from tests.kube.conftest import pytest_terminal_summary as pytest_terminal_summary
from tests.kube.planes import require_binaries

HERE = Path(__file__).parent
Compare = Callable[[Case], list[Difference]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.kube)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    require_binaries()
    with (
        real_server(tmp_path_factory.mktemp("kube")) as real,
        embedded_server(tmp_path_factory.mktemp("embedded")) as embedded,
    ):
        yield embedded, real


def play(case: Case, server: Server) -> list[Entry]:
    """A namespace with the service account that pods need: no controller makes one."""
    server.must("POST", "/api/v1/namespaces", {"metadata": {"name": case.namespace}})
    accounts = f"/api/v1/namespaces/{case.namespace}/serviceaccounts"
    server.must("POST", accounts, {"metadata": {"name": "default"}})
    run = Run(server, case.namespace)
    try:
        case.body(run)
    finally:
        run.close()
    return run.entries


@pytest.fixture(scope="session")
def compare(servers: tuple[Server, Server]) -> Iterator[Compare]:
    """Each case runs once in a session, whoever asks."""
    done: dict[str, list[Difference]] = {}
    with ThreadPoolExecutor(max_workers=2) as pool:

        def look(case: Case) -> list[Difference]:
            if case.id not in done:
                if case.client == "lk":
                    # One after the other: lightkube's models are built at first use, which two threads must not do at once.
                    embedded, real = (play(case, server) for server in servers)
                else:
                    playing = [pool.submit(play, case, server) for server in servers]
                    embedded, real = (each.result() for each in playing)
                assert embedded, "a case that records nothing compares nothing"
                done[case.id] = differences(case.id, embedded, real)
            return done[case.id]

        yield look
