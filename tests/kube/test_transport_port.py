"""The suite of the `Cluster` port, on a real kube-apiserver: what the embedded transports promise is what Kubernetes does.

The tests are those of tests/component/test_store_cluster.py, unchanged. Not taken from there: what needs the store's or the
clock's inside, kinds that are ours, and the few words and defaults in which the embedded server is deliberately simpler.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from tests.builders.waiting import PATIENCE_S
from tests.component import test_store_cluster as suite
from tests.kube.control_plane import ControlPlane
from tests.kube.planes import own_plane

NAMESPACES = ("team", "a", "ab", "b", "other")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Of its own: the tests use names of their own choice and look at all namespaces."""
    with own_plane(tmp_path_factory.mktemp("port")) as plane:
        for name in NAMESPACES:
            plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            plane.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        yield plane


@pytest_asyncio.fixture
async def cluster(plane: ControlPlane) -> AsyncIterator[HttpCluster]:
    async with asyncio.timeout(PATIENCE_S), HttpCluster(access=load_kubeconfig(plane.kubeconfig)) as cluster:
        yield cluster
    for name in NAMESPACES:
        at_once = {"gracePeriodSeconds": 0}
        pods = f"/api/v1/namespaces/{name}/pods"
        plane.request("PATCH", f"{pods}/p", {"metadata": {"finalizers": None}}, "application/merge-patch+json")
        plane.request("PATCH", f"{pods}/a", {"metadata": {"finalizers": None}}, "application/merge-patch+json")
        plane.request("DELETE", pods, at_once)
    plane.request("DELETE", "/api/v1/nodes", {})


SHARED = """
    test_creating_it_again_is_refused test_a_bad_name_is_refused_by_its_field test_what_is_not_there_is_not_found
    test_patch_preconditions test_merge_patch_removes_with_null test_an_object_has_to_be_named_in_full
    test_a_node_registers_with_its_status test_delete_checks_its_preconditions test_the_default_grace_is_the_pods_own
    test_a_finished_pod_goes_at_once test_a_pod_with_finalizers_outlives_its_grace
    test_binding_puts_the_pod_on_the_node_with_its_annotations test_selectors
    test_a_watch_without_a_version_starts_with_what_is_there
    test_concurrent_writers_of_one_object_never_lose_an_update test_the_callers_objects_are_not_shared
""".split()
globals().update({name: getattr(suite, name) for name in SHARED})
