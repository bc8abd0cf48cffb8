"""The manifests of examples/, applied as they are written, on a whole real cluster with Remuda installed by deploy/.

No image is pulled here: what the examples name is made of this machine's Python, or of a shell where it wants a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.evidence import note
from tests.builders.waiting import PATIENCE_S, wait_until
from tests.kube.control_plane import ROOT
from tests.kube.installed import Installed, installed
from tests.kube.whole_cluster import WholeCluster

EXAMPLES = ROOT / "examples"


@pytest.fixture
def remuda(whole: WholeCluster, tmp_path: Path) -> Iterator[Installed]:
    with installed(whole, tmp_path) as made:
        yield made


def see_phase(remuda: Installed, pod: str, phase: str) -> None:
    def there() -> bool:
        return bool(remuda.get("pod", pod)["status"].get("phase") == phase)

    wait_until(f"{pod} to be {phase}", there, seconds=PATIENCE_S)


def test_the_examples_run_as_written(remuda: Installed) -> None:
    for name in ("03-vector-add", "04-mig"):
        remuda.kubectl("apply", "-f", str(EXAMPLES / name))
    see_phase(remuda, "cuda-vector-add", "Succeeded")
    assert {remuda.get("pod", name)["status"]["phase"] for name in ("mig-example", "mig-unknown")} == {"Pending"}

    for name in ("03-vector-add", "04-mig"):
        remuda.kubectl("delete", "-f", str(EXAMPLES / name))

    # Both together want all 48 devices of the node.
    for name in ("01-hello-gang", "02-progress-file"):
        remuda.kubectl("apply", "-f", str(EXAMPLES / name / "job.yaml"))
    hello = remuda.see_job("hello", "steps and a checkpoint", step=20, checkpointStep=10)
    assert len(hello["members"]) == 4
    assert len({device for member in hello["members"] for device in member["devices"]}) == 32
    by_file = remuda.see_job("progress-file", "steps and a checkpoint", step=20, checkpointStep=10)
    assert len(by_file["members"]) == 2
    for pod, words in (("hello-worker-0", "step 10 loss"), ("progress-file-worker-0", "step 10 loss")):
        assert words in remuda.kubectl("logs", pod)
    note(
        "kubelet, deploy/ as pods: examples 01 and 02 as written with kubectl apply: steps and checkpoints in their status"
    )

    remuda.remuda("drill", "device-fail", "hello", "--rank", "1", "--code", "48")
    after = remuda.see_job("hello", "the next attempt", attempt=2, step=30)
    assert after["recoveries"][-1]["cause"] == "device"
    assert after["recoveries"][-1]["resumeStep"] >= 10
    remuda.remuda("delete", "hello", "progress-file")

    # One role after the other, the data handed on through the job's directory.
    remuda.remuda("train", "-f", str(EXAMPLES / "05-policies" / "job.yaml"))
    policies = remuda.see_job("policies", "steps and a checkpoint", step=20, checkpointStep=10)
    assert len(policies["members"]) == 2
    remuda.remuda("delete", "policies")

    # Its image has PyTorch, which this one has not: taken, and no more.
    said = remuda.kubectl("apply", "--dry-run=server", "-f", str(EXAMPLES / "06-torchrun" / "job.yaml"))
    assert "trainingjob.remuda.dev/torch created" in said
