"""Junk over HTTP: paths, queries, selectors, bodies and every kind of patch, near enough to the real thing to get far.

Whatever comes, the answer is none of the server's own failures (500), and every refusal is a Status that names its code and
reason. The app is called without sockets, on one store for all examples of a test, so a body that got in is there for the next
one to trip over.

REMUDA_FUZZ_EXAMPLES sets the number of examples of each test (default 100, a few seconds in all).
"""

from __future__ import annotations

import asyncio
import json
import os
import traceback
import uuid
from collections.abc import Iterator, MutableMapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remuda.api.kubernetes.core_v1 import Namespace
from remuda.api.meta import ObjectMeta
from remuda.embedded.apiserver import app
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import ObjectStore
from remuda.embedded.apiserver.store.journal import MemoryJournal
from tests.builders.patches import GADGET_SCHEMA

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes

EXAMPLES = int(os.environ.get("REMUDA_FUZZ_EXAMPLES", "100"))
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"

NAMESPACED = "/namespaces/default"
COLLECTIONS = {
    "ConfigMap": f"/api/v1{NAMESPACED}/configmaps",
    "Secret": f"/api/v1{NAMESPACED}/secrets",
    "Service": f"/api/v1{NAMESPACED}/services",
    "Pod": f"/api/v1{NAMESPACED}/pods",
    "Event": f"/api/v1{NAMESPACED}/events",
    "ResourceQuota": f"/api/v1{NAMESPACED}/resourcequotas",
    "LimitRange": f"/api/v1{NAMESPACED}/limitranges",
    "PersistentVolumeClaim": f"/api/v1{NAMESPACED}/persistentvolumeclaims",
    "Node": "/api/v1/nodes",
    "Namespace": "/api/v1/namespaces",
    "Deployment": f"/apis/apps/v1{NAMESPACED}/deployments",
    "ReplicaSet": f"/apis/apps/v1{NAMESPACED}/replicasets",
    "Job": f"/apis/batch/v1{NAMESPACED}/jobs",
    "Lease": f"/apis/coordination.k8s.io/v1{NAMESPACED}/leases",
    "PodDisruptionBudget": f"/apis/policy/v1{NAMESPACED}/poddisruptionbudgets",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "EndpointSlice": f"/apis/discovery.k8s.io/v1{NAMESPACED}/endpointslices",
    "HorizontalPodAutoscaler": f"/apis/autoscaling/v2{NAMESPACED}/horizontalpodautoscalers",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "TrainingJob": f"/apis/remuda.dev/v1alpha1{NAMESPACED}/trainingjobs",
    "NodeDevices": "/apis/remuda.dev/v1alpha1/nodedevices",
    "Gadget": f"/apis/fuzz.example/v1{NAMESPACED}/gadgets",
    "SelfSubjectAccessReview": "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
}
CONTAINERS = [{"name": "main", "image": "x", "command": ["x"]}]
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": CONTAINERS, "restartPolicy": "Always"}}
SEEDS: dict[str, dict[str, Any]] = {
    "ConfigMap": {"data": {"a": "1"}},
    "Secret": {"data": {"a": "YQ=="}},
    "Service": {"spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}},
    "Pod": {"spec": {"containers": CONTAINERS}},
    "Deployment": {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}},
    "Job": {"spec": {"template": {"spec": {"containers": CONTAINERS, "restartPolicy": "Never"}}}},
    "Node": {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
    "Lease": {"spec": {"holderIdentity": "a"}},
    "PodDisruptionBudget": {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}},
    "Gadget": {"spec": {"free": {"a": 1}}},
    "TrainingJob": {"spec": {"roles": [{"name": "w", "replicas": 1, "gpus": 1, "template": TEMPLATE}]}},
}


class Served:
    """One server and the loop it lives in."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.failures: list[str] = []  # tracebacks that would go to the log
        self.app: ApiServerApp = self.loop.run_until_complete(self._begin())
        definition = {
            "metadata": {"name": "gadgets.fuzz.example"},
            "spec": {
                "group": "fuzz.example",
                "scope": "Namespaced",
                "names": {"plural": "gadgets", "kind": "Gadget"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": GADGET_SCHEMA},
                        "subresources": {"status": {}},
                    }
                ],
            },
        }
        code, answer = self.send("POST", COLLECTIONS["CustomResourceDefinition"], json.dumps(definition).encode())
        assert code == 201, answer
        for kind, body in SEEDS.items():
            data = json.dumps({**self.named(kind), **body}).encode()
            code, answer = self.send("POST", COLLECTIONS[kind], data)
            assert code == 201, answer

    @staticmethod
    def named(kind: str) -> dict[str, Any]:
        group_version = COLLECTIONS[kind].split("/namespaces/")[0] if "/namespaces/" in COLLECTIONS[kind] else ""
        api_version = (
            (group_version or COLLECTIONS[kind].rsplit("/", 1)[0]).removeprefix("/apis/").removeprefix("/api/")
        )
        return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "one"}}

    async def _begin(self) -> ApiServerApp:
        cluster = LocalCluster(
            ObjectStore(MemoryJournal()),
            clock=lambda: 1.7e9,
            new_uid=lambda: str(uuid.uuid4()),
            admission=AdmissionChain,
        )
        await cluster.create(Namespace, Namespace(metadata=ObjectMeta(name="default")))
        return ApiServerApp(cluster)

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        query: str = "",
        media: str = "application/json",
        accept: str = "",
    ) -> tuple[int, bytes]:
        told: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            told.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode("latin-1", "replace"),
            "headers": [
                (b"content-type", media.encode("latin-1", "replace")),
                (b"accept", accept.encode("latin-1", "replace")),
                (b"user-agent", b"fuzz"),
            ],
        }
        self.loop.run_until_complete(asyncio.wait_for(self.app(scope, receive, send), 20))
        return told[0]["status"], b"".join(each.get("body", b"") for each in told)

    def check(self, *request: Any, **options: Any) -> int:
        code, answer = self.send(*request, **options)
        assert code != 500, (request, options, answer, self.failures)
        if code >= 400:
            status = json.loads(answer)
            assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", code)
            assert status["reason"]
            assert status["message"]
        return code


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    made = Served(loop)
    # A traceback in colours takes seconds, for every example that shrinks a failure.
    patch = pytest.MonkeyPatch()
    patch.setattr(app, "log", SimpleNamespace(exception=lambda *_, **__: made.failures.append(traceback.format_exc())))
    try:
        yield made
    finally:
        patch.undo()
        loop.close()


# Values.

words = st.sampled_from(
    "apiVersion kind metadata spec status data name namespace labels annotations finalizers ownerReferences managedFields "
    "containers initContainers env ports uid resourceVersion generateName creationTimestamp deletionTimestamp replicas "
    "selector matchLabels matchExpressions template resources limits requests cpu memory tolerations volumes nodeName "
    "restartPolicy podIP podIPs conditions phase hard pods minAvailable maxUnavailable renewTime roles gpus free tags args "
    "names group versions schema openAPIV3Schema properties type items storage served scope plural $patch $retainKeys "
    "$setElementOrder/containers $deleteFromPrimitiveList/finalizers op path from value spares metrics rules "
    "podFailurePolicy onPodConditions clusterIP stringData binaryData key operator values effect taints".split()
)
COMMON = (
    "a one 1 -1 500m 1Gi lots Always Never None In Exists default 25% 2026-01-01T00:00:00Z 2026-01-01T00:00:00.000000Z soon "
    "delete replace merge 10.0.0.1 v1 apps/v1 Pod fuzz.example/v1 object array string"
)
texts = st.one_of(st.sampled_from([*COMMON.split(), "", "x" * 300, "\x00", "\ud800"]), st.text(max_size=4))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.sampled_from([2**31, 2**63, -(2**63), 2**70, 1.5, 1e300]), texts
)
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(words, texts), inner, max_size=5)),
    max_leaves=20,
)
objects = st.dictionaries(words, junk, max_size=5)
kinds = st.sampled_from(sorted(COLLECTIONS))


@st.composite
def near_misses(draw: st.DrawFn, kind: str) -> Any:
    """The seed of a kind with a piece replaced by junk, or junk."""
    body: Any = {**Served.named(kind), **json.loads(json.dumps(SEEDS.get(kind, {})))}
    if draw(st.integers(0, 4)) == 0:
        return draw(st.one_of(objects, junk))
    holder: Any = body
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from([*keys, None])) if keys else None
        if key is None:
            break
        if isinstance(holder[key], dict | list) and draw(st.booleans()):
            holder = holder[key]
            continue
        holder[key] = draw(junk)
        return body
    if isinstance(holder, dict):
        holder[draw(words)] = draw(junk)
    else:
        holder.append(draw(junk))
    return body


@st.composite
def torn(draw: st.DrawFn, value: Any) -> bytes:
    """Its JSON, now and then with some bytes changed, lost or doubled."""
    data = json.dumps(value).encode()
    if draw(st.integers(0, 5)):
        return data
    at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 4))
    return data[:at] + draw(st.one_of(st.binary(max_size=4), st.just(data[at : at + 20]))) + data[at + length :]


queries = st.dictionaries(
    st.sampled_from(
        "limit continue resourceVersion resourceVersionMatch labelSelector fieldSelector timeoutSeconds dryRun fieldManager "
        "fieldValidation force pretty gracePeriodSeconds propagationPolicy orphanDependents allowWatchBookmarks container "
        "sendInitialEvents tailLines limitBytes includeObject".split()
    ),
    st.one_of(
        texts, st.sampled_from(["true", "false", "All", "Strict", "Warn", "Exact", "NotOlderThan", "0", "9" * 30])
    ),
    max_size=4,
)


# Paths and queries.

segments = st.one_of(
    st.sampled_from(
        "api apis v1 v2 v1alpha1 namespaces default one status scale binding eviction log exec finalize pods configmaps apps "
        "batch deployments jobs remuda.dev trainingjobs openapi v3 v2 version healthz nosuch .. . fuzz.example gadgets".split()
    ),
    st.text(max_size=6),
    st.sampled_from(["", "\x00", "a" * 300, "%2e", "ü"]),
)
paths = st.one_of(
    st.lists(segments, max_size=8).map(lambda found: "/" + "/".join(found)),
    st.tuples(st.sampled_from(sorted(COLLECTIONS.values())), st.lists(segments, max_size=3)).map(
        lambda found: "/".join((found[0], *found[1]))
    ),
    st.text(max_size=30),
)
methods = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", ""])
raw_queries = st.one_of(
    queries.map(lambda given: urlencode(given, errors="replace")), st.text("=&%;+a1 limit", max_size=20)
)
medias = st.one_of(
    st.sampled_from(["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", MERGE, JSON_PATCH]),
    st.sampled_from([STRATEGIC, APPLY, "", "text/plain", "application/json; charset=", ";", "*/*"]),
)
ACCEPTS = (
    "*/* application/json;as=Table;v=v1;g=meta.k8s.io application/yaml application/json;as=; ;;, text/html "
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io application/vnd.kubernetes.protobuf"
)
accepts = st.sampled_from(["", *ACCEPTS.split()])


@FUZZ
@given(methods, paths, raw_queries, medias, accepts, st.one_of(junk.map(lambda v: json.dumps(v).encode()), st.binary()))
def test_paths(served: Served, method: str, path: str, query: str, media: str, accept: str, body: bytes) -> None:
    if (
        method == "DELETE"
    ):  # of a collection it would take away what the others write to, definitions of kinds among them
        query = f"dryRun=All&{query}"
    served.check(method, path, body, query, media, accept)


# Selectors.

TOKENS = r"a app x.y/z metadata.name spec.nodeName = == != ! > < in notin ( ) , \ \, \= 1 9223372036854775808 - exists"
tokens = st.sampled_from([*TOKENS.split(), " ", "", "\x00", "ü", "y" * 64, "\t"])
selectors = st.one_of(st.lists(tokens, max_size=10).map("".join), st.text(max_size=12))


@FUZZ
@given(kinds, selectors, selectors, st.sampled_from(["GET", "DELETE"]), st.sampled_from(["", "1", "x"]))
def test_selectors(served: Served, kind: str, labels: str, fields: str, method: str, limit: str) -> None:
    query = {"labelSelector": labels, "fieldSelector": fields, "limit": limit, "dryRun": "All"}
    served.check(method, COLLECTIONS[kind], b"", urlencode(query, quote_via=quote, errors="replace"))


# Bodies and patches.


@FUZZ
@given(st.data(), kinds, st.sampled_from(["POST", "PUT", "DELETE"]), queries, st.sampled_from(["", "status", "scale"]))
def test_bodies(served: Served, data: st.DataObject, kind: str, method: str, query: dict[str, str], sub: str) -> None:
    path = COLLECTIONS[kind] if method == "POST" else f"{COLLECTIONS[kind]}/one/{sub}".rstrip("/")
    body = data.draw(near_misses(kind).flatmap(torn))
    query = {**query, "dryRun": "All"} if method == "DELETE" else query  # the others are to have something to write to
    media = data.draw(st.sampled_from(["application/json", "application/json", "application/yaml"]))
    served.check(method, path, body, urlencode(query, errors="replace"), media)


@FUZZ
@given(st.data(), kinds, st.sampled_from([MERGE, STRATEGIC, APPLY]), queries, st.sampled_from(["", "status", "scale"]))
def test_patches(served: Served, data: st.DataObject, kind: str, media: str, query: dict[str, str], sub: str) -> None:
    body = data.draw(st.one_of(objects, near_misses(kind)).flatmap(torn))
    if media == APPLY:
        query = {"fieldManager": "fuzz", **query}
    served.check("PATCH", f"{COLLECTIONS[kind]}/one/{sub}".rstrip("/"), body, urlencode(query, errors="replace"), media)


pointers = st.lists(st.one_of(words, st.sampled_from(["0", "-", "-1", "~1", "~0", "~", "a"]), texts), max_size=5).map(
    lambda found: "".join(f"/{each}" for each in found)
)
operations = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"])},
    optional={"path": st.one_of(pointers, scalars), "from": st.one_of(pointers, scalars), "value": junk},
)


@FUZZ
@given(st.data(), kinds, st.one_of(st.lists(operations, max_size=6), junk), st.sampled_from(["", "status", "scale"]))
def test_json_patches(served: Served, data: st.DataObject, kind: str, ops: Any, sub: str) -> None:
    body = data.draw(torn(ops))
    served.check("PATCH", f"{COLLECTIONS[kind]}/one/{sub}".rstrip("/"), body, "", JSON_PATCH)


@pytest.mark.parametrize("kind", sorted(SEEDS))
def test_the_seeds_are_still_served(served: Served, kind: str) -> None:
    """Last: after all that, reading still works."""
    assert served.check("GET", COLLECTIONS[kind]) == 200
    assert served.check("GET", COLLECTIONS[kind], accept="application/json;as=Table;v=v1;g=meta.k8s.io") == 200
