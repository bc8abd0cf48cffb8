"""A quarantined device is kept from claims by a rule: made once, removed with the order, and no rule costs no remedy."""

from __future__ import annotations

import asyncio

from remuda.api.errors import ApiError
from remuda.controllers.remedy_taints import QuarantineTaints
from remuda.core.failure.taintrule import TaintedDevice
from tests.builders.remedies import DEVICE, NODE, Bench, incident


class Rules:
    def __init__(self, version: str = "v1", error: ApiError | None = None) -> None:
        self._version = version
        self._error = error
        self.done: list[tuple[str, TaintedDevice]] = []

    async def version(self) -> str:
        return self._version

    async def make(self, device: TaintedDevice, reason: str, effect: str) -> None:
        if self._error is not None:
            raise self._error
        self.done.append((f"make {reason} {effect}", device))

    async def remove(self, device: TaintedDevice) -> bool:
        if self._error is not None:
            raise self._error
        self.done.append(("remove", device))
        return True


CASE = Bench(incident()).case()
GPU = TaintedDevice(NODE, DEVICE, "gpu.nvidia.com")


def test_a_rule_is_made_once_and_removed_with_the_order() -> None:
    rules = Rules()
    taints = QuarantineTaints(rules)  # type: ignore[arg-type]
    assert asyncio.run(taints.stands(CASE, "Xid79"))
    assert not asyncio.run(taints.stands(CASE, "Xid79"))
    asyncio.run(taints.lifted(CASE))
    assert rules.done == [("make Xid79 NoSchedule", GPU), ("remove", GPU)]
    assert asyncio.run(taints.stands(CASE, "Xid79")), "after it was lifted it is made anew"


def test_where_rules_are_not_served_or_not_allowed_nothing_else_changes() -> None:
    for rules in (Rules(version=""), Rules(error=ApiError("no", code=403, reason="Forbidden"))):
        assert not asyncio.run(QuarantineTaints(rules).stands(CASE, "Xid79"))  # type: ignore[arg-type]
        asyncio.run(QuarantineTaints(rules).lifted(CASE))  # type: ignore[arg-type]
        assert rules.done == []
    assert not asyncio.run(QuarantineTaints().stands(CASE, "Xid79"))
