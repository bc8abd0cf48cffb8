"""Large requests: as many as a real API server takes, worked on off the event loop, and never on an old version."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.kubernetes.core_v1 import ConfigMap
from remuda.embedded.apiserver import object_handlers
from remuda.embedded.apiserver.admission import admission_chain, unhonoured_pods
from remuda.embedded.apiserver.decisions import MadeDecision
from remuda.embedded.apiserver.off_loop import OffLoop
from remuda.embedded.apiserver.wire.http_exchange import LARGE_BYTES, MAX_BODY_BYTES, HttpRequest
from tests.builders.waiting import PATIENCE_S
from tests.component.wire_rig import APPLY, JSON_PATCH, MERGE, STRATEGIC, TEAM, Wire

MAPS = f"{TEAM}/configmaps"


@pytest_asyncio.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with Wire(tmp_path / "s") as wire:
        yield wire


def config_map(name: str, size: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {f"f{n}": "x" * (size // 10) for n in range(10)},
    }


def deployment(size: int) -> dict[str, Any]:
    env = [{"name": f"V{n}", "value": "x" * (size // 10)} for n in range(10)]
    labels = {"app": "big"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i", "env": env}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "big"},
        "spec": {"selector": {"matchLabels": labels}, "template": pod},
    }


async def test_bodies_as_large_as_a_real_server_takes_pass(wire: Wire) -> None:
    path = "/apis/apps/v1/namespaces/team/deployments"
    body = deployment(MAX_BODY_BYTES - 10_000)
    for query in ("?fieldValidation=Strict&dryRun=All", ""):
        answer = await wire.ask("POST", path + query, body)
        assert answer.code == 201, answer.body
    there = await wire.get(f"{path}/big")
    assert there["spec"]["template"]["spec"]["containers"][0]["env"][9]["value"] == "x" * (
        (MAX_BODY_BYTES - 10_000) // 10
    )
    there["metadata"]["labels"] = {"put": "yes"}
    answer = await wire.ask("PUT", f"{path}/big", there)
    assert answer.code == 200, answer.body
    for type_, patch in (
        (MERGE, {"metadata": {"labels": {"merge": "yes"}}}),
        (STRATEGIC, {"metadata": {"labels": {"strategic": "yes"}}}),
        (JSON_PATCH, [{"op": "add", "path": "/metadata/labels/json", "value": "yes"}]),
    ):
        answer = await wire.ask("PATCH", f"{path}/big", patch, type_)
        assert answer.code == 200, answer.body
    applied = {**deployment(2_000_000), "metadata": {"name": "big", "labels": {"apply": "yes"}}}
    answer = await wire.ask("PATCH", f"{path}/big?fieldManager=me&force=true&fieldValidation=Strict", applied, APPLY)
    assert answer.code == 200, answer.body
    labels = (await wire.get(f"{path}/big"))["metadata"]["labels"]
    assert sorted(labels) == ["apply", "json", "merge", "put", "strategic"]
    assert (await wire.ask("POST", path, deployment(MAX_BODY_BYTES + 10))).code == 413


async def test_a_refused_body_does_not_stay_until_the_garbage_collector_comes(wire: Wire) -> None:
    """One of 3 MB takes ten times as much with all that is made of it."""
    body = config_map("big", 2 * LARGE_BYTES)
    assert (await wire.ask("POST", MAPS, body)).code == 201
    gc.collect()
    gc.disable()
    try:
        assert (await wire.ask("POST", MAPS, body)).code == 409
        async with asyncio.timeout(PATIENCE_S):
            while any(isinstance(each, MadeDecision | HttpRequest) for each in gc.get_objects()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the client has its answer a little before the request is over
    finally:
        gc.enable()


class Threads:
    """In which threads a function ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.names: list[str] = []
        real = getattr(object_handlers, name)

        def noted(*args: Any) -> Any:
            self.names.append(threading.current_thread().name)
            return real(*args)

        monkeypatch.setattr(object_handlers, name, noted)

    def take(self) -> str:
        (name,) = {"loop" if each == threading.main_thread().name else each.split("_")[0] for each in self.names}
        self.names.clear()
        return name


async def test_large_bodies_are_decoded_and_large_objects_patched_off_the_loop(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, patching = (
        Threads(monkeypatch, "parse_object_body"),
        Threads(monkeypatch, "handle_patch_of_served_object"),
    )
    await wire.create(MAPS, config_map("small", 1_000))
    assert decoding.take() == "loop"
    await wire.create(MAPS, config_map("large", 2 * LARGE_BYTES))
    assert decoding.take() == "api-large"
    for name, where in (("small", "loop"), ("large", "api-large")):
        answer = await wire.ask("PATCH", f"{MAPS}/{name}", {"data": {"a": "b"}}, MERGE)
        assert answer.code == 200
        assert patching.take() == where


async def test_long_lists_are_written_off_the_loop(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Threads(monkeypatch, "list_page_in_answer_form")
    for number in range(object_handlers.LARGE_LIST):
        await wire.local.create(ConfigMap, {"metadata": {"name": f"m{number:04}", "namespace": "team"}})
    assert len((await wire.get(MAPS))["items"]) == object_handlers.LARGE_LIST
    assert writing.take() == "loop"
    await wire.local.create(ConfigMap, {"metadata": {"name": "last", "namespace": "team"}})
    page = await wire.get(f"{MAPS}?limit=10")
    assert len(page["items"]) == 10
    assert page["metadata"]["remainingItemCount"] == object_handlers.LARGE_LIST - 9
    assert writing.take() == "api-large"


async def test_a_write_that_comes_between_is_not_lost(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a large patch is worked out, others write: once, or every time."""
    await wire.create(MAPS, config_map("large", 2 * LARGE_BYTES))
    real, writes, most = OffLoop.run, 0, 0

    async def disturbed(self: OffLoop, work: Callable[[], Any]) -> Any:
        nonlocal writes
        result = await real(self, work)
        if writes < most and isinstance(result, MadeDecision):
            writes += 1
            await wire.local.patch(ConfigMap, "large", {"data": {"other": str(writes)}}, "team")
        return result

    monkeypatch.setattr(OffLoop, "run", disturbed)
    for more in (1, 50):
        before, most = writes, writes + more
        answer = await wire.ask("PATCH", f"{MAPS}/large", {"data": {"mine": str(more)}}, MERGE)
        assert answer.code == 200
        assert answer.body["data"]["other"] == str(writes)
        assert answer.body["data"]["mine"] == str(more)
        assert before < writes <= before + min(more, 3)  # it does not try for ever
    version = (await wire.get(f"{MAPS}/large"))["metadata"]["resourceVersion"]
    old = {"metadata": {"resourceVersion": version}, "data": {"mine": "old"}}
    assert (await wire.ask("PATCH", f"{MAPS}/large", old, MERGE)).code == 409  # a write came between
    missing = await wire.ask("PATCH", f"{MAPS}/nothing", {"data": {"a": "x" * 2 * LARGE_BYTES}}, MERGE)
    assert missing.code == 404


def large_pod(name: str) -> dict[str, Any]:
    env = [{"name": f"V{n}", "value": "x" * 1_000} for n in range(2 * LARGE_BYTES // 1_000)]
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "env": env}]}}


async def test_large_writes_are_judged_and_answered_off_the_loop(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, set[str]] = {}

    def note(module: Any, name: str) -> None:
        real = getattr(module, name)

        def noted(*args: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread().name.split("_")[0])
            return real(*args)

        monkeypatch.setattr(module, name, noted)

    note(admission_chain, "validate_object_fields")
    note(unhonoured_pods, "refused_pod_fields")
    note(admission_chain, "pod_field_warnings")
    note(object_handlers, "object_in_answer_form")
    await wire.create(f"{TEAM}/pods", large_pod("a"))
    assert sorted(threads) == [
        "object_in_answer_form",
        "pod_field_warnings",
        "refused_pod_fields",
        "validate_object_fields",
    ]
    assert set.union(*threads.values()) == {"api-large"}


async def test_a_quota_that_comes_while_a_large_pod_is_judged_is_kept(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided off the loop stands only while all that it read does."""
    real, quotas = OffLoop.run, wire.local.registry.find("", "v1", "resourcequotas")
    assert quotas is not None

    async def disturbed(self: OffLoop, work: Callable[[], Any]) -> Any:
        result = await real(self, work)
        if isinstance(result, MadeDecision) and not wire.store.scan("//resourcequotas/team/"):
            quota = {"metadata": {"name": "none", "namespace": "team"}, "spec": {"hard": {"pods": "0"}}}
            await wire.local.create_record(quotas, quota)
        return result

    monkeypatch.setattr(OffLoop, "run", disturbed)
    answer = await wire.ask("POST", f"{TEAM}/pods", large_pod("a"))
    assert (answer.code, answer.reason) == (403, "Forbidden"), answer.body
    assert "exceeded quota" in answer.body["message"]


GADGETS = "/apis/a.b/v1/namespaces/team/gadgets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def gadgets(**note: Any) -> dict[str, Any]:
    """The definition of a kind with one field, a text; `note`: what more its schema says of it."""
    spec = {"type": "object", "additionalProperties": {"type": "string", **note}}
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "gadgets", "kind": "Gadget"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.a.b"},
        "spec": {"group": "a.b", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def gadget() -> dict[str, Any]:
    spec = {f"f{n}": "x" * 1_000 for n in range(2 * LARGE_BYTES // 1_000)}
    return {"apiVersion": "a.b/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": spec}


@pytest.mark.parametrize("does", ["is changed", "goes", "goes and comes back"])
async def test_a_definition_that_changes_while_a_large_object_is_judged_by_it_counts(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    """It was judged by the definition of the request's beginning, or stayed in the store of a kind that is gone."""
    await wire.create(DEFINITIONS, gadgets())
    real, seen = OffLoop.run, 0

    async def disturbed(self: OffLoop, work: Callable[[], Any]) -> Any:
        nonlocal seen
        result = await real(self, work)
        seen += isinstance(result, MadeDecision)
        if seen == 1 and isinstance(result, MadeDecision):
            if does == "is changed":
                patch = {"spec": gadgets(maxLength=10)["spec"]}
                assert (await wire.ask("PATCH", f"{DEFINITIONS}/gadgets.a.b", patch, MERGE)).code == 200
            else:
                assert (await wire.ask("DELETE", f"{DEFINITIONS}/gadgets.a.b")).code == 200
            if does == "goes and comes back":
                await wire.create(DEFINITIONS, gadgets(maxLength=10))
        return result

    monkeypatch.setattr(OffLoop, "run", disturbed)
    first = await wire.ask("POST", GADGETS, gadget())
    assert (first.code, first.reason) == (503, "ServiceUnavailable"), first.body
    assert first.body["details"]["retryAfterSeconds"] == 1
    assert wire.store.scan("/a.b/gadgets/") == []
    again = await wire.ask("POST", GADGETS, gadget())
    assert again.code == (404 if does == "goes" else 422), again.body


async def test_nothing_is_made_of_a_definition_that_is_on_its_way_out(wire: Wire) -> None:
    """Its last object held it up, and every new one would have."""
    await wire.create(DEFINITIONS, gadgets())
    small = {**gadget(), "spec": {}}
    await wire.create(GADGETS, {**small, "metadata": {"name": "held", "finalizers": ["a.b/wait"]}})
    assert (await wire.ask("DELETE", f"{DEFINITIONS}/gadgets.a.b")).code == 200
    refused = await wire.ask("POST", GADGETS, small)
    assert (refused.code, refused.reason) == (405, "MethodNotAllowed"), refused.body
    let_go = {"metadata": {"finalizers": None}}
    assert (await wire.ask("PATCH", f"{GADGETS}/held", let_go, MERGE)).code == 200
    assert (await wire.ask("GET", f"{DEFINITIONS}/gadgets.a.b")).code == 404
