"""Finding what a user names. What is not there is refused with what is: the nearest name, or all of them."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from remuda.api.devices import NodeDevices
from remuda.api.errors import NotFound, Refusal
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.names import LABEL_GANG
from remuda.api.selectors import labels_equal
from remuda.api.training import TrainingJob
from remuda.cli.allowed import list_if_allowed
from remuda.cli.jobs.job_screen import JobPicture, take_job_screen_picture
from remuda.kube.cluster import Cluster


async def find_job_picture(cluster: Cluster, name: str, namespace: str, clock: Callable[[], float]) -> JobPicture:
    job = await find_job(cluster, name, namespace)
    pods = await cluster.list(Pod, namespace, labels=labels_equal({LABEL_GANG: name}))
    devices = await list_if_allowed(cluster, NodeDevices) or []
    nodes = await list_if_allowed(cluster, Node) or []
    return take_job_screen_picture(job, pods.items, devices, nodes, clock())


async def find_job(cluster: Cluster, name: str, namespace: str) -> TrainingJob:
    try:
        return await cluster.get(TrainingJob, name, namespace)
    except NotFound:
        names = sorted(j.name for j in (await cluster.list(TrainingJob, namespace)).items)
        raise job_not_found(name, namespace, names) from None


def job_not_found(name: str, namespace: str, names: list[str]) -> Refusal:
    none = "There are no jobs in it: start one with `remuda train`, or choose another namespace with -n."
    return Refusal(
        "JobNotFound", f"There is no job `{name}` in namespace {namespace}.", nearest_name_hint(name, names, none)
    )


async def job_not_named(cluster: Cluster, namespace: str) -> Refusal:
    jobs = sorted((await cluster.list(TrainingJob, namespace)).items, key=lambda j: (j.is_finished, j.name))
    fix = nearest_name_hint("", [j.name for j in jobs], "There are no jobs: start one with `remuda train`.")
    return Refusal("MissingArgument", "`remuda job` needs `NAME`.", fix)


async def find_node(cluster: Cluster, name: str) -> NodeDevices:
    try:
        return await cluster.get(NodeDevices, name)
    except NotFound:
        names = sorted(n.name for n in (await cluster.list(NodeDevices)).items)
        raise Refusal(
            "NodeNotFound", f"There is no node `{name}`.", nearest_name_hint(name, names, "There are none.")
        ) from None


def nearest_name_hint(name: str, names: list[str], none: str) -> str:
    """The fix for a name that is not there."""
    near = get_close_matches(name, names, n=1)
    if near:
        return f"Did you mean `{near[0]}`?"
    if not names:
        return none
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"Choose from: {', '.join(names[:8])}{more}."
