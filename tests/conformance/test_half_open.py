"""Clients that fall silent, dribble, or do not read: they are answered or cut off within the server's limits, others are served
meanwhile, and what they cost is bounded.

The embedded server runs here with limits of a second instead of ten and thirty. kube-apiserver's are half a minute and more,
so of it only is shown that others are served.
"""

from __future__ import annotations

import contextlib
import json
import select
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.waiting import PATIENCE_S
from tests.conformance.bodies import config
from tests.conformance.servers import Server, embedded_server, wait_for
from tests.conformance.sockets import connect, half_close, head, is_cut_off, outcome

LIMIT_S = 1.0
NEVER_S = 3600.0
CROWD = 100
CONFIGS = "/api/v1/namespaces/default/configmaps"
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory, servers: tuple[Server, Server]) -> Iterator[Server]:
    """`servers` only so that this skips and fails as the whole suite does."""
    directory = tmp_path_factory.mktemp("half-open")
    with embedded_server(directory, str(LIMIT_S)) as server:
        yield server
        assert "Traceback" not in (directory / "server.log").read_text()


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory, servers: tuple[Server, Server]) -> Iterator[Server]:
    """Cuts nobody off while a test lasts: whoever is served by it did not wait for that."""
    with embedded_server(tmp_path_factory.mktemp("patient"), str(NEVER_S)) as server:
        yield server


@pytest.fixture(scope="module")
def impatient_with_watchers(
    tmp_path_factory: pytest.TempPathFactory, servers: tuple[Server, Server]
) -> Iterator[Server]:
    """Cuts off whoever does not read, and nobody for being slow to ask."""
    directory = tmp_path_factory.mktemp("watchers")
    with embedded_server(directory, str(NEVER_S), str(LIMIT_S)) as server:
        yield server
        assert "Traceback" not in (directory / "server.log").read_text()


def others_are_served(server: Server) -> None:
    code, body = server.request("GET", CONFIGS)
    assert (code, body["kind"]) == (200, "ConfigMapList")


def silent(server: Server, data: bytes) -> ssl.SSLSocket:
    sock = connect(server)
    sock.sendall(data)
    return sock


def test_half_a_head_is_cut_off(embedded: Server) -> None:
    with silent(embedded, b"GET /api HTTP/1.1\r\nHost: it\r\nX-Half") as sock:
        others_are_served(embedded)
        assert is_cut_off(sock)


def test_a_connection_without_a_request_is_cut_off(embedded: Server) -> None:
    with connect(embedded) as sock:
        assert is_cut_off(sock)


def test_a_dribbled_head_is_cut_off(embedded: Server) -> None:
    """A byte now and then does not buy more time."""
    deadline = time.monotonic() + PATIENCE_S
    with silent(embedded, b"GET /api HTTP/1.1\r\nX-Slow: ") as sock:
        is_over = False
        with contextlib.suppress(OSError):
            while not is_over and time.monotonic() < deadline:
                sock.send(b"x")
                is_over = bool(select.select([sock], [], [], LIMIT_S / 10)[0])
        assert time.monotonic() < deadline, "the head may take as long as the client likes"
        others_are_served(embedded)
        assert is_cut_off(sock)


@pytest.mark.parametrize(
    ("line", "begin"), [("Content-Length: 100", b'{"metadata"'), ("Transfer-Encoding: chunked", b'20\r\n{"meta')]
)
def test_half_a_body_is_answered_in_time(embedded: Server, line: str, begin: bytes) -> None:
    with silent(embedded, head(embedded, "POST", CONFIGS, JSON, line) + begin) as sock:
        others_are_served(embedded)
        code, came = outcome(sock)
        assert code == "408"
        assert json.loads(came.partition(b"\r\n\r\n")[2])["reason"] == "Timeout"
        assert is_cut_off(sock)


@pytest.mark.parametrize("begin", [b"", b'{"metadata"', b"x" * 50])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_half_closed_request_ends(embedded: Server, method: str, begin: bytes) -> None:
    path = CONFIGS if method == "POST" else f"{CONFIGS}/one"
    with silent(embedded, head(embedded, method, path, JSON, "Content-Length: 100") + begin) as sock:
        half_close(sock)
        assert outcome(sock)[0] in ("closed", "400")
    others_are_served(embedded)


@pytest.mark.parametrize("which", ["embedded", "kube-apiserver"])
def test_a_crowd_of_silent_clients_does_not_keep_others_waiting(
    patient: Server, servers: tuple[Server, Server], which: str
) -> None:
    server = patient if which == "embedded" else servers[1]
    post = head(server, "POST", CONFIGS, JSON, "Content-Length: 1000") + b"{"
    with contextlib.ExitStack() as stack:
        for number in range(CROWD):
            stack.enter_context(silent(server, b"GET /api HTTP/1.1\r\nHo" if number % 2 else post))
        others_are_served(server)


def memory_of(server: Server) -> int:
    """Resident bytes."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def test_watches_that_nobody_reads_are_cut_off_and_cost_little(impatient_with_watchers: Server) -> None:
    """Forty watchers times twelve megabytes of events would be half a gigabyte, if each were kept its own."""
    server, watchers, events, size = impatient_with_watchers, 40, 120, 100_000
    begun = memory_of(server)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(server, buffer=4096)) for _ in range(watchers)]
        for sock in socks:
            sock.sendall(head(server, "GET", f"{CONFIGS}?watch=true&resourceVersion=0"))
            assert outcome(sock)[0] == "200"
        server.must("POST", CONFIGS, config("large"))
        for number in range(events):
            body = config("large", a=str(number) + "x" * size)
            server.must("PUT", f"{CONFIGS}/large", body)
        others_are_served(server)
        log = Path(server.home) / "server.log"
        wait_for(lambda: log.read_text().count("api.watcher_cut_off") >= watchers)
        grown = memory_of(server) - begun
        assert grown < 150_000_000, f"{grown / 1e6:.0f} MB for {watchers} watchers that read nothing"
        assert all(is_cut_off(sock) for sock in socks)
    others_are_served(server)
