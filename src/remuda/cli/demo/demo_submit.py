"""How the demo's job gets to the cluster: through the API in this process, or as a user of Kubernetes would send it.

A `Submit` sends the job and returns the line that tells so. Nothing else of the demo differs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import yaml

from remuda.api.codec import to_wire
from remuda.api.training import TrainingJob
from remuda.kube.cluster import Cluster

Submit = Callable[[TrainingJob], Awaitable[str]]

APPLY_S = 30.0


class NotSubmitted(Exception):
    """kubectl said no, in its own words."""


def submit_by_api(api: Cluster) -> Submit:
    async def submit(job: TrainingJob) -> str:
        await api.create(TrainingJob, job)
        return f"Job {job.name} is submitted."

    return submit


def submit_by_kubectl(program: str, kubeconfig: Path, directory: Path) -> Submit:
    """`kubectl apply -f` of a manifest in `directory`, where kubectl's own cache goes too: the demo leaves nothing."""

    async def submit(job: TrainingJob) -> str:
        manifest = directory / f"{job.name}.yaml"
        manifest.write_text(yaml.safe_dump(to_wire(job), sort_keys=False), encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            program,
            f"--cache-dir={directory / 'kubectl-cache'}",
            "apply",
            "-f",
            str(manifest),
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(APPLY_S):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise NotSubmitted(f"kubectl did not end within {APPLY_S:g} s") from None
        text = said.decode(errors="replace").strip()
        if process.returncode:
            raise NotSubmitted(f"kubectl ended with code {process.returncode}: {text}")
        return f"kubectl apply -f {manifest.name}: {text}"

    return submit
