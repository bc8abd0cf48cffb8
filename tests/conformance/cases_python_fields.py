"""Cases of fields that cannot be what they are: in bodies (400) and in patches (422), with the same causes on both servers."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.bodies import config, definition, deployment, event, pod, training
from tests.conformance.cases_python_custom import define
from tests.conformance.catalogue import case
from tests.conformance.places import APPLY, CM, DEFINITIONS, DEPLOYMENTS, JOBS, JSON_PATCH, MERGE, PODS, STRATEGIC
from tests.conformance.run import Run
from tests.conformance.servers import wait_for

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
EVENTS = "/api/v1/namespaces/{ns}/events"
SECRETS = "/api/v1/namespaces/{ns}/secrets"


def _limited(name: str, amount: Any) -> dict[str, Any]:
    return pod(name, containers=[{"name": "m", "image": "x", "resources": {"limits": {"cpu": amount}}}])


@case("py", "bad-patches")
def patches(run: Run) -> None:
    run.http("POST", CM, config())
    run.http("POST", DEPLOYMENTS, deployment())
    lots = {"containers": [{"name": "main", "resources": {"limits": {"cpu": "lots"}}}]}
    for media in (MERGE, STRATEGIC):
        run.http("PATCH", f"{CM}/one", {"data": {"a": 1}}, media=media)
        run.http("PATCH", f"{CM}/one", {"metadata": {"labels": {"a": 1}}}, media=media)
        run.http("PATCH", f"{CM}/one", {"metadata": "x"}, media=media)
        run.http("PATCH", f"{CM}/one", {"metadata": {"creationTimestamp": "soon"}}, media=media)
        run.http("PATCH", f"{CM}/one", {"surprise": 1}, media=media)
        run.http("PATCH", f"{CM}/one", {"surprise": 1}, media=media, fieldValidation="Strict")
        run.http("PATCH", f"{CM}/one", {"surprise": 1}, media=media, fieldValidation="Ignore")
        run.http("PATCH", f"{DEPLOYMENTS}/one", {"spec": {"replicas": "two"}}, media=media)
        run.http("PATCH", f"{DEPLOYMENTS}/one", {"spec": {"replicas": 2**40}}, media=media)
        run.http("PATCH", f"{DEPLOYMENTS}/one", {"spec": {"template": {"spec": lots}}}, media=media)
    run.http("PATCH", f"{CM}/one", [{"op": "add", "path": "/surprise", "value": 1}], media=JSON_PATCH)
    strict = [{"op": "add", "path": "/surprise", "value": 1}]
    run.http("PATCH", f"{CM}/one", strict, media=JSON_PATCH, fieldValidation="Strict")
    run.http("PATCH", f"{CM}/one", [{"op": "replace", "path": "/metadata", "value": "x"}], media=JSON_PATCH)
    run.http("POST", JOBS, training())
    run.http("PATCH", f"{JOBS}/one", {"spec": {"surprise": 1}}, media=MERGE, fieldValidation="Strict")
    run.http("PATCH", f"{JOBS}/one", {"metadata": {"labels": {"a": 1}}}, media=MERGE)


@case("py", "bad-duplicate-fields")
def duplicates(run: Run) -> None:
    twice = json.dumps(config()).replace('"a":', '"a": "0", "a":').encode()
    run.http("POST", CM, twice, fieldValidation="Strict")
    run.http("POST", CM, twice, fieldValidation="Warn")
    run.http("PUT", f"{CM}/one", twice, fieldValidation="Strict")
    run.http(
        "POST", PODS, json.dumps(pod()).replace('"name": "main"', '"name": "a", "name": "b"'), fieldValidation="Strict"
    )
    for media in (MERGE, STRATEGIC):
        run.http("PATCH", f"{CM}/one", b'{"data":{"a":"1","a":"2"}}', media=media, fieldValidation="Strict")
        run.http("PATCH", f"{CM}/one", b'{"data":{"a":"1","a":"2"}}', media=media)
    add = b'[{"op":"add","op":"add","path":"/data/q","value":"1"}]'
    run.http("PATCH", f"{CM}/one", add, media=JSON_PATCH, fieldValidation="Strict")
    run.http("PATCH", f"{CM}/one", twice, media=APPLY, fieldManager="first", force="true", fieldValidation="Strict")
    yaml = b"apiVersion: v1\nkind: ConfigMap\ndata: {a: x}\ndata: {a: b}\n"
    run.http("PATCH", f"{CM}/one", yaml, media=APPLY, fieldManager="first", force="true", fieldValidation="Strict")
    job = json.dumps(training()).replace('"roles":', '"spares": 1, "spares": 2, "roles":').encode()
    run.http("POST", JOBS, job, fieldValidation="Strict")


@case("py", "bad-times")
def times(run: Run) -> None:
    time: Any
    for time in ("soon", "", 5, "2026-01-01", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-1-1T0:0:0Z"):
        run.http("POST", CM, {**config(), "metadata": {"name": "one", "creationTimestamp": time}})
        run.http("POST", EVENTS, {**event(ns=run.ns), "firstTimestamp": time})
    for time in ("2026-01-01t00:00:00z", "2026-01-01T00:00:00", "2026-01-01T00:00:00+0100", "2026-01-01 00:00:00Z"):
        run.http("POST", CM, {**config(), "metadata": {"name": "one", "creationTimestamp": time}})
    for time in ("2026-01-01T00:00:00.123Z", "2026-01-01T00:00:00.1234567Z", "2026-01-01 00:00:00.000000Z"):
        run.http("POST", LEASES, {"metadata": {"name": "one"}, "spec": {"renewTime": time}})
    for number, time in enumerate(("2026-01-01T00:00:00.5+01:00", None, "2026-01-01T00:00:00Z")):
        run.http("POST", CM, {**config(), "metadata": {"name": f"n{number}", "creationTimestamp": time}})
    run.http("POST", CM, {**config(), "metadata": {"name": "one", "managedFields": [{"time": "soon"}]}})
    run.http("POST", JOBS, {**training(), "metadata": {"name": "one", "creationTimestamp": "soon"}})


@case("py", "bad-quantities")
def quantities(run: Run) -> None:
    for number, amount in enumerate(("1x", "", True, [], "1ki", "0x10", "1_000", "1e", "1e1e1", "-1", "1Ei1")):
        run.http("POST", PODS, _limited(f"bad-{number}", amount))
    for number, amount in enumerate((1, 1.5, "+1", " 1", "5.", ".5", "1e3", "1E3", "1.5Gi", None)):
        run.http("POST", PODS, _limited(f"good-{number}", amount))
    hard = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "x"}}}
    run.http("POST", "/api/v1/namespaces/{ns}/resourcequotas", hard)
    limits = {"metadata": {"name": "q"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "x"}}]}}
    run.http("POST", "/api/v1/namespaces/{ns}/limitranges", limits)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "x"}}}
    run.http("POST", "/api/v1/namespaces/{ns}/persistentvolumeclaims", {"metadata": {"name": "q"}, "spec": claim})
    run.http("POST", PODS, pod("sized", volumes=[{"name": "a", "emptyDir": {"sizeLimit": "x"}}]))


@case("py", "bad-numbers")
def numbers(run: Run) -> None:
    for replicas in (2**31, 2**63, -(2**31) - 1, 2.0, "2", True):
        run.http("POST", DEPLOYMENTS, deployment(replicas=replicas))  # type: ignore[arg-type]
    run.http("POST", PODS, pod("long", terminationGracePeriodSeconds=2**63))
    for data in ("!!", "YQ", "YQ=", "-_-_"):
        run.http("POST", SECRETS, {"metadata": {"name": "one"}, "data": {"a": data}})


@case("py", "pod-addresses")
def addresses(run: Run) -> None:
    """`podIP` is the first of `podIPs`, whichever of them is written."""
    run.http("POST", PODS, pod())
    status: dict[str, Any]
    for status in (
        {"podIP": "10.0.0.1"},
        {"podIP": "10.0.0.2"},
        {"podIPs": [{"ip": "10.0.0.3"}]},
        {"podIP": None},
        {"podIP": "10.0.0.3", "podIPs": [{"ip": "10.0.0.4"}]},
        {"podIPs": None, "podIP": None},
    ):
        run.http("PATCH", f"{PODS}/one/status", {"status": status}, media=MERGE)


@case("py", "managed-fields-cleared")
def cleared(run: Run) -> None:
    run.http("POST", CM, config(), fieldManager="first")
    run.http("PATCH", f"{CM}/one", {"metadata": {"managedFields": [{}]}}, media=MERGE)
    run.http("PATCH", f"{CM}/one", {"data": {"z": "1"}}, media=MERGE, fieldManager="second")
    run.http("PATCH", f"{CM}/one", config(z="1"), media=APPLY, fieldManager="third")
    run.http("PATCH", f"{CM}/one", {"metadata": {"managedFields": []}}, media=MERGE)
    run.http("PATCH", f"{CM}/one", {"metadata": {"managedFields": None}}, media=MERGE)
    run.http("POST", DEPLOYMENTS, deployment(), fieldManager="first")
    run.http("PATCH", f"{DEPLOYMENTS}/one", {"metadata": {"managedFields": [{}]}}, media=STRATEGIC)


@case("py", "job-labels")
def job_labels(run: Run) -> None:
    """What a Job gets from its uid belongs to nobody, and goes into its own labels only when it brings none."""
    jobs = "/apis/batch/v1/namespaces/{ns}/jobs"
    for name, labels, of_template in (("a", {"x": "1"}, {"x": "1"}), ("b", {}, {"x": "1"}), ("c", {"y": "1"}, {})):
        spec = {**pod()["spec"], "restartPolicy": "Never"}
        template = {"metadata": {"labels": of_template}, "spec": spec}
        run.http("POST", jobs, {"metadata": {"name": name, "labels": labels}, "spec": {"template": template}})


@case("py", "custom-names-in-use")
def names_in_use(run: Run) -> None:
    define(run, definition("mangos", "Mango"))
    others: dict[str, dict[str, Any]] = {
        "mangotrees": {"kind": "Tree", "listKind": "TreeList", "singular": "mango"},
        "mangobirds": {"kind": "Bird", "listKind": "MangoList", "singular": "bird", "shortNames": ["mb"]},
        "mangobugs": {"kind": "MangoList", "listKind": "BugList", "singular": "bug"},
        "mangofish": {"kind": "Fish", "listKind": "FishList", "singular": "fish", "shortNames": ["mangos"]},
    }
    for plural, names in others.items():
        body = definition(plural, "Any")
        body["spec"]["names"] = {"plural": plural, **names}
        run.server.must("POST", DEFINITIONS, body)
        at = f"{DEFINITIONS}/{plural}.suite.example"
        wait_for(lambda at=at: "conditions" in run.server.must("GET", at).get("status", {}))
        status = run.server.must("GET", at)["status"]
        decided = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
        run.note(plural, {"conditions": decided, "names": status["acceptedNames"]})
    run.note("not served", run.server.request("GET", f"/apis/suite.example/v1/namespaces/{run.ns}/mangobirds")[0])


@case("py", "bad-access-reviews")
def access_reviews(run: Run) -> None:
    at = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    spec: Any
    for spec in ({}, "x", {"resourceAttributes": "x"}, {"resourceAttributes": {}, "nonResourceAttributes": {}}):
        run.http("POST", at, {"spec": spec})


@case("py", "bad-scales")
def scales(run: Run) -> None:
    run.http("POST", DEPLOYMENTS, deployment())
    at = f"{DEPLOYMENTS}/one/scale"
    spec: Any
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "one", "namespace": run.ns}}
    for spec in ({"replicas": -1}, {"replicas": "two"}, {"replicas": 2**40}, [], 7):
        run.http("PUT", at, {**scale, "spec": spec})
        run.http("PATCH", at, {"spec": spec}, media=MERGE)
    run.http("PATCH", at, [{"op": "replace", "path": "/spec", "value": 7}], media=JSON_PATCH)
    run.http("GET", at)
