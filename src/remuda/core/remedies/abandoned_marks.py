"""Marks that an incident or a roll-out left, and what gives them back once it is gone. Pure.

Every mark that a remedy or a roll-out puts on an object names its owner:

  Node         `remuda.dev/remedy-by`, `remuda.dev/cordoned-by` (and the cordon it stands for), `remuda.dev/drain-requested`
  NodeDevices  `quarantine` with an incident; `orders` whose id begins with their owner's name

While the owner is there, closed or not, it alone takes its marks back. When it was deleted, nobody would: then all of them go. A
cordon without `cordoned-by` is somebody else's and stays, as do quarantines and orders that people gave.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import JsonObject
from remuda.api.names import ANNOTATION_CORDONED_BY, ANNOTATION_DRAIN_REQUESTED, ANNOTATION_REMEDY_BY


class ReleasedMarks(msgspec.Struct, frozen=True):
    """Merge patches; {} = nothing to give back. `owners`: whose marks they were."""

    node: JsonObject = {}
    devices: JsonObject = {}
    owners: tuple[str, ...] = ()


def mark_owners(node: Node | None, ledger: NodeDevices | None) -> set[str]:
    """Incidents and roll-outs that the two name, as nodes name them (`rollout.rollout_owner`)."""
    return {*_node_mark_owners(node).values(), *_ledger_mark_owners(ledger)}


def release_marks(node: Node | None, ledger: NodeDevices | None, gone: Container[str]) -> ReleasedMarks:
    """What gives back the marks of owners that are gone."""
    found = {name: owner for name, owner in _node_mark_owners(node).items() if owner in gone}
    patch: JsonObject = {"metadata": {"annotations": dict.fromkeys(found)}} if found else {}
    if node is not None and ANNOTATION_CORDONED_BY in found and node.spec.unschedulable:
        patch["spec"] = {"unschedulable": None}
    devices: JsonObject = {}
    if ledger is not None:
        kept_out = {id: order.incident for id, order in ledger.quarantine.items() if order.incident in gone}
        ordered = {id: order.by for id, order in ledger.orders.items() if order.by in gone and _is_owned(id, order.by)}
        if kept_out:
            devices["quarantine"] = dict.fromkeys(kept_out)
        if ordered:
            devices["orders"] = dict.fromkeys(ordered)
        found |= kept_out | ordered
    return ReleasedMarks(patch, devices, tuple(sorted(set(found.values()))))


def _node_mark_owners(node: Node | None) -> dict[str, str]:
    """Owner by annotation."""
    marks = node.annotations if node is not None else {}
    found = {name: marks.get(name, "") for name in (ANNOTATION_REMEDY_BY, ANNOTATION_CORDONED_BY)}
    found[ANNOTATION_DRAIN_REQUESTED] = marks.get(ANNOTATION_DRAIN_REQUESTED, "").partition("/")[0]
    return {name: owner for name, owner in found.items() if owner}


def _ledger_mark_owners(ledger: NodeDevices | None) -> set[str]:
    if ledger is None:
        return set()
    kept_out = {order.incident for order in ledger.quarantine.values() if order.incident}
    return kept_out | {order.by for id, order in ledger.orders.items() if _is_owned(id, order.by)}


def _is_owned(order_id: str, by: str) -> bool:
    """Given by an incident or a roll-out. A person's has the person's name and an id of its own."""
    return bool(by) and order_id.startswith(f"{by}.")
