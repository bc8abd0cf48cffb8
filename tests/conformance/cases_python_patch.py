"""Cases of the official package's transport: each patch type, and server-side apply with its conflicts."""

from __future__ import annotations

import json

from tests.conformance.bodies import config, deployment, pod, training
from tests.conformance.catalogue import case
from tests.conformance.places import APPLY, CM, DEPLOYMENTS, JOBS, JSON_PATCH, MERGE, PODS, STRATEGIC
from tests.conformance.run import Run


@case("py", "patch-merge")
def merge(run: Run) -> None:
    run.http("POST", DEPLOYMENTS, deployment())
    new = {"spec": {"template": {"spec": {"containers": [{"name": "other", "image": "x"}]}}}}
    run.http("PATCH", f"{DEPLOYMENTS}/one", new, media=MERGE)
    run.http("PATCH", f"{DEPLOYMENTS}/one", {"metadata": {"labels": {"app": None, "b": "c"}}}, media=MERGE)
    run.http("PATCH", f"{DEPLOYMENTS}/one", {}, media=MERGE)
    run.http("PATCH", f"{DEPLOYMENTS}/one", [1], media=MERGE)


@case("py", "patch-strategic")
def strategic(run: Run) -> None:
    run.http("POST", DEPLOYMENTS, deployment())
    add = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "s:1"}]}}}}
    run.http("PATCH", f"{DEPLOYMENTS}/one", add, media=STRATEGIC)
    edit = {"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}]}}}}
    run.http("PATCH", f"{DEPLOYMENTS}/one", edit, media=STRATEGIC)
    drop = {"spec": {"template": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}}}}
    run.http("PATCH", f"{DEPLOYMENTS}/one", drop, media=STRATEGIC)
    swap = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    run.http("PATCH", f"{DEPLOYMENTS}/one", swap, media=STRATEGIC)
    over = {"metadata": {"labels": {"$patch": "replace", "only": "me"}}}
    run.http("PATCH", f"{DEPLOYMENTS}/one", over, media=STRATEGIC)
    run.http("PATCH", f"{DEPLOYMENTS}/one", {"spec": {"$patch": "explode"}}, media=STRATEGIC)


@case("py", "patch-json")
def json_patch(run: Run) -> None:
    run.http("POST", CM, config())
    for patch in (
        [{"op": "add", "path": "/data/c", "value": "3"}],
        [{"op": "replace", "path": "/data/a", "value": "9"}, {"op": "remove", "path": "/data/b"}],
        [{"op": "test", "path": "/data/a", "value": "9"}, {"op": "copy", "from": "/data/a", "path": "/data/z"}],
        [{"op": "move", "from": "/data/z", "path": "/data/y"}],
        [{"op": "add", "path": "/metadata/labels", "value": {"x/y": "1"}}],
        [{"op": "replace", "path": "/metadata/labels/x~1y", "value": "2"}],
    ):
        run.http("PATCH", f"{CM}/one", patch, media=JSON_PATCH)


@case("py", "patch-json-refused")
def json_patch_refused(run: Run) -> None:
    run.http("POST", CM, config())
    for patch in (
        [{"op": "test", "path": "/data/a", "value": "other"}],
        [{"op": "remove", "path": "/data/none"}],
        [{"op": "replace", "path": "/data/none", "value": "x"}],
        [{"op": "explode", "path": "/data/a"}],
        [{"op": "add", "path": "/data/a", "value": 1}],
        {"op": "add"},
        [{"op": "add", "path": "no-slash", "value": "1"}],
    ):
        run.http("PATCH", f"{CM}/one", patch, media=JSON_PATCH)


@case("py", "patch-bombs")
def bombs(run: Run) -> None:
    run.http("POST", CM, config())
    many = [{"op": "test", "path": "/data/a", "value": "1"}] * 10_001
    run.http("PATCH", f"{CM}/one", many, media=JSON_PATCH)
    grow = [{"op": "add", "path": "/data/x", "value": "y" * 1000}]
    grow += [{"op": "copy", "from": "/data", "path": f"/data/n{i}"} for i in range(40)]
    run.http("PATCH", f"{CM}/one", grow, media=JSON_PATCH)
    deep = b'{"data":' + b'{"a":' * 12_000 + b"1" + b"}" * 12_001
    run.http("PATCH", f"{CM}/one", deep, media=MERGE)
    run.http("GET", f"{CM}/one")


@case("py", "patch-types-refused")
def types_refused(run: Run) -> None:
    run.http("POST", CM, config())
    run.http("PATCH", f"{CM}/one", {"data": {"a": "2"}}, media="application/json")
    run.http("PATCH", f"{CM}/one", {"data": {"a": "2"}}, media="text/plain")
    run.http("POST", JOBS, training())
    run.http("PATCH", f"{JOBS}/one", {"spec": {"spares": 1}}, media=STRATEGIC)


@case("py", "patch-of-a-custom-kind")
def custom_patch(run: Run) -> None:
    run.http("POST", JOBS, training())
    run.http("PATCH", f"{JOBS}/one", {"spec": {"spares": 2}}, media=MERGE)
    run.http(
        "PATCH", f"{JOBS}/one", [{"op": "replace", "path": "/spec/roles/0/replicas", "value": 3}], media=JSON_PATCH
    )
    run.http("PATCH", f"{JOBS}/one", {"spec": {"spares": "many"}}, media=MERGE)


def _applied(body: object) -> bytes:
    return json.dumps(body).encode()


@case("py", "apply-creates-and-changes")
def apply(run: Run) -> None:
    at = f"{CM}/one"
    run.http("PATCH", at, config(), media=APPLY, fieldManager="first")
    run.http("PATCH", at, config(a="1", c="3"), media=APPLY, fieldManager="first")
    run.http("PATCH", at, config(a="1", c="3"), media=APPLY, fieldManager="first")
    run.http("PATCH", at, config(d="4"), media=APPLY, fieldManager="second")
    run.http("PATCH", at, config(a="1"), media=APPLY, fieldManager="first")


@case("py", "apply-conflicts")
def apply_conflicts(run: Run) -> None:
    at = f"{CM}/one"
    run.http("PATCH", at, config(), media=APPLY, fieldManager="first")
    run.http("PATCH", at, config(a="2"), media=APPLY, fieldManager="second")
    run.http("PATCH", at, config(a="1"), media=APPLY, fieldManager="second")
    run.http("PATCH", at, config(a="2"), media=APPLY, fieldManager="second", force="true")
    run.http("PATCH", at, config(), media=APPLY, fieldManager="first")
    run.http("PATCH", at, {"data": {"b": "7"}}, media=MERGE, fieldManager="third")
    run.http("PATCH", at, config(a="2", b="8"), media=APPLY, fieldManager="first")


@case("py", "apply-refused")
def apply_refused(run: Run) -> None:
    at = f"{CM}/one"
    run.http("PATCH", at, config(), media=APPLY)
    run.http("PATCH", at, config("two"), media=APPLY, fieldManager="first")
    run.http("PATCH", at, {"data": {"a": "1"}}, media=APPLY, fieldManager="first")
    run.http("PATCH", at, b"{ not yaml: [", media=APPLY, fieldManager="first")
    run.http("PATCH", at, {"data": {}}, media=MERGE, fieldManager="first", force="true")
    managed = {**config(), "metadata": {"name": "one", "managedFields": [{"manager": "x"}]}}
    run.http("PATCH", at, managed, media=APPLY, fieldManager="first")
    run.http("PATCH", at, {**config(), "surprise": 1}, media=APPLY, fieldManager="first")


@case("py", "apply-lists-by-key")
def apply_lists(run: Run) -> None:
    at = f"{DEPLOYMENTS}/one"
    run.http("PATCH", at, deployment(), media=APPLY, fieldManager="first")
    side = deployment()
    side["metadata"] = {"name": "one"}
    side["spec"] = {"template": {"spec": {"containers": [{"name": "side", "image": "s:1"}]}}}
    run.http("PATCH", at, side, media=APPLY, fieldManager="second")
    side["spec"]["template"]["spec"]["containers"][0]["image"] = "s:2"
    run.http("PATCH", at, side, media=APPLY, fieldManager="second")
    run.http("PATCH", at, {"spec": {"replicas": 9}}, media=MERGE, fieldManager="scaler")
    run.http("PATCH", at, deployment(), media=APPLY, fieldManager="first")


@case("py", "apply-status-and-pods")
def apply_status(run: Run) -> None:
    run.http("PATCH", f"{PODS}/one", pod(), media=APPLY, fieldManager="first")
    status = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        "status": {"conditions": [{"type": "suite.example/Checked", "status": "True"}]},
    }
    run.http("PATCH", f"{PODS}/one/status", status, media=APPLY, fieldManager="checker")
    run.http("GET", f"{PODS}/one")


@case("py", "apply-a-custom-kind")
def apply_custom(run: Run) -> None:
    at = f"{JOBS}/one"
    run.http("PATCH", at, training(), media=APPLY, fieldManager="first")
    run.http("PATCH", at, training(replicas=3), media=APPLY, fieldManager="second")
    run.http("PATCH", at, training(replicas=3), media=APPLY, fieldManager="second", force="true")
    run.http("PATCH", at, _applied(training(replicas=4)), media=APPLY, fieldManager="second", dryRun="All")
    run.http("GET", at)
