"""Cases of the official package: watches, discovery, content types."""

from __future__ import annotations

from typing import Any

import kubernetes

from tests.conformance.bodies import config, pod
from tests.conformance.catalogue import case
from tests.conformance.places import CM, MERGE, PODS
from tests.conformance.run import Run
from tests.conformance.transcript import normal

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"


def _events(run: Run, step: str, **options: Any) -> None:
    """What a watch of the namespace's config maps tells until the server ends it."""
    watch: Any = kubernetes.watch.Watch()  # type: ignore[no-untyped-call]
    seen = []
    try:
        for event in watch.stream(run.core.list_namespaced_config_map, run.ns, timeout_seconds=1, **options):
            seen.append({"type": event["type"], "object": event["raw_object"]})
    except kubernetes.client.ApiException as refusal:
        seen.append({"refused": refusal.status})
    run.note(step, normal(seen))


@case("py", "watch-from-a-version")
def watch_from(run: Run) -> None:
    start = run.core.list_namespaced_config_map(run.ns).metadata.resource_version
    run.core.create_namespaced_config_map(run.ns, config())
    run.core.patch_namespaced_config_map("one", run.ns, {"data": {"a": "2"}})
    run.core.delete_namespaced_config_map("one", run.ns)
    _events(run, "events", resource_version=start)


@case("py", "watch-from-nothing")
def watch_all(run: Run) -> None:
    run.core.create_namespaced_config_map(run.ns, config())
    _events(run, "without a version")
    _events(run, "version 0", resource_version="0")


@case("py", "watch-with-a-selector")
def watch_selected(run: Run) -> None:
    start = run.core.list_namespaced_config_map(run.ns).metadata.resource_version
    body = config()
    body["metadata"]["labels"] = {"app": "x"}
    run.core.create_namespaced_config_map(run.ns, body)
    run.core.patch_namespaced_config_map("one", run.ns, {"metadata": {"labels": {"app": "y"}}})
    run.core.patch_namespaced_config_map("one", run.ns, {"metadata": {"labels": {"app": "x"}}})
    _events(run, "events", resource_version=start, label_selector="app=x")


@case("py", "watch-of-one-name")
def watch_named(run: Run) -> None:
    start = run.core.list_namespaced_config_map(run.ns).metadata.resource_version
    run.core.create_namespaced_config_map(run.ns, config("one"))
    run.core.create_namespaced_config_map(run.ns, config("two"))
    _events(run, "events", resource_version=start, field_selector="metadata.name=two")


@case("py", "watch-refused")
def watch_refused(run: Run) -> None:
    run.http("GET", CM, watch="true", resourceVersion="abc", timeoutSeconds="1")
    run.http("GET", CM, watch="true", labelSelector="a in", timeoutSeconds="1")
    run.http("GET", CM, watch="true", timeoutSeconds="soon")
    run.http("GET", CM, watch="true", sendInitialEvents="true", timeoutSeconds="1")


@case("py", "watch-initial-events")
def watch_initial(run: Run) -> None:
    run.core.create_namespaced_config_map(run.ns, config())
    _events(
        run,
        "events",
        send_initial_events=True,
        allow_watch_bookmarks=True,
        resource_version_match="NotOlderThan",
    )


@case("py", "core-discovery")
def discovery(run: Run) -> None:
    served = "configmaps events limitranges namespaces nodes persistentvolumeclaims pods resourcequotas secrets".split()
    served += ["serviceaccounts", "services"]
    for path, names in (
        ("/api/v1", served),
        ("/apis/apps/v1", ["deployments", "replicasets"]),
        ("/apis/batch/v1", ["jobs"]),
        ("/apis/policy/v1", ["poddisruptionbudgets"]),
        ("/apis/coordination.k8s.io/v1", ["leases"]),
        ("/apis/scheduling.k8s.io/v1", ["priorityclasses"]),
        ("/apis/discovery.k8s.io/v1", ["endpointslices"]),
        ("/apis/autoscaling/v2", ["horizontalpodautoscalers"]),
        ("/apis/apiextensions.k8s.io/v1", ["customresourcedefinitions"]),
        ("/apis/remuda.dev/v1alpha1", ["trainingjobs", "nodedevices", "drills"]),
    ):
        found = run.server.must("GET", path)["resources"]
        rows = {row["name"]: {k: v for k, v in row.items() if k != "storageVersionHash"} for row in found}
        for row in rows.values():
            row["verbs"] = sorted(row["verbs"])
        run.note(path, {name: rows.get(name) for name in names})
        subs = ("status", "scale", "binding", "eviction", "log")
        run.note(
            f"{path} subresources",
            {n: r for n, r in rows.items() if n.partition("/")[2] in subs and n.split("/")[0] in names},
        )


@case("py", "groups")
def groups(run: Run) -> None:
    run.http("GET", "/apis/apps")
    run.http("GET", "/apis/remuda.dev")
    run.http("GET", "/apis/no.such.group")
    run.http("GET", "/api/v2")
    run.http("GET", "/healthz")
    run.http("GET", "/readyz")
    run.http("GET", "/no/such/path")


@case("py", "group-list")
def group_list(run: Run) -> None:
    """Those that both serve: which more there are is the first row of the table in docs/compatibility.md."""
    served = (
        "apiextensions.k8s.io apps autoscaling batch coordination.k8s.io discovery.k8s.io events.k8s.io policy".split()
    )
    served += ["authorization.k8s.io", "authentication.k8s.io", "remuda.dev", "scheduling.k8s.io"]
    found = {group["name"]: group for group in run.server.must("GET", "/apis")["groups"]}
    run.note("groups", {name: found.get(name) for name in served})


@case("py", "version")
def version(run: Run) -> None:
    run.api("VersionApi").get_code()


@case("py", "tables")
def tables(run: Run) -> None:
    run.http("POST", PODS, pod())
    run.http("POST", CM, config())
    for path in (PODS, f"{PODS}/one", CM, f"{CM}/one"):
        run.http("GET", path, accept=TABLE)
    run.http("GET", CM, accept=TABLE, includeObject="None")
    run.http("GET", CM, accept=TABLE, includeObject="Object")


@case("py", "partial-metadata")
def partial(run: Run) -> None:
    run.http("POST", CM, config())
    run.http("GET", f"{CM}/one", accept=PARTIAL)
    run.http("GET", CM, accept=PARTIAL_LIST)


@case("py", "content-types")
def content_types(run: Run) -> None:
    run.http(
        "POST", CM, b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\ndata: {a: b}\n", media="application/yaml"
    )
    run.http("GET", f"{CM}/one", accept="application/yaml")
    run.http("GET", f"{CM}/one", accept="text/html")
    run.http("GET", f"{CM}/one", accept="*/*")
    run.http("POST", CM, config("two"), media="text/plain")
    run.http("POST", CM, config("three"), media="application/json; charset=utf-8")


@case("py", "methods-refused")
def methods(run: Run) -> None:
    run.http("PUT", CM, config())
    run.http("POST", f"{CM}/one", config())
    run.http("PATCH", CM, {}, media=MERGE)
    run.http("DELETE", "/api/v1/namespaces")
    run.http("GET", f"{PODS}/one/binding")
    run.http("GET", f"{PODS}/one/nosuch")


@case("py", "wrong-token")
def wrong_token(run: Run) -> None:
    url = run.server.url + "/api/v1/namespaces"
    run.api_client.call_api("GET", url, {"Authorization": "Bearer wrong", "Accept": "application/json"})


@case("py", "pod-log-of-nothing")
def log(run: Run) -> None:
    run.http("GET", f"{PODS}/one/log")
    run.http("POST", PODS, pod())
    run.http("GET", f"{PODS}/one/log", container="nosuch")
