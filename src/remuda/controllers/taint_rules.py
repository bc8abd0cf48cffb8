"""Executor of DeviceTaintRules: makes, changes and removes the rule of one device, where the API serves the kind.

Which version is served is found out once by asking for each. A cluster that serves none has no claims to keep away, and says so
(Refusal TaintRulesNotServed); whoever calls records which path was taken. The port in process takes any kind, so this is for
clusters over HTTP: the embedded one has no claims.
"""

from __future__ import annotations

from typing import Any, ClassVar

from remuda.api.errors import AlreadyExists, NotFound, Refusal
from remuda.api.meta import KObject, Resource
from remuda.core.remedies.taint_rules import GROUP, KIND, OURS, PLURAL, VERSIONS, TaintedDevice, rule_name, taint_rule
from remuda.kube.cluster import Cluster, Preconditions


class TaintRule(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """DeviceTaintRule, as far as it is looked at."""

    resource: ClassVar[Resource] = Resource(GROUP, VERSIONS[0], KIND, PLURAL, namespaced=False)
    spec: dict[str, Any] = {}


_KINDS: dict[str, type[TaintRule]] = {
    version: type(
        KIND,
        (TaintRule,),
        {"resource": Resource(GROUP, version, KIND, PLURAL, namespaced=False), "__annotations__": {}},
        frozen=True,
        kw_only=True,
    )
    for version in VERSIONS
}


class TaintRules:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version: str | None = None  # "" = none is served

    async def version(self) -> str:
        """The newest served; "" when none is."""
        if self._version is None:
            self._version = await self._find()
        return self._version

    async def _find(self) -> str:
        for version, kind in _KINDS.items():
            try:
                await self._cluster.list(kind)
            except NotFound:
                continue
            return version
        return ""

    async def ours(self) -> dict[TaintedDevice, str]:
        """The rules that carry our label, and what each says."""
        found = (await self._cluster.list(_KINDS[await self._served()])).items
        return {device: _value(rule) for rule in found if (device := _device(rule)) is not None}

    async def make(self, device: TaintedDevice, reason: str, effect: str) -> None:
        """The rule stands and says this. Refusal TaintRulesNotServed, NotOurs."""
        version = await self._served()
        kind, body = _KINDS[version], taint_rule(device, reason, effect, version)
        name = rule_name(device)
        try:
            await self._cluster.create(kind, body)
        except AlreadyExists:
            found = await self._cluster.get(kind, name)
            if found.labels.get(OURS) != "remuda":
                raise Refusal("NotOurs", f"The {KIND} {name} is somebody else's.", "Remove or rename it.") from None
            if found.spec != {**found.spec, **body["spec"]}:
                when = Preconditions(found.uid, found.metadata.resource_version)
                await self._cluster.patch(kind, name, {"spec": body["spec"]}, when=when)

    async def remove(self, device: TaintedDevice) -> bool:
        """No rule of ours stands. Whether there was one."""
        version = await self._served()
        kind, name = _KINDS[version], rule_name(device)
        try:
            found = await self._cluster.get(kind, name)
            if found.labels.get(OURS) != "remuda":
                return False
            await self._cluster.delete(kind, name, when=Preconditions(uid=found.uid))
        except NotFound:
            return False
        return True

    async def _served(self) -> str:
        version = await self.version()
        if not version:
            raise Refusal(
                "TaintRulesNotServed",
                f"This cluster does not serve {PLURAL}.{GROUP}.",
                "Devices given by a device plugin need none; for claims turn the API on.",
            )
        return version


def _device(rule: TaintRule) -> TaintedDevice | None:
    """Whose rule it is; None when it is not ours, or not as we write them."""
    selector = rule.spec.get("deviceSelector")
    if rule.labels.get(OURS) != "remuda" or not isinstance(selector, dict):
        return None
    pool, device, driver = (str(selector.get(part) or "") for part in ("pool", "device", "driver"))
    found = TaintedDevice(pool, device, driver)
    return found if rule_name(found) == rule.name else None


def _value(rule: TaintRule) -> str:
    taint = rule.spec.get("taint")
    return str(taint.get("value") or "") if isinstance(taint, dict) else ""
