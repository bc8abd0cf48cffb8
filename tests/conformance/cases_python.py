"""Cases of the official Python package: every kind through its typed methods, then what the API promises about objects."""

from __future__ import annotations

from typing import Any

import kubernetes

from tests.conformance.bodies import KINDS, config, deployment, event, pod, training
from tests.conformance.catalogue import case
from tests.conformance.places import CM, DEPLOYMENTS, MERGE, PODS
from tests.conformance.run import Run
from tests.conformance.servers import wait_for


def _crud(group: str, snake: str, namespaced: bool, body: dict[str, Any]) -> Any:
    def play(run: Run) -> None:
        api = run.api(group)
        where = (run.ns,) if namespaced else ()
        of = ("namespaced_" if namespaced else "") + snake
        wanted = body or event(ns=run.ns)
        name = wanted["metadata"]["name"]

        def method(verb: str) -> Any:
            return getattr(api, f"{verb}_{of}")

        run.py(method("create"), *where, wanted)
        run.py(method("create"), *where, wanted)
        found = run.py(method("read"), name, *where)
        if namespaced:
            run.py(method("list"), *where)
        run.py(method("patch"), name, *where, {"metadata": {"labels": {"patched": "yes"}}})
        if found is not None:
            found.metadata.labels = {"replaced": "yes"}
            found.metadata.resource_version = None
            run.py(method("replace"), name, *where, found)
        run.py(method("delete"), name, *where)
        run.py(method("read"), name, *where)

    return play


for _kind, _row in KINDS.items():
    case("py", f"crud-{_kind.lower()}")(_crud(*_row))


@case("py", "crud-trainingjob")
def crud_trainingjob(run: Run) -> None:
    api = run.api("CustomObjectsApi")
    at = ("remuda.dev", "v1alpha1", run.ns, "trainingjobs")
    run.py(api.create_namespaced_custom_object, *at, training())
    run.py(api.create_namespaced_custom_object, *at, training())
    found = run.py(api.get_namespaced_custom_object, *at, "one")
    run.py(api.list_namespaced_custom_object, *at)
    run.py(api.patch_namespaced_custom_object, *at, "one", {"spec": {"spares": 1}})
    run.py(api.patch_namespaced_custom_object_status, *at, "one", {"status": {"phase": "Running"}})
    if found:
        found["metadata"].pop("resourceVersion")
        run.py(api.replace_namespaced_custom_object, *at, "one", found)
        found["metadata"]["resourceVersion"] = "1"
        run.py(api.replace_namespaced_custom_object, *at, "one", found)
    run.py(api.delete_namespaced_custom_object, *at, "one")
    run.py(api.get_namespaced_custom_object, *at, "one")


@case("py", "crud-drill")
def crud_drill(run: Run) -> None:
    drill = {
        "apiVersion": "remuda.dev/v1alpha1",
        "kind": "Drill",
        "metadata": {"name": "py-drill"},
        "spec": {"type": "pod-delete", "pod": "nobody", "namespace": run.ns},
    }
    drills = "/apis/remuda.dev/v1alpha1/drills"
    run.http("POST", drills, drill)
    run.http("GET", f"{drills}/py-drill")
    run.http("PATCH", f"{drills}/py-drill", {"metadata": {"labels": {"a": "b"}}}, media=MERGE)
    run.http("DELETE", f"{drills}/py-drill")
    run.http("POST", drills, {**drill, "spec": {"type": "no-such-drill"}})


@case("py", "list-pages")
def list_pages(run: Run) -> None:
    for number in range(7):
        run.core.create_namespaced_config_map(run.ns, config(f"c-{number}"))
    page = run.core.list_namespaced_config_map(run.ns, limit=3)
    while page.metadata._continue:
        page = run.core.list_namespaced_config_map(run.ns, limit=3, _continue=page.metadata._continue)
    run.py(run.core.list_namespaced_config_map, run.ns, limit=3, _continue="nonsense")


@case("py", "list-pages-hold-the-first-version")
def list_pages_consistent(run: Run) -> None:
    for number in range(4):
        run.core.create_namespaced_config_map(run.ns, config(f"c-{number}"))
    page = run.core.list_namespaced_config_map(run.ns, limit=2)
    run.core.delete_namespaced_config_map("c-3", run.ns)
    run.core.create_namespaced_config_map(run.ns, config("c-4"))
    run.core.list_namespaced_config_map(run.ns, limit=9, _continue=page.metadata._continue)


@case("py", "list-continue-with-version")
def list_continue_with_version(run: Run) -> None:
    for number in range(3):
        run.core.create_namespaced_config_map(run.ns, config(f"c-{number}"))
    page = run.core.list_namespaced_config_map(run.ns, limit=1)
    run.py(
        run.core.list_namespaced_config_map,
        run.ns,
        limit=1,
        _continue=page.metadata._continue,
        resource_version=page.metadata.resource_version,
    )


@case("py", "list-resource-versions")
def list_versions(run: Run) -> None:
    made = run.core.create_namespaced_config_map(run.ns, config())
    version = made.metadata.resource_version
    # First the one that waits for the server's cache: version 0 means "whatever the cache has", which may honestly be older.
    run.py(run.core.list_namespaced_config_map, run.ns, resource_version=version, resource_version_match="NotOlderThan")
    run.py(run.core.list_namespaced_config_map, run.ns, resource_version="0")
    run.py(run.core.list_namespaced_config_map, run.ns, resource_version=version, resource_version_match="Exact")
    run.py(run.core.list_namespaced_config_map, run.ns, resource_version="0", resource_version_match="Exact")
    run.py(run.core.list_namespaced_config_map, run.ns, resource_version_match="Exact")
    run.py(run.core.list_namespaced_config_map, run.ns, resource_version="abc")
    run.py(run.core.list_namespaced_config_map, run.ns, resource_version=version, resource_version_match="Sometime")


@case("py", "label-selectors")
def label_selectors(run: Run) -> None:
    for name, labels in (("a", {"app": "x", "tier": "1"}), ("b", {"app": "y"}), ("c", {})):
        body = config(name)
        body["metadata"]["labels"] = labels
        run.core.create_namespaced_config_map(run.ns, body)
    for selector in (
        "app=x",
        "app==x",
        "app!=x",
        "app",
        "!app",
        "app in (x,y)",
        "app notin (x)",
        "app=x,tier=1",
        "app in ()",
    ):
        run.py(run.core.list_namespaced_config_map, run.ns, label_selector=selector)


@case("py", "bad-label-selectors")
def bad_label_selectors(run: Run) -> None:
    for selector in ("app in x", "app=(", "=x", "a b", "-x=1", "app=" + "y" * 64, ",", "app=x,,", "app>3", "app>x"):
        run.py(run.core.list_namespaced_config_map, run.ns, label_selector=selector)


@case("py", "label-selectors-by-number")
def number_selectors(run: Run) -> None:
    for name, labels in (("five", {"n": "5"}), ("nine", {"n": "9"}), ("word", {"n": "x"}), ("none", {})):
        run.server.must("POST", CM.format(ns=run.ns), {**config(name), "metadata": {"name": name, "labels": labels}})
    for selector in ("n>5", "n<9", "n > 3 , n < 9", "n>03", "n<9223372036854775807", "other>1"):
        run.py(run.core.list_namespaced_config_map, run.ns, label_selector=selector)
    for selector in ("n>=3", "n>", "n>-1", "n>+1", "n>3.5", ">3", "!n>3", "n>9223372036854775808", "n>3 4", "n=>3"):
        run.py(run.core.list_namespaced_config_map, run.ns, label_selector=selector)


@case("py", "field-selectors-escaped")
def escaped_selectors(run: Run) -> None:
    run.core.create_namespaced_config_map(run.ns, config())
    for value in (r"a\,b", r"a\=b", r"a\\b", "a=b", r"o\ne", "a\\", " one", "one,", ",", "==", "!="):
        run.py(run.core.list_namespaced_config_map, run.ns, field_selector=f"metadata.name={value}")
    for selector in ("=", "=x", "!=x", "==", " metadata.name=one", "metadata.name =one", "!metadata.name", "a,b"):
        run.py(run.core.list_namespaced_config_map, run.ns, field_selector=selector)


@case("py", "field-selectors")
def field_selectors(run: Run) -> None:
    for name in ("a", "b"):
        run.core.create_namespaced_pod(run.ns, pod(name, **({"nodeName": "ghost"} if name == "a" else {})))
    for selector in (
        "metadata.name=a",
        "metadata.name!=a",
        f"metadata.namespace={run.ns}",
        "spec.nodeName=ghost",
        "spec.nodeName=",
        "status.phase=Pending",
        "status.phase!=Running,metadata.name=b",
        "spec.restartPolicy=Always",
    ):
        run.py(run.core.list_namespaced_pod, run.ns, field_selector=selector)


@case("py", "bad-field-selectors")
def bad_field_selectors(run: Run) -> None:
    for selector in ("spec.image=x", "metadata.name", "metadata.labels.a=b", "spec.nodeName in (a)", "=,="):
        run.py(run.core.list_namespaced_pod, run.ns, field_selector=selector)
    run.py(run.core.list_namespaced_config_map, run.ns, field_selector="data.a=1")


@case("py", "conflict-on-a-stale-version")
def conflict(run: Run) -> None:
    made = run.core.create_namespaced_config_map(run.ns, config())
    run.core.patch_namespaced_config_map("one", run.ns, {"data": {"a": "3"}})
    run.py(run.core.replace_namespaced_config_map, "one", run.ns, made)
    stale = {"metadata": {"resourceVersion": made.metadata.resource_version}, "data": {"a": "4"}}
    run.py(run.core.patch_namespaced_config_map, "one", run.ns, stale)
    options = kubernetes.client.V1DeleteOptions(
        preconditions=kubernetes.client.V1Preconditions(resource_version=made.metadata.resource_version)
    )
    run.py(run.core.delete_namespaced_config_map, "one", run.ns, body=options)
    other = kubernetes.client.V1DeleteOptions(preconditions=kubernetes.client.V1Preconditions(uid="another"))
    run.py(run.core.delete_namespaced_config_map, "one", run.ns, body=other)


@case("py", "generated-names")
def generated_names(run: Run) -> None:
    body = config()
    body["metadata"] = {"generateName": "made-"}
    run.py(run.core.create_namespaced_config_map, run.ns, body)
    run.py(run.core.create_namespaced_config_map, run.ns, body)
    body["metadata"] = {"generateName": "x" * 70 + "-"}
    run.py(run.core.create_namespaced_config_map, run.ns, body)
    body["metadata"] = {"generateName": "Not_Good-"}
    run.py(run.core.create_namespaced_config_map, run.ns, body)
    body["metadata"] = {}
    run.py(run.core.create_namespaced_config_map, run.ns, body)


@case("py", "dry-run")
def dry_run(run: Run) -> None:
    run.py(run.core.create_namespaced_config_map, run.ns, config(), dry_run="All")
    run.py(run.core.read_namespaced_config_map, "one", run.ns)
    run.py(run.core.create_namespaced_config_map, run.ns, config())
    run.py(run.core.patch_namespaced_config_map, "one", run.ns, {"data": {"a": "9"}}, dry_run="All")
    run.py(run.core.replace_namespaced_config_map, "one", run.ns, config(c="3"), dry_run="All")
    run.py(run.core.delete_namespaced_config_map, "one", run.ns, dry_run="All")
    run.py(run.core.read_namespaced_config_map, "one", run.ns)
    run.py(run.core.create_namespaced_config_map, run.ns, config("two"), dry_run="Some")


@case("py", "replace-creates-nothing")
def replace_missing(run: Run) -> None:
    run.py(run.core.replace_namespaced_config_map, "one", run.ns, config())
    run.py(run.core.patch_namespaced_config_map, "one", run.ns, {"data": {}})
    run.core.create_namespaced_config_map(run.ns, config())
    run.http("PUT", f"{CM}/one", config("two"))
    run.http("PUT", f"{CM}/one", {**config(), "metadata": {"name": "one", "namespace": "elsewhere"}})
    run.http("POST", CM, {**config("three"), "metadata": {"name": "three", "namespace": "elsewhere"}})
    run.http("POST", CM, {**config("four"), "metadata": {"name": "four", "resourceVersion": "7"}})


@case("py", "delete-collection")
def delete_collection(run: Run) -> None:
    for name in ("a", "b", "c"):
        body = config(name)
        body["metadata"]["labels"] = {"app": "x" if name != "c" else "y"}
        run.core.create_namespaced_config_map(run.ns, body)
    run.py(run.core.delete_collection_namespaced_config_map, run.ns, label_selector="app=x")
    run.py(run.core.list_namespaced_config_map, run.ns)


@case("py", "generation-and-status")
def generation(run: Run) -> None:
    apps = run.api("AppsV1Api")
    apps.create_namespaced_deployment(run.ns, deployment())
    run.py(apps.patch_namespaced_deployment, "one", run.ns, {"metadata": {"annotations": {"a": "b"}}})
    run.py(apps.patch_namespaced_deployment, "one", run.ns, {"spec": {"replicas": 3}})
    run.py(apps.patch_namespaced_deployment_status, "one", run.ns, {"status": {"replicas": 3, "observedGeneration": 2}})
    run.py(apps.patch_namespaced_deployment_status, "one", run.ns, {"spec": {"replicas": 9}})
    run.py(apps.patch_namespaced_deployment, "one", run.ns, {"status": {"replicas": 7}})
    run.py(apps.read_namespaced_deployment_status, "one", run.ns)


@case("py", "scale")
def scale(run: Run) -> None:
    apps = run.api("AppsV1Api")
    apps.create_namespaced_deployment(run.ns, deployment())
    run.py(apps.read_namespaced_deployment_scale, "one", run.ns)
    run.py(apps.patch_namespaced_deployment_scale, "one", run.ns, {"spec": {"replicas": 5}})
    run.http("PUT", f"{DEPLOYMENTS}/one/scale", {"metadata": {"name": "one"}, "spec": {"replicas": 4}})
    run.http("PUT", f"{DEPLOYMENTS}/one/scale", {"metadata": {"name": "one"}, "spec": {"replicas": -1}})
    run.py(apps.read_namespaced_deployment_scale, "two", run.ns)
    run.http("GET", f"{DEPLOYMENTS}/one")


@case("py", "binding")
def binding(run: Run) -> None:
    run.core.create_namespaced_pod(run.ns, pod())
    body = {
        "metadata": {"name": "one", "annotations": {"remuda.dev/devices": "gpu-0"}},
        "target": {"kind": "Node", "name": "ghost"},
    }
    run.http("POST", f"{PODS}/one/binding", body)
    run.http("GET", f"{PODS}/one")
    run.http("POST", f"{PODS}/one/binding", body)
    run.http("POST", f"{PODS}/two/binding", {**body, "metadata": {"name": "two"}})
    run.http("POST", f"{PODS}/one/binding", {"metadata": {"name": "one"}, "target": {"kind": "Node", "name": ""}})


@case("py", "eviction")
def eviction(run: Run) -> None:
    run.core.create_namespaced_pod(run.ns, pod())
    run.api("PolicyV1Api").create_namespaced_pod_disruption_budget(run.ns, KINDS["PodDisruptionBudget"][3])
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one", "namespace": run.ns}}
    run.http("POST", f"{PODS}/one/eviction", {**body, "deleteOptions": {"dryRun": ["All"]}})
    run.http("POST", f"{PODS}/one/eviction", body)
    run.http("GET", f"{PODS}/one")
    run.http("POST", f"{PODS}/two/eviction", {**body, "metadata": {"name": "two"}})


@case("py", "eviction-is-held-by-a-budget")
def eviction_held(run: Run) -> None:
    run.core.create_namespaced_pod(run.ns, pod(nodeName="ghost"))
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    run.core.patch_namespaced_pod_status("one", run.ns, {"status": ready})
    policy = run.api("PolicyV1Api")
    policy.create_namespaced_pod_disruption_budget(run.ns, KINDS["PodDisruptionBudget"][3])
    status = {
        "observedGeneration": 1,
        "disruptionsAllowed": 0,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
    }
    policy.patch_namespaced_pod_disruption_budget_status("one", run.ns, {"status": status})
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one", "namespace": run.ns}}
    run.http("POST", f"{PODS}/one/eviction", body)
    policy.patch_namespaced_pod_disruption_budget_status("one", run.ns, {"status": {"disruptionsAllowed": 1}})
    run.http("POST", f"{PODS}/one/eviction", body)
    run.http("GET", f"/apis/policy/v1/namespaces/{run.ns}/poddisruptionbudgets/one")


@case("py", "finalizers")
def finalizers(run: Run) -> None:
    body = config()
    body["metadata"]["finalizers"] = ["suite.example/hold"]
    run.core.create_namespaced_config_map(run.ns, body)
    run.py(run.core.delete_namespaced_config_map, "one", run.ns)
    run.py(run.core.read_namespaced_config_map, "one", run.ns)
    more = {"metadata": {"finalizers": ["suite.example/hold", "suite.example/more"]}}
    run.http("PATCH", f"{CM}/one", more, media=MERGE)
    run.http("PATCH", f"{CM}/one", {"metadata": {"deletionTimestamp": None}}, media=MERGE)
    run.http("PATCH", f"{CM}/one", {"metadata": {"finalizers": []}}, media=MERGE)
    run.py(run.core.read_namespaced_config_map, "one", run.ns)
    body["metadata"]["finalizers"] = ["unqualified"]
    run.http("POST", CM, body)


@case("py", "grace")
def grace(run: Run) -> None:
    for name in ("bound", "free"):
        run.core.create_namespaced_pod(run.ns, pod(name, **({"nodeName": "ghost"} if name == "bound" else {})))
    run.py(run.core.delete_namespaced_pod, "free", run.ns)
    run.py(run.core.read_namespaced_pod, "free", run.ns)
    run.py(run.core.delete_namespaced_pod, "bound", run.ns)
    run.py(run.core.delete_namespaced_pod, "bound", run.ns, grace_period_seconds=5)
    run.py(run.core.read_namespaced_pod, "bound", run.ns)
    run.py(run.core.delete_namespaced_pod, "bound", run.ns, grace_period_seconds=0)
    run.py(run.core.read_namespaced_pod, "bound", run.ns)


@case("py", "propagation-policies")
def propagation(run: Run) -> None:
    apps = run.api("AppsV1Api")
    for policy in ("Foreground", "Orphan", "Background"):
        apps.create_namespaced_deployment(run.ns, deployment(policy.lower()))
        run.py(apps.delete_namespaced_deployment, policy.lower(), run.ns, propagation_policy=policy)
        run.py(apps.read_namespaced_deployment, policy.lower(), run.ns)
    run.core.create_namespaced_config_map(run.ns, config())
    run.py(run.core.delete_namespaced_config_map, "one", run.ns, propagation_policy="Sideways")
    both = {"propagationPolicy": "Orphan", "orphanDependents": True}
    run.http("DELETE", f"{CM}/one", both)


@case("py", "immutable-fields")
def immutable(run: Run) -> None:
    apps = run.api("AppsV1Api")
    apps.create_namespaced_deployment(run.ns, deployment())
    run.py(apps.patch_namespaced_deployment, "one", run.ns, {"spec": {"selector": {"matchLabels": {"x": "y"}}}})
    run.core.create_namespaced_pod(run.ns, pod())
    run.py(run.core.patch_namespaced_pod, "one", run.ns, {"spec": {"nodeName": "other"}})
    run.http("PATCH", f"{PODS}/one", {"spec": {"hostNetwork": True}}, media=MERGE)
    run.core.create_namespaced_config_map(run.ns, {**config(), "immutable": True})
    run.py(run.core.patch_namespaced_config_map, "one", run.ns, {"data": {"a": "2"}})
    run.http("PATCH", f"{CM}/one", {"metadata": {"uid": "other"}}, media=MERGE)
    run.http("PATCH", f"{CM}/one", {"metadata": {"name": "other"}}, media=MERGE)
    run.http("PATCH", f"{CM}/one", {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}, media=MERGE)


@case("py", "managed-fields-of-updates")
def managed_fields(run: Run) -> None:
    run.http("POST", CM, config(), fieldManager="first")
    run.http("PATCH", f"{CM}/one", {"data": {"a": "9", "c": "1"}}, media=MERGE, fieldManager="second")
    run.http("PATCH", f"{CM}/one", {"data": {"c": None}}, media=MERGE, fieldManager="second")
    run.http("PATCH", f"{CM}/one", {"metadata": {"managedFields": [{}]}}, media=MERGE)
    run.http("PATCH", f"{CM}/one", {"data": {"d": "1"}}, media=MERGE, fieldManager="x" * 129)


@case("py", "access-reviews")
def reviews(run: Run) -> None:
    review = {"resourceAttributes": {"namespace": run.ns, "verb": "create", "resource": "pods"}}
    at = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    run.http("POST", at, {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": review})
    run.http("POST", at, {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}})
    run.http("GET", at)
    review["nonResourceAttributes"] = {"path": "/healthz", "verb": "get"}
    run.http("POST", at, {"spec": review})


@case("py", "service-account-tokens-in-pods")
def token_volume(run: Run) -> None:
    body = pod()
    del body["spec"]["automountServiceAccountToken"]
    run.http("POST", PODS, body)


@case("py", "namespace-rules")
def namespace_rules(run: Run) -> None:
    run.http("POST", "/api/v1/namespaces/nowhere-at-all/configmaps", config())
    run.http("GET", "/api/v1/namespaces/nowhere-at-all/configmaps")
    other = f"{run.ns}-x"
    run.http("POST", "/api/v1/namespaces", {"metadata": {"name": other}})
    run.http("POST", f"/api/v1/namespaces/{other}/configmaps", config())
    run.http("DELETE", f"/api/v1/namespaces/{other}")
    run.http("POST", f"/api/v1/namespaces/{other}/configmaps", config("two"))
    run.http("DELETE", "/api/v1/namespaces/default")
    run.http("DELETE", "/api/v1/namespaces/kube-system")


@case("py", "admission-priority-quota-limits")
def admission(run: Run) -> None:
    run.http("POST", PODS, pod("p0", priorityClassName="no-such-class"))
    run.http("POST", PODS, pod("p1", priority=7))
    run.http("POST", f"/api/v1/namespaces/{run.ns}/limitranges", KINDS["LimitRange"][3])
    # kube-apiserver's plug-ins see these objects a moment later.
    trial = f"/api/v1/namespaces/{run.ns}/pods?dryRun=All"
    wait_for(lambda: "limits" in run.server.must("POST", trial, pod("p2"))["spec"]["containers"][0]["resources"])
    run.http("POST", PODS, pod("p2"))
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
    run.http("POST", f"/api/v1/namespaces/{run.ns}/resourcequotas", quota)
    status = {"status": {"hard": {"pods": "1"}, "used": {"pods": "1"}}}
    run.http("PATCH", f"/api/v1/namespaces/{run.ns}/resourcequotas/q/status", status, media=MERGE)
    wait_for(lambda: run.server.request("POST", trial, pod("p3"))[0] == 403)
    run.http("POST", PODS, pod("p3"))


@case("py", "gpu-tolerations")
def gpu(run: Run) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1", "cpu": "1.5", "memory": "1024Mi"}}
    run.http("POST", PODS, body)
    body = pod("bad")
    body["spec"]["containers"][0]["resources"] = {
        "requests": {"nvidia.com/gpu": "2"},
        "limits": {"nvidia.com/gpu": "1"},
    }
    run.http("POST", PODS, body)
