"""Objects over HTTP: validation, patches, ownership, dry runs, lists in pages, forms, deletes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.meta import JsonObject
from tests.component.wire_rig import APPLY, JSON_PATCH, MERGE, STRATEGIC, TEAM, Wire, a_pod

MAPS = f"{TEAM}/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/team/deployments"


@pytest_asyncio.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with Wire(tmp_path / "api.sock") as wire:
        yield wire


def a_map(name: str = "m", **data: str) -> JsonObject:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def a_deployment(image: str = "i") -> JsonObject:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    return {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}


# Field validation.


async def test_unknown_fields_are_refused_warned_about_or_dropped(wire: Wire) -> None:
    body = {**a_map(a="b"), "colour": "red"}
    strict = await wire.ask("POST", f"{MAPS}?fieldValidation=Strict", body)
    assert (strict.code, strict.reason) == (400, "BadRequest")
    assert 'unknown field "colour"' in strict.body["message"]
    warned = await wire.ask("POST", MAPS, body)
    assert (warned.code, warned.warnings) == (201, ['299 - "unknown field \\"colour\\""'])
    assert "colour" not in warned.body
    quiet = await wire.ask("PUT", f"{MAPS}/m?fieldValidation=Ignore", {**body, "data": {"a": "c"}})
    assert (quiet.code, quiet.warnings) == (200, [])


async def test_unknown_fields_are_named_by_their_place(wire: Wire) -> None:
    pod = a_pod("p")
    pod["spec"]["containers"][0]["imagee"] = "x"
    answer = await wire.ask("POST", f"{TEAM}/pods?fieldValidation=Strict", pod)
    assert 'unknown field "spec.containers[0].imagee"' in answer.body["message"]


@pytest.mark.parametrize(
    ("query", "field"), [("dryRun=Some", "dryRun"), ("fieldValidation=Sometimes", "fieldValidation")]
)
async def test_bad_options_are_fields_too(wire: Wire, query: str, field: str) -> None:
    answer = await wire.ask("POST", f"{MAPS}?{query}", a_map())
    assert (answer.code, answer.reason, answer.fields) == (422, "Invalid", [field])


async def test_invalid_objects_name_every_field(wire: Wire) -> None:
    answer = await wire.ask(
        "POST", f"{TEAM}/pods", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    )
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "spec.containers[0].image" in answer.fields


# Patches.


@pytest.mark.parametrize(
    ("type_", "patch"),
    [
        (MERGE, {"data": {"b": "2", "a": None}}),
        (STRATEGIC, {"data": {"b": "2", "a": None}}),
        (JSON_PATCH, [{"op": "add", "path": "/data/b", "value": "2"}, {"op": "remove", "path": "/data/a"}]),
        (APPLY, {"apiVersion": "v1", "kind": "ConfigMap", "data": {"b": "2"}}),
    ],
)
async def test_four_kinds_of_patches(wire: Wire, type_: str, patch: Any) -> None:
    await wire.create(MAPS, a_map(a="1"))
    answer = await wire.ask("PATCH", f"{MAPS}/m?fieldManager=me", patch, type_)
    assert answer.code == 200
    assert answer.body["data"]["b"] == "2"
    assert ("a" in answer.body["data"]) is (type_ == APPLY)


async def test_a_strategic_patch_merges_lists_by_key(wire: Wire) -> None:
    await wire.create(DEPLOYMENTS, a_deployment())
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "j"}]}}}}
    answer = await wire.ask("PATCH", f"{DEPLOYMENTS}/d", patch, STRATEGIC)
    (container,) = answer.body["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("j", "Always")
    assert answer.body["metadata"]["generation"] == 2


async def test_a_patch_that_changes_nothing_is_no_write(wire: Wire) -> None:
    made = await wire.create(MAPS, a_map(a="1"))
    for type_, patch in ((MERGE, {"data": {"a": "1"}}), (JSON_PATCH, []), (STRATEGIC, {})):
        wire.now += 60
        answer = await wire.ask("PATCH", f"{MAPS}/m", patch, type_)
        assert answer.body == made


@pytest.mark.parametrize(
    ("type_", "patch", "code"),
    [
        (JSON_PATCH, [{"op": "test", "path": "/data/a", "value": "9"}], 422),
        (JSON_PATCH, {}, 400),
        (MERGE, {"metadata": {"resourceVersion": "1"}, "data": {"z": "z"}}, 409),
        (MERGE, {"metadata": {"uid": "other"}}, 422),
        (MERGE, {"metadata": {"name": "other"}}, 400),
        (MERGE, {"data": {"a": 1}}, 422),
        (APPLY, {"data": {"a": "1"}}, 400),
    ],
)
async def test_patches_that_cannot_be(wire: Wire, type_: str, patch: Any, code: int) -> None:
    made = await wire.create(MAPS, a_map(a="1"))
    assert (await wire.ask("PATCH", f"{MAPS}/m?fieldManager=me", patch, type_)).code == code
    assert await wire.get(f"{MAPS}/m") == made


# Ownership.


async def test_writers_own_what_they_write(wire: Wire) -> None:
    await wire.create(MAPS, a_map(a="1"))
    answer = await wire.ask("PATCH", f"{MAPS}/m?fieldManager=other", {"data": {"b": "2"}}, MERGE)
    owners = {e["manager"]: e["fieldsV1"]["f:data"] for e in answer.body["metadata"]["managedFields"]}
    assert owners == {"tester": {".": {}, "f:a": {}}, "other": {"f:b": {}}}


async def test_apply_creates_takes_over_and_conflicts(wire: Wire) -> None:
    path = f"{MAPS}/m"
    first = await wire.ask("PATCH", f"{path}?fieldManager=one", a_map(a="1"), APPLY)
    assert first.code == 201
    conflict = await wire.ask("PATCH", f"{path}?fieldManager=two", a_map(a="2"), APPLY)
    assert (conflict.code, conflict.reason, conflict.fields) == (409, "Conflict", [".data.a"])
    forced = await wire.ask("PATCH", f"{path}?fieldManager=two&force=true", a_map(a="2"), APPLY)
    assert (forced.code, forced.body["data"]) == (200, {"a": "2"})
    again = await wire.ask("PATCH", f"{path}?fieldManager=two", a_map(), APPLY)
    assert "data" not in again.body  # the one who owned it does not want it any more
    nobody = await wire.ask("PATCH", path, a_map(), APPLY)
    assert (nobody.code, nobody.fields) == (422, ["fieldManager"])


async def test_force_is_for_apply_only(wire: Wire) -> None:
    await wire.create(MAPS, a_map())
    answer = await wire.ask("PATCH", f"{MAPS}/m?force=true", {}, MERGE)
    assert (answer.code, answer.fields) == (422, ["force"])


async def test_writes_within_the_process_keep_the_owners(wire: Wire) -> None:
    from remuda.api.kubernetes.core_v1 import Pod

    made = await wire.create(f"{TEAM}/pods", a_pod("p"))
    await wire.local.patch(Pod, "p", {"metadata": {"labels": {"x": "y"}}}, "team")
    assert (await wire.get(f"{TEAM}/pods/p"))["metadata"]["managedFields"] == made["metadata"]["managedFields"]


# Dry runs.


async def test_a_dry_run_answers_like_the_real_thing_and_leaves_nothing(wire: Wire) -> None:
    made = await wire.ask("POST", f"{MAPS}?dryRun=All", a_map(a="1"))
    assert (made.code, made.body["metadata"]["name"]) == (201, "m")
    assert (await wire.ask("GET", f"{MAPS}/m")).code == 404
    kept = await wire.create(MAPS, a_map(a="1"))
    changed = await wire.ask("PATCH", f"{MAPS}/m?dryRun=All", {"data": {"a": "2"}}, MERGE)
    assert changed.body["data"] == {"a": "2"}
    assert (await wire.ask("DELETE", f"{MAPS}/m?dryRun=All")).code == 200
    assert await wire.get(f"{MAPS}/m") == kept


# Lists.


async def test_pages_show_one_state_of_the_collection(wire: Wire) -> None:
    for number in range(5):
        await wire.create(MAPS, a_map(f"m{number}"))
    first = await wire.get(f"{MAPS}?limit=2")
    assert [m["metadata"]["name"] for m in first["items"]] == ["m0", "m1"]
    assert first["metadata"]["remainingItemCount"] == 3
    await wire.ask("DELETE", f"{MAPS}/m2")
    await wire.create(MAPS, a_map("m1a"))
    await wire.ask("PATCH", f"{MAPS}/m3", {"data": {"new": "x"}}, MERGE)
    names, token, page = [], first["metadata"]["continue"], first
    while token:
        page = await wire.get(f"{MAPS}?limit=2&continue={token}")
        names += [m["metadata"]["name"] for m in page["items"]]
        token = page["metadata"].get("continue")
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert names == ["m2", "m3", "m4"]
    assert "data" not in page["items"][-1]


async def test_a_page_of_forgotten_history_is_gone(wire: Wire) -> None:
    for number in range(3):
        await wire.create(MAPS, a_map(f"m{number}"))
    token = (await wire.get(f"{MAPS}?limit=1"))["metadata"]["continue"]
    for number in range(100):
        await wire.ask("PATCH", f"{MAPS}/m0", {"data": {"n": str(number)}}, MERGE)
    answer = await wire.ask("GET", f"{MAPS}?limit=1&continue={token}")
    assert (answer.code, answer.reason) == (410, "Expired")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("continue=nonsense", 400),
        ("limit=-1", 400),
        ("resourceVersionMatch=Exact", 422),
        ("resourceVersionMatch=Perhaps&resourceVersion=1", 422),
        ("resourceVersionMatch=Exact&resourceVersion=0", 422),
        ("resourceVersion=abc", 400),
        ("resourceVersion=99999", 504),
        ("fieldSelector=data.a%3Db", 400),
        ("labelSelector=a%3D%3D%3Db", 400),
    ],
)
async def test_lists_that_cannot_be(wire: Wire, query: str, code: int) -> None:
    assert (await wire.ask("GET", f"{MAPS}?{query}")).code == code


async def test_an_exact_version_is_what_was_there_then(wire: Wire) -> None:
    made = await wire.create(MAPS, a_map(a="1"))
    version = made["metadata"]["resourceVersion"]
    await wire.ask("PATCH", f"{MAPS}/m", {"data": {"a": "2"}}, MERGE)
    then = await wire.get(f"{MAPS}?resourceVersionMatch=Exact&resourceVersion={version}")
    assert then["items"][0]["data"] == {"a": "1"}
    now = await wire.get(f"{MAPS}?resourceVersionMatch=NotOlderThan&resourceVersion={version}")
    assert now["items"][0]["data"] == {"a": "2"}


async def test_tables_and_metadata(wire: Wire) -> None:
    await wire.create(MAPS, a_map(a="1"))
    wire.now += 90
    table = (await wire.ask("GET", MAPS, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")).body
    assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert table["rows"][0]["cells"] == ["m", 1, "90s"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    only = (
        await wire.ask("GET", f"{MAPS}/m", Accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
    ).body
    assert set(only) == {"kind", "apiVersion", "metadata"}
    assert (await wire.ask("GET", MAPS, Accept="application/xml")).code == 406


# Deletes.


async def test_a_collection_is_deleted_by_selector(wire: Wire) -> None:
    for number in range(4):
        body = a_map(f"m{number}")
        body["metadata"]["labels"] = {"odd": str(number % 2)}
        await wire.create(MAPS, body)
    answer = await wire.ask("DELETE", f"{MAPS}?labelSelector=odd%3D1")
    assert [m["metadata"]["name"] for m in answer.body["items"]] == ["m1", "m3"]
    assert [m["metadata"]["name"] for m in (await wire.get(MAPS))["items"]] == ["m0", "m2"]


async def test_policies_leave_their_finalizer(wire: Wire) -> None:
    await wire.create(DEPLOYMENTS, a_deployment())
    answer = await wire.ask("DELETE", f"{DEPLOYMENTS}/d", {"propagationPolicy": "Foreground"})
    assert answer.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert "deletionTimestamp" in answer.body["metadata"]
    answer = await wire.ask("DELETE", f"{DEPLOYMENTS}/d", {"propagationPolicy": "Whatever"})
    assert (answer.code, answer.fields) == (422, ["propagationPolicy"])


async def test_a_namespace_goes_when_it_is_finalized(wire: Wire) -> None:
    await wire.ask("DELETE", TEAM)
    namespace = await wire.get(TEAM)
    assert namespace["status"]["phase"] == "Terminating"
    refused = await wire.ask("POST", MAPS, a_map())
    assert (refused.code, refused.reason) == (403, "Forbidden")
    await wire.ask("PUT", f"{TEAM}/finalize", {**namespace, "spec": {"finalizers": []}})
    assert (await wire.ask("GET", TEAM)).code == 404


# Events live in two groups.


async def test_events_are_the_same_in_both_groups(wire: Wire) -> None:
    regarding = {"kind": "Pod", "name": "p", "namespace": "team"}
    event = {
        "metadata": {"name": "e"},
        "regarding": regarding,
        "note": "it happened",
        "reason": "Happened",
        "type": "Normal",
        "action": "Look",
        "reportingController": "tests",
        "reportingInstance": "here",
        "eventTime": "2023-11-14T22:13:20.000000Z",
    }
    made = await wire.create("/apis/events.k8s.io/v1/namespaces/team/events", event)
    assert made["note"] == "it happened"
    old = await wire.get(f"{TEAM}/events/e")
    assert (old["message"], old["involvedObject"], old["apiVersion"]) == ("it happened", regarding, "v1")
    found = await wire.get(f"{TEAM}/events?fieldSelector=involvedObject.name%3Dp")
    assert len(found["items"]) == 1
    new = (await wire.get("/apis/events.k8s.io/v1/events"))["items"][0]
    assert (new["note"], new["regarding"]) == ("it happened", regarding)
