from __future__ import annotations

import pytest

from remuda.api.errors import NotFound
from remuda.api.kinds import KINDS
from remuda.api.meta import KObject
from remuda.embedded.apiserver.kinds_served import KindRegistry
from remuda.embedded.apiserver.naming import generate_object_name
from remuda.embedded.apiserver.wire.url_paths import UrlTarget, parse_url_path
from remuda.kube.client.rest_paths import rest_path

REGISTRY = KindRegistry()


def read(path: str) -> UrlTarget:
    return parse_url_path(path, REGISTRY)


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_reads_every_path_the_client_writes(kind: type[KObject]) -> None:
    namespaces = ["team", "status", "namespaces"] if kind.resource.namespaced else [""]
    served = REGISTRY.of(kind)
    assert read(rest_path(kind.resource)) == UrlTarget(served)
    for namespace in namespaces:
        assert read(rest_path(kind.resource, namespace)) == UrlTarget(served, namespace)
        for name in ("x", "status", "a.b-c", "pods"):
            assert read(rest_path(kind.resource, namespace, name)) == UrlTarget(served, namespace, name)
            for subresource in kind.resource.subresources:
                target = UrlTarget(served, namespace, name, subresource)
                assert read(rest_path(kind.resource, namespace, name, subresource)) == target


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/api/v1",
        "/api/v2/pods",
        "/apis/remuda.dev/v1alpha1",
        "/api/v1/namespaces//pods",
        "/api/v1/namespaces/team/pods//status",
        "/api/v1/namespaces/team/pods/p/status/more",
        "/api/v1/pods/p",
        "/api/v1/nodes/n/binding",
    ],
)
def test_anything_else_is_not_found(path: str) -> None:
    with pytest.raises(NotFound, match="could not find the requested resource"):
        read(path)


def test_generated_names_come_from_the_seed_alone_and_fit() -> None:
    assert generate_object_name("w-", "seed") == generate_object_name("w-", "seed")
    assert generate_object_name("w-", "seed") != generate_object_name("w-", "other")
    assert len(generate_object_name("x" * 200, "seed")) == 63
