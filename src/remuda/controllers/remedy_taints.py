"""Quarantine where devices are given by claims: a DeviceTaintRule beside the order, where the API serves the kind.

The order in NodeDevices is the record, the rule follows it: made after it and removed before it, so that whatever a crash leaves
undone is done by the next look. A cluster that does not serve rules, or does not let us, has its orders all the same.
"""

from __future__ import annotations

import structlog

from remuda.api.errors import ApiError, Refusal
from remuda.controllers.taint_rules import TaintRules
from remuda.core.failure.ladder_case import Case
from remuda.core.failure.taintrule import NO_SCHEDULE, TaintedDevice, driver_for

log = structlog.get_logger(__name__)


class QuarantineTaints:
    """`rules` of None: there are no claims here."""

    def __init__(self, rules: TaintRules | None = None) -> None:
        self._rules = rules
        self._made: set[TaintedDevice] = set()

    async def stands(self, case: Case, reason: str) -> bool:
        """The device is under a rule. True when it was made now."""
        device = _device(case)
        if self._rules is None or device is None or device in self._made:
            return False
        try:
            if not await self._rules.version():
                return False
            await self._rules.make(device, reason, NO_SCHEDULE)
        except (ApiError, Refusal) as error:
            log.warning("remedy.taint_rule", node=device.node, device=device.device, error=str(error))
            return False
        self._made.add(device)
        return True

    async def lifted(self, case: Case) -> None:
        """No rule of ours stands for the device."""
        device = _device(case)
        if self._rules is None or device is None:
            return
        try:
            if await self._rules.version():
                await self._rules.remove(device)
        except (ApiError, Refusal) as error:
            if isinstance(error, ApiError) and error.code >= 500:
                raise  # asked again; but one that may not remove rules gives devices back all the same
            log.warning("remedy.taint_rule", node=device.node, device=device.device, error=str(error))
        self._made.discard(device)


def _device(case: Case) -> TaintedDevice | None:
    seen = case.seen
    driver = driver_for(seen.resource) if seen is not None else ""
    return TaintedDevice(case.subject.node, case.subject.device, driver) if driver else None
