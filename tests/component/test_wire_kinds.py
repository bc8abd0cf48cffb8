"""Custom kinds, subresources, discovery, reviews and watches over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from tests.builders.waiting import PATIENCE_S
from tests.component.wire_rig import APPLY, MERGE, STRATEGIC, TEAM, Wire, a_pod

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/team/widgets"
DEPLOYMENTS = "/apis/apps/v1/namespaces/team/deployments"
BUDGETS = "/apis/policy/v1/namespaces/team/poddisruptionbudgets"


@pytest_asyncio.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with Wire(tmp_path / "api.sock", bookmark_every_s=0.01) as wire:
        yield wire


def widgets(*, served: tuple[str, ...] = ("v1",)) -> JsonObject:
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "string", "enum": ["small", "large"], "description": "How big it is."},
            "replicas": {"type": "integer", "default": 1},
        },
    }
    status = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {
                    "name": name,
                    "served": True,
                    "storage": name == served[0],
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}, "scale": scale},
                    "additionalPrinterColumns": [{"name": "Size", "type": "string", "jsonPath": ".spec.size"}],
                }
                for name in served
            ],
        },
    }


def a_widget(name: str = "w", **spec: Any) -> JsonObject:
    body = {"size": "small", **spec}
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": body}


# Custom kinds.


async def test_a_definition_is_served_at_once(wire: Wire) -> None:
    assert (await wire.ask("GET", WIDGETS)).code == 404
    made = await wire.create(CRDS, widgets())
    assert {c["type"]: c["status"] for c in made["status"]["conditions"]}["Established"] == "True"
    widget = await wire.create(WIDGETS, a_widget())
    assert widget["spec"] == {"size": "small", "replicas": 1}
    listing = await wire.get(WIDGETS)
    assert (listing["kind"], listing["items"]) == ("WidgetList", [widget])
    resources = {r["name"] for r in (await wire.get("/apis/example.com/v1"))["resources"]}
    assert resources == {"widgets", "widgets/status", "widgets/scale"}
    table = (await wire.ask("GET", WIDGETS, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")).body
    assert table["rows"][0]["cells"] == ["w", "small"]


async def test_objects_of_custom_kinds_have_to_fit(wire: Wire) -> None:
    await wire.create(CRDS, widgets())
    bad = await wire.ask("POST", WIDGETS, a_widget(size="huge", replicas="many"))
    assert (bad.code, sorted(bad.fields)) == (422, ["spec.replicas", "spec.size"])
    strict = await wire.ask("POST", f"{WIDGETS}?fieldValidation=Strict", a_widget(colour="red"))
    assert strict.code == 400
    warned = await wire.ask("POST", WIDGETS, a_widget(colour="red"))
    assert (warned.code, warned.warnings) == (201, ['299 - "unknown field \\"spec.colour\\""'])
    assert "colour" not in warned.body["spec"]
    assert (await wire.ask("PATCH", f"{WIDGETS}/w", {}, STRATEGIC)).code == 415
    assert (await wire.ask("PATCH", f"{WIDGETS}/w", {"spec": {"size": "huge"}}, MERGE)).code == 422


async def test_status_and_scale_of_a_custom_kind(wire: Wire) -> None:
    await wire.create(CRDS, widgets())
    made = await wire.create(WIDGETS, {**a_widget(), "status": {"replicas": 9}})
    assert "status" not in made
    await wire.ask("PATCH", f"{WIDGETS}/w/status", {"status": {"replicas": 2}, "spec": {"size": "large"}}, MERGE)
    scale = await wire.get(f"{WIDGETS}/w/scale")
    assert (scale["kind"], scale["spec"], scale["status"]) == ("Scale", {"replicas": 1}, {"replicas": 2})
    await wire.ask("PATCH", f"{WIDGETS}/w/scale", {"spec": {"replicas": 5}}, MERGE)
    widget = await wire.get(f"{WIDGETS}/w")
    assert (widget["spec"], widget["status"]) == ({"size": "small", "replicas": 5}, {"replicas": 2})


async def test_versions_share_their_objects(wire: Wire) -> None:
    await wire.create(CRDS, widgets(served=("v1", "v2")))
    await wire.create(WIDGETS, a_widget())
    second = WIDGETS.replace("v1", "v2")
    assert (await wire.get(f"{second}/w"))["apiVersion"] == "example.com/v2"
    await wire.ask("PATCH", f"{second}/w", {"spec": {"size": "large"}}, MERGE)
    first = await wire.get(f"{WIDGETS}/w")
    assert (first["apiVersion"], first["spec"]["size"]) == ("example.com/v1", "large")
    applied = {**a_widget(size="small"), "apiVersion": "example.com/v2"}
    answer = await wire.ask("PATCH", f"{second}/w?fieldManager=me&force=true", applied, APPLY)
    assert (answer.code, answer.body["apiVersion"]) == (200, "example.com/v2")


async def test_deleting_a_definition_deletes_its_objects_first(wire: Wire) -> None:
    await wire.create(CRDS, widgets())
    await wire.create(WIDGETS, a_widget("free"))
    held = a_widget("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await wire.create(WIDGETS, held)
    assert (await wire.ask("DELETE", f"{CRDS}/widgets.example.com")).code == 200
    assert [w["metadata"]["name"] for w in (await wire.get(WIDGETS))["items"]] == ["held"]
    await wire.ask("PATCH", f"{WIDGETS}/held", {"metadata": {"finalizers": None}}, MERGE)
    assert (await wire.ask("GET", f"{CRDS}/widgets.example.com")).code == 404
    assert (await wire.ask("GET", WIDGETS)).code == 404


async def test_definitions_survive_a_restart(wire: Wire) -> None:
    await wire.create(CRDS, widgets())
    journal = wire.store._journal
    assert isinstance(journal, MemoryJournal)
    again = LocalCluster(ObjectStore(MemoryJournal(journal.rows())), clock=lambda: 0.0, new_uid=lambda: "u")
    assert again.registry.find("example.com", "v1", "widgets") is not None


async def test_definitions_of_our_kinds_may_be_applied_and_deleted(wire: Wire) -> None:
    from remuda.api.crds import CRDS as OURS

    for crd in OURS:
        await wire.create(CRDS, crd)
    role = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "command": ["true"]}]}}}
    job = {"metadata": {"name": "j"}, "spec": {"roles": [role]}}
    await wire.create("/apis/remuda.dev/v1alpha1/namespaces/team/trainingjobs", job)
    await wire.ask("DELETE", f"{CRDS}/trainingjobs.remuda.dev")
    assert (await wire.ask("GET", f"{CRDS}/trainingjobs.remuda.dev")).code == 404
    assert len((await wire.get("/apis/remuda.dev/v1alpha1/trainingjobs"))["items"]) == 1


async def test_an_invalid_job_of_ours_says_what_and_how_to_fix_it(wire: Wire) -> None:
    body = {"metadata": {"name": "j"}, "spec": {"rolez": []}}
    answer = await wire.ask("POST", "/apis/remuda.dev/v1alpha1/namespaces/team/trainingjobs", body)
    assert (answer.code, answer.reason, answer.fields) == (422, "Invalid", ["spec.rolez"])
    assert "Did you mean `roles`?" in answer.body["message"]


# Subresources.


async def test_scale_of_a_deployment(wire: Wire) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    await wire.create(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec})
    scale = await wire.get(f"{DEPLOYMENTS}/d/scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 1}, {"replicas": 0, "selector": "a=b"})
    answer = await wire.ask("PUT", f"{DEPLOYMENTS}/d/scale", {**scale, "spec": {"replicas": 3}})
    assert answer.body["spec"] == {"replicas": 3}
    stale = await wire.ask("PUT", f"{DEPLOYMENTS}/d/scale", {**scale, "spec": {"replicas": 4}})
    assert (stale.code, stale.reason) == (409, "Conflict")
    wrong = await wire.ask("PATCH", f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": -1}}, MERGE)
    assert (wrong.code, wrong.fields) == (422, ["spec.replicas"])


async def test_evictions_are_charged_to_the_budget(wire: Wire) -> None:
    for name in ("p", "q"):
        await wire.create(f"{TEAM}/pods", a_pod(name, app="x"))
        await wire.local.patch(Pod, name, {"status": {"phase": "Running"}}, "team", subresource="status")
    await wire.create(
        BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    )
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "team"}}
    refused = await wire.ask("POST", f"{TEAM}/pods/p/eviction", eviction)
    assert (refused.code, refused.reason) == (429, "TooManyRequests")
    assert refused.body["details"]["causes"][0]["reason"] == "DisruptionBudget"
    status = {"status": {"disruptionsAllowed": 1, "observedGeneration": 1}}
    await wire.ask("PATCH", f"{BUDGETS}/b/status", status, MERGE)
    assert (await wire.ask("POST", f"{TEAM}/pods/p/eviction", eviction)).code == 201
    assert (await wire.ask("GET", f"{TEAM}/pods/p")).code == 404
    budget = await wire.get(f"{BUDGETS}/b")
    assert (budget["status"]["disruptionsAllowed"], list(budget["status"]["disruptedPods"])) == (0, ["p"])
    assert (await wire.ask("POST", f"{TEAM}/pods/q/eviction", eviction)).code == 429


async def test_what_this_server_cannot_do_it_says(wire: Wire) -> None:
    await wire.create(f"{TEAM}/pods", a_pod("p"))
    assert (await wire.ask("GET", f"{TEAM}/pods/p/log")).code == 204, "no node yet, so nothing was written"
    await wire.ask("POST", f"{TEAM}/pods/p/binding", {"target": {"name": "n"}})
    for path in ("exec", "log"):
        answer = await wire.ask("GET", f"{TEAM}/pods/p/{path}")
        assert (answer.code, answer.reason) == (501, "NotImplemented")
        assert (await wire.ask("GET", f"{TEAM}/pods/none/{path}")).code == 404


# What the server says about itself.


async def test_discovery_names_everything(wire: Wire) -> None:
    assert (await wire.get("/api"))["versions"] == ["v1"]
    groups = (await wire.get("/apis"))["groups"]
    assert {g["name"] for g in groups} >= {"apps", "batch", "policy", "remuda.dev", "apiextensions.k8s.io"}
    for group in groups:
        assert (await wire.get(f"/apis/{group['name']}"))["preferredVersion"] == group["preferredVersion"]
        listed = await wire.get(f"/apis/{group['preferredVersion']['groupVersion']}")
        assert listed["resources"]
    pods = next(r for r in (await wire.get("/api/v1"))["resources"] if r["name"] == "pods")
    assert (pods["shortNames"], pods["singularName"], pods["categories"]) == (["po"], "pod", ["all"])
    for path in ("/apis/none", "/apis/apps/v2", "/api/v2"):
        assert (await wire.ask("GET", path)).code == 404
    assert (await wire.ask("POST", "/apis")).code == 405


async def test_openapi_describes_our_kinds_in_words(wire: Wire) -> None:
    index = (await wire.get("/openapi/v3"))["paths"]
    document = await wire.get(index["apis/remuda.dev/v1alpha1"]["serverRelativeURL"])
    schema = document["components"]["schemas"]["dev.remuda.v1alpha1.TrainingJob"]
    assert "spares" in schema["properties"]["spec"]["properties"]
    assert schema["properties"]["spec"]["properties"]["roles"]["description"]
    gvk = {"group": "remuda.dev", "version": "v1alpha1", "kind": "TrainingJob"}
    assert schema["x-kubernetes-group-version-kind"] == [gvk]
    for path in index.values():
        text = json.dumps(await wire.get(path["serverRelativeURL"]))
        found = json.loads(text)["components"]["schemas"]
        for name in {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
            assert name in found


async def test_reviews_of_oneself(wire: Wire) -> None:
    root = "/apis/authorization.k8s.io/v1"
    spec = {"resourceAttributes": {"verb": "create", "resource": "pods"}}
    assert (await wire.create(f"{root}/selfsubjectaccessreviews", {"spec": spec}))["status"] == {"allowed": True}
    rules = await wire.create(f"{root}/selfsubjectrulesreviews", {"spec": {"namespace": "team"}})
    assert rules["status"]["resourceRules"][0]["verbs"] == ["*"]
    assert (await wire.ask("POST", f"{root}/selfsubjectaccessreviews", {"spec": {}})).code == 422
    assert (await wire.ask("GET", f"{root}/selfsubjectaccessreviews")).code == 405


# Watches.


async def lines(wire: Wire, path: str, count: int, **headers: str) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_S), wire.session.get(path, headers=headers) as response:
        assert response.status == 200
        async for line in response.content:
            found.append(json.loads(line))
            if len(found) == count:
                break
    return found


async def test_a_watch_may_begin_with_what_is_there(wire: Wire) -> None:
    await wire.create(f"{TEAM}/pods", a_pod("p"))
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    added, bookmark = await lines(wire, f"{TEAM}/pods?{query}", 2)
    assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "p")
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_in_other_forms(wire: Wire) -> None:
    await wire.create(f"{TEAM}/pods", a_pod("p"))
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    (event,) = await lines(wire, f"{TEAM}/pods?watch=1", 1, Accept=table)
    assert (event["type"], event["object"]["kind"]) == ("ADDED", "Table")
    assert event["object"]["rows"][0]["cells"][:3] == ["p", "0/1", "Pending"]
    partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    (event,) = await lines(wire, f"{TEAM}/pods?watch=1", 1, Accept=partial)
    assert event["object"]["kind"] == "PartialObjectMetadata"


async def test_a_custom_kind_is_watched_in_the_version_asked_for(wire: Wire) -> None:
    await wire.create(CRDS, widgets(served=("v1", "v2")))
    made = await wire.create(WIDGETS, a_widget())
    since = int(made["metadata"]["resourceVersion"]) - 1
    (event,) = await lines(wire, f"{WIDGETS.replace('v1', 'v2')}?watch=1&resourceVersion={since}", 1)
    assert event["object"]["apiVersion"] == "example.com/v2"
