"""What a node lets in of resources that are nobody's to hand out."""

from __future__ import annotations

import pytest

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.embedded.node.devices.resource_fit import check_pod_fits, device_manager_amount_for_pod
from tests.builders.pods import a_pod

DONGLE = "example.com/dongle"


def wants(count: int, *, uid: str = "new", inits: list[JsonObject] | None = None) -> Pod:
    return a_pod(uid, uid=uid, limits={DONGLE: count, "cpu": "500m"}, inits=inits)


def init(count: int, *, sidecar: bool = False) -> JsonObject:
    body: JsonObject = {"name": f"init-{count}-{sidecar}", "resources": {"limits": {DONGLE: count}}}
    return {**body, "restartPolicy": "Always"} if sidecar else body


@pytest.mark.parametrize(
    ("inits", "whole"),
    [
        pytest.param([], 2, id="containers together"),
        pytest.param([init(3)], 3, id="a hungry init container"),
        pytest.param([init(1)], 2, id="a modest one"),
        pytest.param([init(1, sidecar=True)], 3, id="a sidecar counts beside them"),
        pytest.param([init(2, sidecar=True), init(3)], 5, id="an init container after a sidecar"),
        pytest.param([init(3), init(2, sidecar=True)], 4, id="before it"),
    ],
)
def test_amount(inits: list[JsonObject], whole: int) -> None:
    assert device_manager_amount_for_pod(wants(2, inits=inits), DONGLE) == whole


@pytest.mark.parametrize(
    ("count", "allocatable", "devices", "blind", "words"),
    [
        pytest.param(2, {DONGLE: "4"}, None, False, "", id="fits beside the other"),
        pytest.param(3, {DONGLE: "4"}, None, False, "requested: 3, used: 2, capacity: 4", id="too much"),
        pytest.param(1, {DONGLE: "0"}, None, False, "requested: 1, used: 2, capacity: 0", id="none left of it"),
        pytest.param(0, {DONGLE: "0"}, None, False, "", id="asks for none"),
        pytest.param(9, {}, None, False, "", id="the node does not know it: stripped"),
        pytest.param(2, {DONGLE: "4"}, 4, False, "", id="each has devices"),
        pytest.param(2, {DONGLE: "3"}, 4, False, "", id="a device that fell ill is still its pod's"),
        pytest.param(2, {DONGLE: "4"}, 2, True, "", id="fits beside one that started without devices"),
        pytest.param(3, {DONGLE: "4"}, 3, True, "requested: 3, used: 2, capacity: 4", id="which counts all the same"),
    ],
)
def test_fit(count: int, allocatable: dict[str, int | str], devices: int | None, blind: bool, words: str) -> None:
    new, other = wants(count), wants(2, uid="old")

    def check() -> None:
        without = {("old", DONGLE)} if blind else set()
        check_pod_fits(new, [new, other], allocatable, lambda resource: devices, without)

    if not words:
        check()
        return
    with pytest.raises(Refusal, match=words) as caught:
        check()
    assert caught.value.reason == f"OutOf{DONGLE}"
