"""Cases of bad input: the same code and reason on both servers."""

from __future__ import annotations

from typing import Any

from tests.conformance.bodies import config, deployment, pod, training
from tests.conformance.catalogue import case
from tests.conformance.places import CM, DEPLOYMENTS, JOBS, MERGE, PODS
from tests.conformance.run import Run


@case("py", "bad-malformed-bodies")
def malformed(run: Run) -> None:
    for body in (b"", b"{", b"[]", b'"text"', b"null", b"{}", b"\xff\xfe", b'{"kind":', b'{"a":1}}', b"7"):
        run.http("POST", CM, body)


@case("py", "bad-kinds-and-versions")
def kinds(run: Run) -> None:
    run.http("POST", CM, {**config(), "kind": "Pod"})
    run.http("POST", CM, {**config(), "apiVersion": "v2"})
    run.http("POST", CM, {**config(), "kind": "NoSuchKind"})
    run.http("POST", CM, {"metadata": {"name": "bare"}})
    run.http("GET", "/api/v1/namespaces/{ns}/nosuchkinds")
    run.http("POST", "/apis/apps/v1/namespaces/{ns}/nosuch", deployment())
    run.http("GET", "/apis/nosuch.group/v1/namespaces/{ns}/things")
    run.http("GET", "/apis/apps/v9/namespaces/{ns}/deployments")


@case("py", "bad-types-in-fields")
def types(run: Run) -> None:
    run.http("POST", CM, {**config(), "data": {"a": 1}})
    run.http("POST", CM, {**config(), "data": []})
    run.http("POST", CM, {**config(), "metadata": "one"})
    run.http("POST", CM, {**config(), "metadata": {"name": "one", "labels": {"a": 1}}})
    run.http("POST", PODS, {**pod(), "spec": []})
    run.http("POST", PODS, pod(containers="none"))
    run.http("POST", DEPLOYMENTS, {**deployment(), "spec": {**deployment()["spec"], "replicas": "two"}})
    run.http("POST", DEPLOYMENTS, {**deployment(), "spec": {**deployment()["spec"], "replicas": 1.5}})
    run.http("POST", JOBS, {**training(), "spec": {"roles": "none"}})
    lease = {"metadata": {"name": "one"}, "spec": {"renewTime": "2026-01-01T00:00:00Z"}}
    run.http("POST", "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases", lease)


@case("py", "bad-names")
def names(run: Run) -> None:
    for name in ("Upper", "a_b", "-a", "a" * 254, "a/b", "", ".", "a..b"):
        run.http("POST", CM, config(name))
    run.http("POST", PODS, pod("p" * 64))
    run.http("POST", "/api/v1/namespaces", {"metadata": {"name": "dots.are.not"}})
    service = {"metadata": {"name": "1st"}, "spec": {"ports": [{"port": 1}]}}
    run.http("POST", "/api/v1/namespaces/{ns}/services", service)


@case("py", "bad-labels-and-annotations")
def labels(run: Run) -> None:
    for labels in ({"-a": "b"}, {"a": "-b"}, {"a": "x" * 64}, {"a/b/c": "d"}, {"": "x"}, {"UP.com/a": "b"}):
        run.http("POST", CM, {**config(), "metadata": {"name": "one", "labels": labels}})
    run.http("POST", CM, {**config(), "metadata": {"name": "one", "annotations": {"a b": "c"}}})
    run.http("POST", CM, {**config(), "metadata": {"name": "one", "annotations": {"a": "x" * 300_000}}})


@case("py", "bad-large-bodies")
def large(run: Run) -> None:
    run.http("POST", CM, config(a="x" * (1024 * 1024 + 1)))
    run.http("POST", CM, config(a="x" * 3_200_000))
    run.http("POST", JOBS, {**training(), "metadata": {"name": "big", "annotations": {"a": "x" * 3_200_000}}})
    run.http("POST", CM, config(a="x" * 2_000_000))
    run.http("POST", JOBS, {**training(), "metadata": {"name": "big", "annotations": {"a": "x" * 2_000_000}}})
    run.http("POST", CM, config("small"))
    run.http("PATCH", f"{CM}/small", {"data": {"a": "x" * 2_000_000}}, media=MERGE)
    run.http("PATCH", f"{CM}/small", {"data": {"a": "x" * 3_200_000}}, media=MERGE)


@case("py", "bad-unknown-fields")
def unknown(run: Run) -> None:
    body = {**config(), "surprise": 1}
    run.http("POST", CM, body, fieldValidation="Strict")
    run.http("POST", CM, {**config("ignored"), "surprise": 1}, fieldValidation="Ignore")
    run.http("POST", CM, {**config("warned"), "surprise": 1}, fieldValidation="Warn")
    run.http("POST", CM, {**config("default"), "surprise": 1})
    run.http("POST", CM, body, fieldValidation="Maybe")
    deep = pod("deep")
    deep["spec"]["containers"][0]["imagee"] = "x"
    run.http("POST", PODS, deep, fieldValidation="Strict")
    run.http("POST", CM, b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"twice"},"data":{"a":"1","a":"2"}}')
    twice = b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"strict"},"data":{"a":"1","a":"2"}}'
    run.http("POST", CM, twice, fieldValidation="Strict")
    run.http("PATCH", f"{CM}/default", {"surprise": 1}, media=MERGE, fieldValidation="Strict")


@case("py", "bad-unknown-fields-in-our-kinds")
def unknown_own(run: Run) -> None:
    job = training()
    job["spec"]["surprise"] = 1
    run.http("POST", JOBS, job, fieldValidation="Strict")
    run.http("POST", JOBS, job)


@case("py", "bad-pods")
def pods(run: Run) -> None:
    run.http("POST", PODS, pod("a", containers=[]))
    run.http("POST", PODS, pod("b", containers=[{"name": "main"}]))
    run.http("POST", PODS, pod("c", containers=[{"name": "M", "image": "x"}]))
    run.http("POST", PODS, pod("d", containers=[{"name": "m", "image": "x"}, {"name": "m", "image": "x"}]))
    run.http("POST", PODS, pod("e", restartPolicy="Sometimes"))
    run.http("POST", PODS, pod("f", terminationGracePeriodSeconds=-1))
    limits = {"limits": {"cpu": "lots"}}
    run.http("POST", PODS, pod("g", containers=[{"name": "m", "image": "x", "resources": limits}]))
    limits = {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}
    run.http("POST", PODS, pod("h", containers=[{"name": "m", "image": "x", "resources": limits}]))
    run.http("POST", PODS, pod("i", tolerations=[{"key": "a", "operator": "Like"}]))
    run.http("POST", PODS, pod("j", volumes=[{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]))
    mounts = [{"name": "nosuch", "mountPath": "/x"}]
    run.http("POST", PODS, pod("k", containers=[{"name": "m", "image": "x", "volumeMounts": mounts}]))
    run.http("POST", PODS, {"metadata": {"name": "l"}})


@case("py", "bad-deployments-and-jobs")
def workloads(run: Run) -> None:
    body = deployment()
    body["spec"]["selector"] = {"matchLabels": {"app": "other"}}
    run.http("POST", DEPLOYMENTS, body)
    body = deployment()
    del body["spec"]["selector"]
    run.http("POST", DEPLOYMENTS, body)
    run.http("POST", DEPLOYMENTS, deployment(replicas=-1))
    job: dict[str, Any] = {"metadata": {"name": "one"}, "spec": {"template": {"spec": pod()["spec"]}}}
    run.http("POST", "/apis/batch/v1/namespaces/{ns}/jobs", job)
    job["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    job["spec"]["completionMode"] = "Indexed"
    run.http("POST", "/apis/batch/v1/namespaces/{ns}/jobs", job)
    budget = {"metadata": {"name": "one"}, "spec": {"minAvailable": 1, "maxUnavailable": 1}}
    run.http("POST", "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets", budget)


@case("py", "bad-query-values")
def queries(run: Run) -> None:
    run.http("GET", CM, limit="many")
    run.http("GET", CM, limit="-1")
    run.http("POST", CM, config(), dryRun="Perhaps")
    run.http("DELETE", f"{CM}/one", gracePeriodSeconds="long")
    run.http("GET", CM, noSuchOption="x")


@case("py", "bad-delete-options")
def delete_options(run: Run) -> None:
    run.http("POST", CM, config())
    run.http("DELETE", f"{CM}/one", b"{ not json")
    run.http("DELETE", f"{CM}/one", {"kind": "Pod", "apiVersion": "v1"})
    run.http("DELETE", f"{CM}/one", {"gracePeriodSeconds": "ten"})
    run.http("DELETE", f"{CM}/one", {"dryRun": ["Some"]})
    run.http("DELETE", f"{CM}/nosuch")
    run.http("GET", f"{CM}/one")


@case("py", "bad-trainingjobs")
def training_jobs(run: Run) -> None:
    run.http("POST", JOBS, {"apiVersion": "remuda.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "a"}})
    run.http("POST", JOBS, training("b", replicas=0))
    run.http("POST", JOBS, {**training("c"), "spec": {"roles": []}})
    run.http("POST", JOBS, {**training("D")})


@case("py", "bad-stale-versions")
def stale(run: Run) -> None:
    run.http("POST", CM, config())
    run.http("GET", f"{CM}/one", resourceVersion="999999999")
    run.http("GET", f"{CM}/one", resourceVersion="x")
    run.http("PUT", f"{CM}/one", {**config(), "metadata": {"name": "one", "resourceVersion": "1"}})
    run.http("PUT", f"{CM}/one", {**config(), "metadata": {"name": "one", "resourceVersion": "abc"}})
    run.http("PUT", f"{CM}/one", {**config(), "metadata": {"name": "one", "uid": "other"}})
