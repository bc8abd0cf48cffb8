"""`remuda logs` on a real cluster: what kubelets keep of each rank's pod, through the API.

A kubelet keeps what a container printed as one piece, for as long as the pod is there: attempts cannot be told apart, and of pods
that are gone there is nothing. `-f` follows the pods that the ranks have when it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import click
import msgspec

from remuda.api.errors import ApiError, Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import LABEL_GANG
from remuda.api.selectors import labels_equal
from remuda.cli.jobs.logs import ShownLogLines
from remuda.cli.lookup import find_job
from remuda.cli.session import Session
from remuda.cli.text import printed_number_ranges
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.rest_paths import rest_path
from remuda.kube.client.transport import Request

LASTING_S = 24 * 3600.0  # a followed log; the API server ends it sooner or later

Render = Callable[[str, int | None, bytes], str]  # pod, rank, line


class RankPod(msgspec.Struct, frozen=True):
    rank: int | None
    pod: str


async def rank_pods_of_shown_logs(session: Session, cluster: HttpCluster, job: str, rank: int | None) -> list[RankPod]:
    """The pods whose logs are meant, by rank; those that have none (spares, a job that has ended) come last."""
    found = await find_job(cluster, job, session.namespace)
    there = (await cluster.list(Pod, session.namespace, labels=labels_equal({LABEL_GANG: job}))).items
    ranks = {member.pod: member.rank for member in found.status.members}
    pods = sorted(
        (RankPod(ranks.get(p.name), p.name) for p in there), key=lambda p: (p.rank is None, p.rank or 0, p.pod)
    )
    members = [pod for pod in pods if pod.rank is not None] or pods
    if not members:
        raise Refusal(
            "NoLogs", f"`{job}` has no pods, and kubelets keep logs of pods.", f"Look at it: remuda job {job}"
        )
    if rank is None:
        return members
    chosen = [pod for pod in members if pod.rank == rank]
    if not chosen:
        there_are = printed_number_ranges([pod.rank for pod in members if pod.rank is not None])
        raise Refusal("RankNotFound", f"`{job}` has no rank {rank}.", f"Ranks with pods: {there_are or 'none'}.")
    return chosen


def refuse_pod_logs_attempt_option(attempt: int | None) -> None:
    if attempt is not None:
        raise Refusal(
            "AttemptsNotKept",
            "A kubelet keeps what a pod printed as one piece, so attempts cannot be told apart here.",
            "Leave out --attempt.",
        )


async def print_pod_logs(
    session: Session, job: str, rank: int | None, tail: int | None, *, follow: bool, render: Callable[[bool], Render]
) -> None:
    async with session.connect() as connected:
        cluster = cast(HttpCluster, connected)
        pods = await rank_pods_of_shown_logs(session, cluster, job, rank)
        show = render(rank is None and len(pods) > 1)

        async def print_lines(pod: RankPod) -> None:
            async for line in _lines(cluster, session.namespace, pod.pod, tail, follow=follow):
                click.echo(show(pod.pod, pod.rank, line))

        if follow:
            await asyncio.gather(*map(print_lines, pods))
        else:
            for pod in pods:
                await print_lines(pod)


async def _lines(
    cluster: HttpCluster, namespace: str, pod: str, tail: int | None, *, follow: bool
) -> AsyncIterator[bytes]:
    query = {"tailLines": str(tail)} if tail is not None else {}
    if follow:
        query["follow"] = "true"
    request = Request(method="GET", path=f"{rest_path(Pod.resource, namespace)}/{pod}/log", query=query)
    lines = ShownLogLines()
    try:
        async with cluster.transport.stream(request, LASTING_S) as pieces:
            async for piece in pieces:
                for line in lines.feed(piece):
                    yield line
    except ApiError as error:
        if error.reason in ("NotFound", "BadRequest"):  # it has not started yet, or is gone
            click.echo(f"note: {pod}: {error.message}", err=True)
        else:
            raise
    for line in lines.rest():
        yield line
