"""Install by deploy/, run a job that saves checkpoints, break a device, begin a roll-out, uninstall in the middle of it: the
objects of the cluster, the files of the node and its mounts are those from before.

Everything is real but the devices: manager and agent run as pods, a kubelet runs them, all controllers of Kubernetes are there.
Jobs that run on are looked at in test_uninstall.py.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.evidence import note
from tests.builders.waiting import PATIENCE_S, wait_until
from tests.kube.control_plane import ROOT
from tests.kube.installed import Installed
from tests.kube.node_tree import node_tree
from tests.kube.test_uninstall import everything
from tests.kube.whole_cluster import AGENT_ROOT, WholeCluster, deploy_manifests

CDI = "/run/cdi"
HELLO = ROOT / "examples" / "01-hello-gang" / "job.yaml"
ROLLOUT = {
    "apiVersion": "remuda.dev/v1alpha1",
    "kind": "NodeRollout",
    "metadata": {"name": "driver"},
    "spec": {
        "hook": {"command": ["/opt/site/install-driver"]},
        "drain": {"checkpointSeconds": 600, "deadlineSeconds": 1200},
    },
}


def with_cdi(manifests: Path) -> Path:
    """Agents that name devices by CDI have its directory mounted."""
    documents = list(yaml.safe_load_all((manifests / "agent.yaml").read_text()))
    (spec,) = (d["spec"]["template"]["spec"] for d in documents if d["kind"] == "DaemonSet")
    spec["containers"][0]["volumeMounts"].append({"name": "cdi", "mountPath": CDI})
    spec["volumes"].append({"name": "cdi", "hostPath": {"path": CDI, "type": "DirectoryOrCreate"}})
    (manifests / "agent.yaml").write_text(yaml.safe_dump_all(documents))
    return manifests


def mounts() -> list[str]:
    """Where something is mounted; a kubelet and containerd mount and unmount as pods come and go."""
    return sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())


def objects(cluster: WholeCluster) -> dict[str, Any]:
    """Of the node's status only what Remuda could leave there: its kubelet writes the rest anew every second."""
    found = everything(cluster.plane)
    for body in found.values():
        if body["kind"] == "Node":
            status = body["status"]
            body["status"] = {"conditions": sorted(c["type"] for c in status["conditions"])}
    return found


def left_of_pods(cluster: WholeCluster) -> set[str]:
    """Uids of pods that are gone, of which the kubelet still has directories and logs: it puts them away a while later."""
    places = cluster.node.places
    living = {pod["metadata"]["uid"] for pod in cluster.plane.request("GET", "/api/v1/pods").body["items"]}
    return {
        path.name.rpartition("_")[2]
        for directory in (places.pod_logs, places.kubelet_root / "pods")
        for path in directory.iterdir()
    } - living


def see_same(what: str, before: dict[str, str], look: Any) -> None:
    """Kubernetes and containerd take a while to put away what was deleted."""
    last: list[str] = []

    def is_same() -> bool:
        now = look()
        last[:] = [
            f"{key}: {before.get(key)} -> {now.get(key)}"
            for key in before.keys() | now.keys()
            if before.get(key) != now.get(key)
        ]
        return not last

    try:
        wait_until(f"{what} to be as before", is_same, seconds=PATIENCE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; before -> now:\n" + "\n".join(sorted(last))) from None


@pytest.mark.timeout(600)
def test_objects_files_and_mounts_are_as_before(whole: WholeCluster, tmp_path: Path) -> None:
    node = whole.node
    wait_until("what is left of earlier pods to be put away", lambda: not left_of_pods(whole), PATIENCE_S)
    before, tree, mounted = objects(whole), node_tree(node), mounts()
    remuda = Installed(whole, with_cdi(deploy_manifests(tmp_path, f"--cdi-dir={CDI}")))
    remuda.install()

    remuda.kubectl("apply", "-f", str(HELLO))
    remuda.see_job("hello", "a checkpoint", checkpointStep=10)
    remuda.remuda("drill", "device-fail", "hello", "--rank", "1", "--code", "48")
    remuda.see_job("hello", "its recovery", attempt=2)
    assert "Xid48" in remuda.remuda("incidents")

    remuda.kubectl("apply", "-f", "-", stdin=json.dumps(ROLLOUT))

    def is_cordoned() -> bool:
        body = remuda.get("node", node.name)
        return (
            bool(body["spec"].get("unschedulable")) and "remuda.dev/drain-requested" in body["metadata"]["annotations"]
        )

    wait_until("the roll-out to have cordoned the node", is_cordoned, seconds=PATIENCE_S)
    during = node_tree(node)
    assert {f"{AGENT_ROOT}/{name}" for name in ("alloc", "bin", "checkpoints", "grants")} <= during.keys()
    assert any(path.startswith("/var/lib/kubelet/device-plugins/remuda-") for path in during)
    assert any(path.startswith(f"{CDI}/remuda.dev-") for path in during)
    assert len(mounts()) > len(mounted)

    said = remuda.uninstall("--delete-jobs")
    assert "Not clean" not in said, said
    # Users' checkpoints stay until their owner removes them, as deploy/README.md says: those of the job, and nothing else.
    (kept,) = (AGENT_ROOT / "checkpoints" / "default").iterdir()
    assert kept.name.startswith("hello-")
    assert sorted(path.name for path in kept.iterdir()) == [f"rank-{n}" for n in range(4)]
    assert [path.name for path in AGENT_ROOT.iterdir()] == ["checkpoints"]
    shutil.rmtree(AGENT_ROOT)
    if CDI not in tree:
        os.rmdir(CDI)  # made by the kubelet for the mount, shared with all who write specs, and empty

    see_same("the node's files", tree, lambda: node_tree(node))
    wait_until("the mounts to be as before", lambda: mounts() == mounted, seconds=PATIENCE_S)
    see_same("the cluster's objects", before, lambda: objects(whole))
    allocatable = remuda.get("node", node.name)["status"]["allocatable"]
    assert allocatable["nvidia.com/gpu"] == "0", (
        "the name is the kubelet's to forget: slow_kubelet_grace.py waits for that"
    )
    note(
        "kubelet, deploy/ as pods: uninstalled in the middle of a roll-out: objects, files of the node and mounts as before"
    )
