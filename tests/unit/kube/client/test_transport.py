"""Requests over real sockets and TLS: who is trusted, what is tried again, and what is bounded."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remuda.api.errors import ApiError, Conflict, Expired, TooManyRequests, Unavailable
from remuda.kube.client.access import Access, Auth, ExecPlugin, Tls
from remuda.kube.client.http_errors import Unauthorized
from remuda.kube.client.request_pacing import Patience, Rate
from remuda.kube.client.transport import Request, Transport, TransportOptions
from remuda.kube.runtime.backoff import no_jitter
from tests.builders.certificates import Authority
from tests.builders.http_server import Asked, HttpServer, Reply, a_status, server_context
from tests.builders.waiting import PATIENCE_S

GET = Request(method="GET", path="/x")
POST = Request(method="POST", path="/x", body=b"{}")
BUSY = Reply(429, a_status(429, "TooManyRequests", "busy"), {"Retry-After": "7"})


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    return server_context(authority.sign("server", "127.0.0.1", "kube.local"), tmp_path, client_ca=authority.pem)


class Talk(msgspec.Struct):
    """A transport whose waits take no time and are written down."""

    server: HttpServer
    transport: Transport
    waits: list[float] = []


@asynccontextmanager
async def talking(
    server: HttpServer, *, to: Callable[[str], Access] | None = None, options: TransportOptions | None = None
) -> AsyncIterator[Talk]:
    """`to` makes the access from the server's URL."""
    async with server:
        access = to(server.url) if to is not None else Access(server=server.url)
        talk = Talk(server, Transport(access, options=options or TransportOptions(), jitter=no_jitter))

        async def sleep(seconds: float) -> None:
            talk.waits.append(seconds)

        talk.transport.sleep = sleep
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield talk
        finally:
            await talk.transport.close()


def secure(authority: Authority, *, auth: Auth = Auth(), **tls: Any) -> Callable[[str], Access]:  # noqa: B008
    return lambda url: Access(
        server=url,
        tls=Tls(**{"ca_data": authority.pem, **tls}),
        auth=auth,
        user="ann",
        context="main",
        origin="/home/ann/.kube/config",
    )


# Trust.


async def test_the_token_goes_over_a_verified_connection(authority: Authority, tls: ssl.SSLContext) -> None:
    to = secure(authority, auth=Auth(token="secret"))
    async with talking(HttpServer(Reply(body=b"hello"), tls=tls), to=to) as talk:
        assert await talk.transport.call(GET) == b"hello"
    assert talk.server.asked[0].token == "secret"
    assert talk.server.asked[0].headers["user-agent"].startswith("remuda/")


async def test_a_client_certificate_is_shown(authority: Authority, tls: ssl.SSLContext) -> None:
    pair = authority.sign("ann")
    to = secure(authority, cert_data=pair.cert, key_data=pair.key)
    async with talking(HttpServer(Reply(), tls=tls), to=to) as talk:
        await talk.transport.call(GET)
    assert talk.server.asked[0].client == "ann"


@pytest.mark.parametrize(
    "wrong", [{"ca_data": b""}, {"ca_data": Authority("another").pem}, {"server_name": "other.local"}]
)
async def test_a_stranger_is_not_trusted_and_gets_no_token(
    authority: Authority, tls: ssl.SSLContext, wrong: dict[str, Any]
) -> None:
    to = secure(authority, auth=Auth(token="secret"), **wrong)
    async with talking(HttpServer(Reply(), tls=tls), to=to) as talk:
        with pytest.raises(Unavailable, match="no trusted connection") as caught:
            await talk.transport.call(GET)
    assert caught.value.reason == "CertificateNotTrusted"
    assert "certificate-authority" in caught.value.fix
    assert (talk.waits, talk.server.asked) == ([], [])


@pytest.mark.parametrize("right", [{"server_name": "kube.local"}, {"ca_data": b"", "is_insecure": True}])
async def test_whom_to_trust_can_be_said(authority: Authority, tls: ssl.SSLContext, right: dict[str, Any]) -> None:
    async with talking(HttpServer(Reply(body=b"in"), tls=tls), to=secure(authority, **right)) as talk:
        assert await talk.transport.call(GET) == b"in"


async def test_redirects_are_not_followed(authority: Authority, tls: ssl.SSLContext) -> None:
    async with HttpServer(Reply(), tls=tls) as other:
        server = HttpServer(Reply(307, b"", {"Location": f"{other.url}/steal"}), tls=tls)
        async with talking(server, to=secure(authority, auth=Auth(token="t"))) as talk:
            with pytest.raises(ApiError, match="answered 307"):
                await talk.transport.call(GET)
        assert other.asked == []


async def test_the_machines_proxy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with talking(HttpServer(Reply(body=b"direct"))) as talk:
        assert await talk.transport.call(GET) == b"direct"


# Credentials.


async def test_a_wrong_token_is_explained(authority: Authority, tls: ssl.SSLContext) -> None:
    server = HttpServer(Reply(401, a_status(401, "Unauthorized", "Unauthorized")), tls=tls)
    async with talking(server, to=secure(authority, auth=Auth(token="wrong"))) as talk:
        with pytest.raises(Unauthorized) as caught:
            await talk.transport.call(GET)
    assert "does not accept the credentials of user `ann` (context `main`)" in caught.value.message
    assert "/home/ann/.kube/config" in caught.value.fix
    assert "wrong" not in caught.value.message
    assert len(server.asked) == 1
    assert talk.waits == []


async def test_a_rotated_token_is_taken_up(authority: Authority, tls: ssl.SSLContext, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")

    async def answer(asked: Asked) -> Reply:
        if asked.token == "old":
            path.write_text("fresh")  # rotated while the request was under way
            return Reply(401, a_status(401, "Unauthorized"))
        return Reply(body=b"in")

    async with talking(HttpServer(answer, tls=tls), to=secure(authority, auth=Auth(token_file=path))) as talk:
        assert await talk.transport.call(POST) == b"in"
    assert [asked.token for asked in talk.server.asked] == ["old", "fresh"]


async def test_a_broken_plugin_is_an_answer_of_the_port(authority: Authority, tls: ssl.SSLContext) -> None:
    auth = Auth(plugin=ExecPlugin(command="/nonexistent/login", install_hint="Get it."))
    async with talking(HttpServer(Reply(), tls=tls), to=secure(authority, auth=auth)) as talk:
        with pytest.raises(Unauthorized) as caught:
            await talk.transport.call(GET)
    assert (caught.value.reason, caught.value.fix) == ("ExecPluginFailed", "Get it.")


# Patience.


@pytest.mark.parametrize("request_", [GET, POST])
async def test_a_busy_server_is_given_the_time_it_asks_for(request_: Request) -> None:
    unavailable = Reply(503, b"", {"Retry-After": "3"})
    async with talking(HttpServer(BUSY, unavailable, Reply(body=b"ok"))) as talk:
        assert await talk.transport.call(request_) == b"ok"
    assert talk.waits == [7.0, 3.0]
    assert [asked.body for asked in talk.server.asked] == [request_.body or b""] * 3


async def test_there_is_an_end_to_patience() -> None:
    async with talking(HttpServer(BUSY), options=TransportOptions(patience=Patience(waits=4))) as talk:
        with pytest.raises(TooManyRequests, match="busy"):
            await talk.transport.call(GET)
    assert len(talk.waits) == 4


async def test_a_read_whose_connection_breaks_is_repeated_and_a_write_is_not() -> None:
    cut = Reply(body=b"x" * 1000, is_cut=True)
    async with talking(HttpServer(cut, cut, Reply(body=b"whole"))) as talk:
        assert await talk.transport.call(GET) == b"whole"
        assert len(talk.waits) == 2
    async with talking(HttpServer(cut, Reply())) as talk:
        with pytest.raises(Unavailable, match="cannot reach the API"):
            await talk.transport.call(POST)
        assert talk.waits == []
    assert len(talk.server.asked) == 1


@pytest.mark.parametrize(("code", "error"), [(409, Conflict), (410, Expired), (500, ApiError)])
async def test_other_answers_are_final(code: int, error: type[ApiError]) -> None:
    async with talking(HttpServer(Reply(code, b""))) as talk:
        with pytest.raises(error):
            await talk.transport.call(GET)
    assert talk.waits == []


async def test_nobody_there_is_unavailable_after_a_few_tries() -> None:
    async with HttpServer(Reply()) as gone:
        pass
    async with talking(HttpServer(Reply()), to=lambda _: Access(server=gone.url)) as talk:
        with pytest.raises(Unavailable) as caught:
            await talk.transport.call(GET)
        assert caught.value.message == f"Nothing answers at {gone.url} (connection refused)."
        assert caught.value.fix == "Check that the cluster runs, or choose another with --kubeconfig or --context."
        assert len(talk.waits) == 2


async def test_no_answer_in_time_is_unavailable_and_not_tried_again() -> None:
    never = asyncio.Event()

    async def answer(asked: Asked) -> Reply:
        await never.wait()
        raise AssertionError

    async with talking(HttpServer(answer), options=TransportOptions(timeout_s=0.05)) as talk:
        with pytest.raises(Unavailable, match=r"no answer within 0\.05 s"):
            await talk.transport.call(GET)
    assert len(talk.server.asked) <= 1, "the time may be over before the server has read it"
    assert talk.waits == []


def test_a_server_that_says_no_goodbye_leaves_no_connection_behind(authority: Authority, tls: ssl.SSLContext) -> None:
    """A call that is given up ends its connection. TLS then waits for the other side's farewell; a client that is closed
    does not."""
    asked, over = threading.Event(), threading.Event()

    def silent(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with tls.wrap_socket(plain, server_side=True) as stream:
            stream.recv(1)
            asked.set()
            over.wait(PATIENCE_S)

    async def give_up(port: int) -> None:
        transport = Transport(secure(authority)(f"https://127.0.0.1:{port}"), options=TransportOptions())
        call = asyncio.create_task(transport.call(GET))
        assert await asyncio.to_thread(asked.wait, PATIENCE_S)
        call.cancel()
        await asyncio.wait([call])
        await transport.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        server = threading.Thread(target=silent, args=(listener,))
        server.start()
        try:
            asyncio.run(give_up(listener.getsockname()[1]))
            gc.collect()
        finally:
            over.set()
            server.join(PATIENCE_S)
    assert [str(one.message) for one in seen] == []


# Bounds.


async def test_the_rate_is_kept() -> None:
    async with talking(HttpServer(Reply()), options=TransportOptions(rate=Rate(per_s=0.5, burst=2))) as talk:
        await asyncio.gather(*(talk.transport.call(GET) for _ in range(5)))
    first, second, third = talk.waits
    assert first <= 2.0, "less by the time that the calls before took"
    assert (second - first, third - second) == pytest.approx((2.0, 2.0), abs=1.0)


async def test_no_more_than_so_many_calls_are_under_way() -> None:
    under_way, most = 0, 0
    gate, full = asyncio.Event(), asyncio.Event()

    async def answer(asked: Asked) -> Reply:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == 3:
            full.set()
        await gate.wait()
        under_way -= 1
        return Reply()

    async with talking(HttpServer(answer), options=TransportOptions(in_flight=3)) as talk:
        calls = [asyncio.create_task(talk.transport.call(GET)) for _ in range(10)]
        await full.wait()
        gate.set()
        await asyncio.gather(*calls)
    assert most == 3
    assert len(talk.server.asked) == 10
    assert talk.server.connections <= 3


@pytest.mark.parametrize(
    ("is_wanted", "can", "said"), [(False, True, "identity"), (True, True, "gzip"), (True, False, "identity")]
)
async def test_compression_is_asked_for_only_when_wanted(is_wanted: bool, can: bool, said: str) -> None:
    async def answer(asked: Asked) -> Reply:
        if asked.headers["accept-encoding"] == "gzip":
            return Reply(body=gzip.compress(b"text"), headers={"Content-Encoding": "gzip"})
        return Reply(body=b"text")

    def to(url: str) -> Access:
        return Access(server=url, can_compress=can)

    async with talking(HttpServer(answer), to=to, options=TransportOptions(has_compression=is_wanted)) as talk:
        assert await talk.transport.call(GET) == b"text"
    assert talk.server.asked[0].headers["accept-encoding"] == said


async def test_large_bodies_pass() -> None:
    body = b"x" * 2_000_000
    async with talking(HttpServer(Reply(body=body))) as talk:
        assert await talk.transport.call(Request(method="POST", path="/x", body=body)) == body
    assert talk.server.asked[0].body == body


async def test_a_path_below_a_prefix_is_kept() -> None:
    asked = Request(method="GET", path="/api/v1/pods", query={"labelSelector": "a in (b,c)"})
    async with talking(HttpServer(Reply()), to=lambda url: Access(server=f"{url}/clusters/c1")) as talk:
        await talk.transport.call(asked)
    assert talk.server.asked[0].path == "/clusters/c1/api/v1/pods"
    assert talk.server.asked[0].query == {"labelSelector": "a in (b,c)"}
