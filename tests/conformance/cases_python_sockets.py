"""Cases below any client: malformed and unfinished HTTP on bare connections, and a watch that starts too far back."""

from __future__ import annotations

import contextlib

from tests.conformance.bodies import config, custom, definition
from tests.conformance.cases_python_custom import define
from tests.conformance.catalogue import case
from tests.conformance.embedded_plane import HISTORY
from tests.conformance.places import CM, MERGE
from tests.conformance.run import Run
from tests.conformance.sockets import connect, half_close, head, outcome

JSON = "Content-Type: application/json"


def _told(run: Run, what: str, data: bytes) -> None:
    with connect(run.server) as sock:
        sock.sendall(data)
        run.note(what, outcome(sock)[0])


def _ends(run: Run, what: str, data: bytes) -> None:
    """Whether a refusal still reaches a client that has hung up or is still sending, and which, is a race in
    kube-apiserver; `test_half_open` says more of the embedded server."""
    with connect(run.server) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(data)
            half_close(sock)
        code = outcome(sock)[0]
        run.note(what, "ended" if code == "closed" or code >= "400" else code)


@case("py", "half-requests")
def halves(run: Run) -> None:
    at = CM.format(ns=run.ns)
    post = head(run.server, "POST", at, JSON, "Content-Length: 100")
    _ends(run, "half a body", post + b'{"metadata"')
    post = head(run.server, "POST", at, JSON, "Transfer-Encoding: chunked")
    _ends(run, "half a chunk", post + b'20\r\n{"metadata"')
    _ends(run, "chunks without an end", post + b"2\r\n{}\r\n")
    _ends(run, "half a head", head(run.server, "GET", at)[:40])
    _ends(run, "a large head", head(run.server, "GET", at, "X-Large: " + "x" * 1_500_000))
    run.http("GET", at)


@case("py", "malformed-requests")
def malformed(run: Run) -> None:
    server, at = run.server, CM.format(ns=run.ns)
    _told(run, "no HTTP", b"HELLO\r\n\r\n")
    _told(run, "a length that is none", head(server, "POST", at, JSON, "Content-Length: abc"))
    _told(run, "a negative length", head(server, "POST", at, JSON, "Content-Length: -1"))
    _told(run, "a control character in the path", head(server, "GET", at + "\x01"))
    _told(run, "an escaped slash", head(server, "GET", "/api/v1/namespaces/a%2Fb/configmaps"))
    _told(run, "a path upwards", head(server, "GET", "/api/v1/../v1/namespaces"))
    _told(run, "two slashes", head(server, "GET", "/api//v1/namespaces"))
    _told(run, "an absolute path", head(server, "GET", "http://it/api/v1/namespaces/no-such"))
    _told(run, "a NUL in a name", head(server, "GET", "/api/v1/namespaces/%00"))
    _told(run, "a name that is no text", head(server, "GET", "/api/v1/namespaces/%ff"))
    post = head(server, "POST", at, JSON, "Transfer-Encoding: chunked")
    _told(run, "a chunk without a size", post + b"zz\r\n{}\r\n")
    _told(run, "a method that is none", head(server, "BREW", at))
    _told(run, "an escape that is none", head(server, "GET", "/api/v1/%zz"))


@case("py", "watch-from-too-long-ago")
def too_old(run: Run) -> None:
    """Before the embedded server's history, which holds the last events of a kind, and kube-apiserver's, which begins when
    it meets the kind."""
    start = run.server.must("GET", "/api/v1/namespaces")["metadata"]["resourceVersion"]
    path = define(run, definition("olives", "Olive"))
    url = run.server.url + path
    pool, headers = run.api_client.rest_client.pool_manager, {"Authorization": f"Bearer {run.server.token}"}
    run.server.must("POST", path, custom("Olive", size=1))
    for number in range(2 * HISTORY):
        patch = f'{{"spec":{{"size":{number % 9 + 1}}}}}'
        done = pool.request("PATCH", f"{url}/one", body=patch, headers={**headers, "Content-Type": MERGE})
        assert done.status == 200, done.data
    found = run.http("GET", path, watch="true", resourceVersion=start, timeoutSeconds="5")
    status = found.get("object", found)  # of the ERROR event, or of the answer
    run.note("what the client is told", {name: status.get(name) for name in ("kind", "status", "reason", "code")})
    run.http("POST", CM, config())
