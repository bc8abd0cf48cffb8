"""What a policy would do about a fault that has not happened: which devices, pods and namespaces each rung would hit. Pure.

The same functions decide here as in earnest (which ladder, which domain, which pods have to go), so a dry run that is
not true would be a remedy that is not, either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.errors import Refusal
from remuda.api.incidents import IncidentVerdict
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.remedies import Action, Mode, RemedyPolicy
from remuda.core.devices.fault_codes import classify_device_fault_code
from remuda.core.health.device_holders import device_holders_on
from remuda.core.remedies.drain import RecycleDomain, has_to_be_drained, other_actor_on_node
from remuda.core.remedies.policies import remedy_policy_ladder_for_verdict
from remuda.core.remedies.rungs import RECYCLES, lay_out_remedy_stages


class RungImpact(msgspec.Struct, frozen=True):
    """One rung, and what it would touch. `how`: by whom it would be done, or why it could not be."""

    key: str
    nodes: tuple[str, ...]
    devices: tuple[str, ...]  # node/device
    pods: tuple[str, ...]  # that would have to leave; namespace/name
    namespaces: tuple[str, ...]
    how: str


class WhatIf(msgspec.Struct, frozen=True):
    policy: str
    mode: Mode
    reason: str
    remedy: str
    when: str  # the ladder's; "" when there is none
    quarantined: tuple[str, ...] = ()  # the device and its slices
    hits: tuple[RungImpact, ...] = ()
    remarks: tuple[str, ...] = ()


def what_if_remedies(
    policy: RemedyPolicy,
    node: Node,
    device: str,
    code: str,
    domain: RecycleDomain,
    ledgers: Mapping[str, NodeDevices],
    pods: Mapping[str, Sequence[Pod]],
) -> WhatIf:
    """`ledgers` and `pods`: by node, of the whole domain. Raises Refusal when there is no such device."""
    ledger = ledgers.get(node.name)
    rows = [d for d in ledger.observed.devices if device in (d.id, d.parent)] if ledger is not None else []
    if not any(d.id == device for d in rows):
        known = ", ".join(d.id for d in ledger.observed.devices) if ledger is not None else "none"
        raise Refusal("DeviceNotFound", f"{node.name} has no device `{device}`.", f"It has {known}.", "device")
    fault = classify_device_fault_code("kmsg" if code.startswith("xid-") else code.partition("-")[0], code)
    verdict = IncidentVerdict(state=fault.effect, reason=fault.reason, remedy=fault.remedy.value)
    ladder = remedy_policy_ladder_for_verdict(policy, verdict)
    said = WhatIf(policy.name, policy.spec.mode, fault.reason, fault.remedy.value, ladder.when if ladder else "")
    remarks = []
    if fault.effect is not DeviceState.UNHEALTHY:
        remarks.append(f"{code} leaves the device {fault.effect.value}: it stays in use.")
    if ladder is None:
        return msgspec.structs.replace(said, remarks=(*remarks, "The policy has no ladder for it: nothing is done."))
    if words := other_actor_on_node(node, take_over=policy.spec.drain.take_over):
        remarks.append(f"{words} Nothing starts until they are done.")
    ids = tuple(d.id for d in rows)
    hits = tuple(
        _rung_impact(
            policy, stage.key, stage.rung.action, stage.rung.hook is not None, node.name, ids, domain, ledgers, pods
        )
        for stage in lay_out_remedy_stages(ladder)
    )
    return msgspec.structs.replace(said, quarantined=ids, hits=hits, remarks=tuple(remarks))


def _rung_impact(
    policy: RemedyPolicy,
    key: str,
    action: Action,
    has_hook: bool,
    node: str,
    ids: Sequence[str],
    domain: RecycleDomain,
    ledgers: Mapping[str, NodeDevices],
    pods: Mapping[str, Sequence[Pod]],
) -> RungImpact:
    how = "the policy's hook" if has_hook else "an order to the agent"
    if action is Action.TICKET:
        return RungImpact(key, (), (), (), (), "the policy's hook" if has_hook else "recorded; webhooks are notified")
    if action is Action.REPLACE and not has_hook:
        how = "refused: the policy has no hook for it"
    if action not in RECYCLES:
        held = device_holders_on(ledgers[node], pods.get(node, ()))
        names = sorted({h.pod for id in ids for h in held.get(id, ())})
        return RungImpact(
            key, (node,), tuple(f"{node}/{id}" for id in ids), tuple(names), _rung_impact_namespaces(names), how
        )
    nodes = domain.nodes if policy.spec.drain.whole_domain and domain.name else (node,)
    if domain.name and domain.missing and policy.spec.drain.whole_domain:
        how = f"refused: {domain.missing} nodes of {domain.name} are not known"
    names = sorted(f"{p.namespace}/{p.name}" for n in nodes for p in pods.get(n, ()) if has_to_be_drained(p))
    devices = tuple(f"{n}/{d.id}" for n in nodes if n in ledgers for d in ledgers[n].observed.devices)
    return RungImpact(key, nodes, devices, tuple(names), _rung_impact_namespaces(names), how)


def _rung_impact_namespaces(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({name.partition("/")[0] for name in names}))
