"""Whatever a body holds, admission answers: with a body, or with an error of the API."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from remuda.api.errors import ApiError
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.admission import CREATE, UPDATE, AdmissionChain, AdmissionRequest
from tests.unit.embedded.apiserver.admission.cases import CASES, NAMESPACE, RESOURCES
from tests.unit.embedded.apiserver.admission.test_plugins import LIMITS, Shelf, named, quota

ODD: tuple[Any, ...] = (
    None,
    "",
    "text",
    -1,
    0,
    10**30,
    1.5,
    True,
    [],
    {},
    [None],
    [[]],
    {"": None},
    {"a": {"b": []}},
    ["x", 5],
)
ROUNDS = 1500


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below the value."""
    found: list[tuple[Any, Any]] = []
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inner in pairs:
        found.append((value, key))
        found += places(inner)
    return found


def spoiled(body: JsonObject, chance: random.Random) -> JsonObject:
    """The body with one to three of its values, outside its metadata's name, replaced by odd ones."""
    body = copy.deepcopy(body)
    for _ in range(chance.randint(1, 3)):
        spots = [
            (c, k) for c, k in places(body) if not (c is body and k == "metadata") and k not in ("name", "namespace")
        ]
        if not spots:
            break
        container, key = chance.choice(spots)
        container[key] = copy.deepcopy(chance.choice(ODD))
    return body


def crowded() -> Shelf:
    """A namespace in which every plug-in has something to say."""
    shelf = Shelf()
    shelf.objects["", "namespaces"] = [named(NAMESPACE)]
    shelf.put(RESOURCES["limitranges"], named("l", spec={"limits": [LIMITS, {"type": "Pod", "max": {"cpu": "9"}}]}))
    shelf.put(
        RESOURCES["resourcequotas"], quota(cpu="9", limits_memory="9Gi", pods="9", services="9", requests_storage="9")
    )
    shelf.put(RESOURCES["resourcequotas"], quota("s", scopes=["NotBestEffort"], pods="9"))
    return shelf


@pytest.mark.parametrize("seed", range(3))
def test_odd_values_are_refused_not_stumbled_over(seed: int) -> None:
    chance = random.Random(seed)
    shelf = crowded()
    admission = AdmissionChain(shelf)
    names = sorted(CASES)
    for number in range(ROUNDS):
        plural, body, _ = CASES[chance.choice(names)]
        resource, name = RESOURCES[plural], body["metadata"]["name"]
        body = {**body, "metadata": {**body["metadata"], "uid": "u"}}
        odd = spoiled(body, chance)
        if chance.random() < 0.3:
            request = AdmissionRequest(UPDATE, resource, NAMESPACE, name, odd, body)
        else:
            request = AdmissionRequest(CREATE, resource, NAMESPACE, name, odd)
        try:
            admission.admit(request)
        except ApiError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}, number {number}: {error!r} on {plural} {odd}") from error
