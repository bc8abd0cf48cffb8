"""A real etcd and kube-apiserver on loopback, for as long as a test session lasts.

`ControlPlane.start(directory)` puts everything it makes (keys, certificates, tokens, data, logs, kubeconfig) below that
directory, returns once /readyz answers, and `stop()` ends exactly the processes it started. The binaries are those that
`make kube` built; tools/build-kube alone knows where they are and which version is pinned.

Invariants: nothing listens beyond 127.0.0.1, but the API server on another address of this machine where one was asked for;
the admin token is random per start and its files are 0600; clients verify the server's certificate, which the API server signs
for itself at start; the processes die with the test process even when that is killed (parent-death signal).

Only the API server runs: there are no controllers, so no service account appears in a namespace by itself and nothing
garbage-collects. Tests create what they need.
"""

import base64
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.builders.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
BUILD_KUBE = ROOT / "tools" / "build-kube"

STOP_GRACE_S = 5.0
# A free port is only free until somebody else takes it, so a start that loses that race is tried again.
START_ATTEMPTS = 3


class ControlPlaneError(Exception):
    """The control plane did not start; the message carries the end of the log of the process at fault."""


@dataclass(frozen=True)
class Response:
    """Status code and decoded JSON body (or text, where the server sent no JSON) of one request."""

    status: int
    body: Any


def _build_kube(option: str) -> str:
    return subprocess.run([BUILD_KUBE, option], check=True, capture_output=True, text=True).stdout.strip()


def binaries_dir() -> Path:
    """Where `make kube` puts (or would put) the binaries; the directory exists only when all of them do."""
    return Path(_build_kube("--print-dir"))


def pinned_version() -> str:
    """The Kubernetes version that the tests are written against, such as v1.37.1."""
    return _build_kube("--print-version")


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def signing_key_pem() -> str:
    """A fresh P-256 private key in SEC 1 form, for service-account tokens.

    Such a key is just a random number below the curve's order, and its public half may be left out, so the standard
    library is enough: SEQUENCE { 1, OCTET STRING number, [0] { OID prime256v1 } }.
    """
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    number = (secrets.randbelow(order - 1) + 1).to_bytes(32, "big")
    der = bytes.fromhex("30310201010420") + number + bytes.fromhex("a00a06082a8648ce3d030107")
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{body}-----END EC PRIVATE KEY-----\n"


def _write_private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return path


@dataclass
class ControlPlane:
    """A running control plane: where it is, how to talk to it, and the processes to end."""

    directory: Path
    binaries: Path
    url: str
    token: str
    ca_file: Path
    signing_key: Path
    kubeconfig: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def start(
        cls, directory: Path, *, address: str = "127.0.0.1", port: int = 0, flags: Sequence[str] = ()
    ) -> "ControlPlane":
        """Start etcd and kube-apiserver below `directory` and return when the API server is ready.

        `flags` come after our own, so they win.
        """
        for attempt in range(1, START_ATTEMPTS + 1):
            plane = cls._launch(directory / f"start-{attempt}", address, port, flags)
            try:
                plane._wait_until_ready()
            except ControlPlaneError as error:
                plane.stop()
                if attempt == START_ATTEMPTS or "address already in use" not in str(error):
                    raise
            except BaseException:
                plane.stop()
                raise
            else:
                return plane
        raise AssertionError("unreachable")

    @classmethod
    def _launch(cls, directory: Path, address: str, port: int, flags: Sequence[str]) -> "ControlPlane":
        directory.mkdir(parents=True)
        client_port, peer_port, free_port = free_ports(3)
        secure_port = port or free_port
        token = secrets.token_urlsafe(24)
        tokens = _write_private(directory / "tokens.csv", f'{token},admin,admin,"system:masters"\n')
        signing_key = _write_private(directory / "service-account.key", signing_key_pem())
        certificates = directory / "certificates"
        url = f"https://{address}:{secure_port}"
        etcd_url, peer_url = (f"http://127.0.0.1:{port}" for port in (client_port, peer_port))
        plane = cls(
            directory=directory,
            binaries=binaries_dir(),
            url=url,
            token=token,
            # Written by the API server at start: its certificate followed by the CA that signed it.
            ca_file=certificates / "apiserver.crt",
            signing_key=signing_key,
            kubeconfig=directory / "kubeconfig",
        )
        _write_private(plane.kubeconfig, json.dumps(plane._kubeconfig_body()))
        plane._spawn(
            "etcd",
            f"--data-dir={directory / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            "--unsafe-no-fsync",  # the data is thrown away with the directory
        )
        plane._spawn(
            "kube-apiserver",
            f"--bind-address={address}",
            f"--advertise-address={address}",
            f"--secure-port={secure_port}",
            f"--cert-dir={certificates}",
            f"--etcd-servers={etcd_url}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",  # as on every cluster that runs agents of any kind
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={signing_key}",
            f"--service-account-signing-key-file={signing_key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",  # it would refuse a loopback address
            *flags,
        )
        return plane

    def _spawn(self, name: str, *arguments: str) -> None:
        command = [str(self.binaries / name), *arguments]
        setpriv = shutil.which("setpriv")
        if setpriv:
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with (self.directory / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _kubeconfig_body(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        server = self.processes["kube-apiserver"]
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise ControlPlaneError(f"{name} ended with {process.returncode}:\n{self.log_tail(name)}")
            try:
                if self.ca_file.exists() and self.request("GET", "/readyz").status == 200:
                    return
            except OSError:
                pass  # it does not listen yet, or is still writing its certificate
            # The pause between two looks is a wait for the one event that makes looking again pointless.
            try:
                server.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
        raise ControlPlaneError(
            f"not ready within {PATIENCE_S:.0f} s; the end of its log:\n{self.log_tail('kube-apiserver')}"
        )

    def log_tail(self, name: str, lines: int = 30) -> str:
        """The last lines that a process wrote."""
        text = (self.directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Response:
        """One request as the admin. Any answer is returned, refusals too; OSError when there was none."""
        return send_request(self, method, path, body, content_type)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """The output of kubectl run as the admin; CalledProcessError, with stderr, when it fails."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.directory), "NO_PROXY": "*"}
        done = subprocess.run(
            [self.binaries / "kubectl", *arguments],
            check=True,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=PATIENCE_S,
            env=environment,
        )
        return done.stdout

    def stop(self) -> None:
        """End the processes, API server first; none is left when this returns."""
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(timeout=STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()


class Reachable(Protocol):
    """An API server that a token opens."""

    @property
    def url(self) -> str: ...

    @property
    def token(self) -> str: ...

    @property
    def ca_file(self) -> Path: ...


def send_request(
    server: Reachable, method: str, path: str, body: object = None, content_type: str = "application/json"
) -> Response:
    """Any answer is returned, refusals too; OSError when there was none."""
    request = urllib.request.Request(
        server.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {server.token}", "Content-Type": content_type},
    )
    context = ssl.create_default_context(cafile=str(server.ca_file))
    # An empty proxy table: a proxy set for the machine must not be asked about loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=PATIENCE_S) as answer:
            return Response(answer.status, _decode(answer.read()))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Response(refusal.code, _decode(refusal.read()))


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
