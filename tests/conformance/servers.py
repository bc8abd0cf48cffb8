"""The two servers under comparison, as the clients see them: an address, a token, a CA file and a kubeconfig."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.builders.waiting import PATIENCE_S
from tests.kube.control_plane import ROOT, ControlPlane, binaries_dir, send_request

EMBEDDED, REAL = "embedded", "kube-apiserver"


@dataclass(frozen=True)
class Server:
    name: str
    url: str
    token: str
    ca_file: Path
    kubeconfig: Path
    home: Path  # where kubectl keeps its cache
    kubectl: Path
    pid: int = 0

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Preparations only: what is compared goes through the clients."""
        answer = send_request(self, method, path, body)
        return answer.status, answer.body

    def must(self, method: str, path: str, body: object = None) -> Any:
        code, answer = self.request(method, path, body)
        if code >= 400:
            raise AssertionError(f"{self.name}: {method} {path} answered {code}: {answer}")
        return answer


@contextmanager
def real_server(directory: Path) -> Iterator[Server]:
    """With the definitions of Remuda's own kinds, as an installation on a cluster has them."""
    plane = ControlPlane.start(directory)
    try:
        kubectl = plane.binaries / "kubectl"
        server = Server(REAL, plane.url, plane.token, plane.ca_file, plane.kubeconfig, plane.directory, kubectl)
        names = []
        for file in sorted((ROOT / "deploy" / "crds").glob("*.yaml")):
            definition = yaml.safe_load(file.read_text())
            names.append(definition["metadata"]["name"])
            server.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        wait_for(lambda: all(is_served(server, name) for name in names))
        yield server
    finally:
        plane.stop()


def is_served(server: Server, definition: str) -> bool:
    plural, _, group = definition.partition(".")
    return server.request("GET", f"/apis/{group}/v1alpha1/{plural}")[0] == 200


@contextmanager
def embedded_server(directory: Path, *options: str) -> Iterator[Server]:
    """`options`: see `embedded_plane`."""
    directory.mkdir(parents=True, exist_ok=True)
    kubeconfig = directory / "kubeconfig"
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.embedded_plane", str(directory), *options],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        wait_for(lambda: process.poll() is not None or kubeconfig.exists())
        if process.poll() is not None:
            raise AssertionError(f"the embedded server ended:\n{(directory / 'server.log').read_text()}")
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        ca_file = directory / "ca-of-kubeconfig.crt"
        ca_file.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        kubectl = binaries_dir() / "kubectl"
        token = user["token"]
        yield Server(EMBEDDED, cluster["server"], token, ca_file, kubeconfig, directory, kubectl, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(is_done: Any, within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not is_done():
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {within_s:.0f} s")
        time.sleep(0.02)  # the pause between two looks at a condition
