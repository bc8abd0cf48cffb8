"""One run of one case on one server: the three clients, each recording every answer it gets.

The recorders sit below the clients, where the bytes arrive: a transcript holds what the server sent, and the client itself
has still to make sense of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
import subprocess
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import urlencode

import httpx2
import kubernetes
import lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ApiError

from tests.builders.waiting import PATIENCE_S
from tests.conformance.servers import Server
from tests.conformance.transcript import Entry, decoded, normal_text

T = TypeVar("T")
Json = dict[str, Any]
_REFUSED = re.compile(r"Error from server(?: \((\w+)\))?:|error when \w+ [^:]*: .*?\((\w+)\)")


class _Recording(httpx2.BaseTransport):
    """lightkube's transport. A watch is recorded as its status: its events are what the case notes."""

    def __init__(self, inner: httpx2.BaseTransport, record: Callable[[str, int, Any], None]) -> None:
        self._inner = inner
        self._record = record

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = self._inner.handle_request(request)
        step = f"{request.method} {request.url.raw_path.decode()}"
        body = None if "watch=" in step and response.status_code == 200 else decoded(response.read())
        self._record(step, response.status_code, body)
        return response

    def close(self) -> None:
        self._inner.close()


class Run:
    """`ns` is this case's own namespace, of the same name on both servers."""

    def __init__(self, server: Server, ns: str) -> None:
        self.server = server
        self.ns = ns
        self.entries: list[Entry] = []

    def note(self, step: str, value: Any, code: int = 0, reason: str = "") -> None:
        self.entries.append(Entry(step, code, reason, value))

    def _record(self, step: str, code: int, body: Any) -> None:
        # Which page comes next is the server's own matter, and so is the version a watch starts from.
        step = re.sub(r"(continue|resourceVersion)=[^&0][^&]+", r"\1=<it>", step)
        step = re.sub(r"-[a-z0-9]{5}(?=$|[/?])", "-<generated>", step) if "generated" in self.ns else step
        reason = str(body.get("reason", "")) if isinstance(body, dict) and body.get("kind") == "Status" else ""
        self.note(step, body, code, reason)

    # kubectl

    def kubectl(self, *arguments: str, stdin: str | None = None, ok: bool | None = None, raw: bool = False) -> str:
        """In the case's namespace. Its exit code, the server's reason and the output are recorded; `ok` says what must be
        so on both servers. `raw`: leave the namespace alone."""
        place = [] if raw else ["--namespace", self.ns]
        done = subprocess.run(
            [self.server.kubectl, *place, *arguments],
            capture_output=True,
            text=True,
            input=stdin,
            timeout=PATIENCE_S,
            check=False,
            env={
                "PATH": os.environ["PATH"],
                "KUBECONFIG": str(self.server.kubeconfig),
                "HOME": str(self.server.home),
                "NO_PROXY": "*",
            },
        )
        found = _REFUSED.search(done.stderr)
        reason = (found[1] or found[2] or "unnamed") if found else ("client" if done.returncode else "")
        is_json = done.stdout.startswith(("{", "["))
        body = decoded(done.stdout) if is_json else normal_text(done.stdout)
        self.note("kubectl " + " ".join(arguments)[:120], body, done.returncode, reason)
        if ok is not None and (done.returncode == 0) != ok:
            raise AssertionError(f"{self.server.name}: kubectl {arguments}: {done.stdout}{done.stderr}")
        return done.stdout

    # the official package

    @cached_property
    def api_client(self) -> Any:
        config: Any = kubernetes.client.Configuration()
        config.host = self.server.url
        config.ssl_ca_cert = str(self.server.ca_file)
        config.api_key = {"authorization": self.server.token, "BearerToken": self.server.token}
        config.api_key_prefix = {"authorization": "Bearer", "BearerToken": "Bearer"}
        config.no_proxy = "*"
        config.proxy = None
        config.retries = False
        client: Any = kubernetes.client.ApiClient(config)
        inner = client.rest_client.request

        def request(method: str, url: str, *args: Any, **kw: Any) -> Any:
            step = f"{method} {url.removeprefix(self.server.url)}"
            response = inner(method, url, *args, **kw)
            if "watch=" in step and response.status == 200:
                self._record(step, response.status, None)
            else:
                self._record(step, response.status, decoded(response.read()))
            return response

        client.rest_client.request = request
        return client

    @cached_property
    def core(self) -> Any:
        return kubernetes.client.CoreV1Api(self.api_client)

    def api(self, name: str) -> Any:
        """Another group of the official package, such as AppsV1Api."""
        return getattr(kubernetes.client, name)(self.api_client)

    def http(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        media: str = "application/json",
        accept: str = "application/json",
        **query: object,
    ) -> Any:
        """Through the official package's transport, for what its typed methods cannot say. Returns the decoded answer."""
        path = path.replace("{ns}", self.ns)
        url = self.server.url + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Authorization": f"Bearer {self.server.token}", "Content-Type": media, "Accept": accept}
        data = body if isinstance(body, bytes | str | None) else json.dumps(body)
        if isinstance(data, str):
            data = data.encode()
        if method == "GET":
            headers.pop("Content-Type")
        # Its methods encode every body as JSON, so what is not JSON goes through the connections below them.
        pool = self.api_client.rest_client.pool_manager
        response = pool.request(method, url, body=data, headers=headers, timeout=PATIENCE_S, retries=False)
        self._record(f"{method} {url.removeprefix(self.server.url)}", response.status, decoded(response.data))
        try:
            return json.loads(response.data)
        except ValueError:
            return None

    def py(self, call: Callable[..., T], *args: Any, **kw: Any) -> T | None:
        """A typed call; a refusal is in the transcript already."""
        with contextlib.suppress(kubernetes.client.ApiException):
            return call(*args, **kw)
        return None

    # lightkube

    @cached_property
    def light(self) -> Any:
        config = KubeConfig.from_file(str(self.server.kubeconfig)).get()
        context = ssl.create_default_context(cafile=str(self.server.ca_file))
        transport = _Recording(httpx2.HTTPTransport(verify=context), self._record)
        return lightkube.Client(
            config=config, namespace=self.ns, trust_env=False, transport=transport, field_manager="suite"
        )

    def lk(self, call: Callable[..., T], *args: Any, **kw: Any) -> T | None:
        with contextlib.suppress(ApiError):
            return call(*args, **kw)
        return None

    def close(self) -> None:
        if "light" in self.__dict__:
            self.light.close()
        if "api_client" in self.__dict__:
            self.api_client.rest_client.pool_manager.clear()
            self.api_client.close()
