"""Remuda on a whole real cluster, put there and taken away as deploy/README.md says."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from remuda.api.errors import Refusal
from tests.builders.waiting import PATIENCE_S, wait_until
from tests.kube.whole_cluster import AGENT_ROOT, WholeCluster, deploy_manifests

SYSTEM = "remuda-system"
PATHS = {
    "node": "/api/v1/nodes",
    "pod": "/api/v1/namespaces/default/pods",
    "trainingjob": "/apis/remuda.dev/v1alpha1/namespaces/default/trainingjobs",
}


class Installed:
    def __init__(self, cluster: WholeCluster, manifests: Path) -> None:
        self.cluster, self.manifests = cluster, manifests
        self.kubectl = cluster.plane.kubectl

    def install(self) -> None:
        self.kubectl("apply", "-f", str(self.manifests / "crds"))
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", f"--timeout={PATIENCE_S:.0f}s")
        for name in ("roles.yaml", "manager.yaml"):
            self.kubectl("apply", "--validate=strict", "-f", str(self.manifests / name))
        self.kubectl("label", "node", self.cluster.node.name, "remuda.dev/agent=true")
        self.kubectl("apply", "--validate=strict", "-f", str(self.manifests / "agent.yaml"))
        for workload in ("deployment/remuda-manager", "daemonset/remuda-agent"):
            self.kubectl("-n", SYSTEM, "rollout", "status", workload, f"--timeout={PATIENCE_S - 5:.0f}s")

    def uninstall(self, *options: str) -> str:
        return self.remuda("uninstall", "--yes", *options)

    def remuda(self, *arguments: str) -> str:
        """From a directory that knows nothing of the machine's other clusters."""
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run(
                [sys.executable, "-m", "remuda.cli", f"--kubeconfig={self.cluster.kubeconfig}", *arguments],
                capture_output=True,
                text=True,
                timeout=2 * PATIENCE_S,
                check=False,
                env={**os.environ, "HOME": home, "XDG_STATE_HOME": home, "NO_PROXY": "*"},
            )
        if done.returncode != 0:
            raise Refusal("CommandFailed", f"remuda {' '.join(arguments)}: {done.stdout}{done.stderr}", "")
        return done.stdout

    def get(self, kind: str, name: str) -> Any:
        """Of namespace default, where it has one."""
        answer = self.cluster.plane.request("GET", f"{PATHS[kind]}/{name}")
        assert answer.status == 200, answer
        return answer.body

    def see_job(self, name: str, what: str, *, phase: str = "Running", **least: int) -> Any:
        """Its status, once the phase is there and each figure is at least so much (of `progress`, or `attempt`)."""
        last: dict[str, Any] = {}

        def there() -> bool:
            last.update(self.get("trainingjob", name).get("status", {}))
            figures = {**last.get("progress", {}), "attempt": last.get("attempt", 0)}
            return last.get("phase") == phase and all(figures.get(key, 0) >= value for key, value in least.items())

        try:
            wait_until(f"{name}: {what}", there, seconds=PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; it says {last}") from None
        return last


@contextlib.contextmanager
def installed(cluster: WholeCluster, place: Path) -> Iterator[Installed]:
    """There when this is entered; gone afterwards, jobs too."""
    made = Installed(cluster, deploy_manifests(place))
    made.install()
    try:
        yield made
    finally:
        made.uninstall("--delete-jobs")
        shutil.rmtree(AGENT_ROOT, ignore_errors=True)  # checkpoints: users' own, so they stay
