"""Which devices to prefer when the kubelet asks. Pure; never fails.

GetPreferredAllocation carries ids and a size, no pod. Whom it is for is guessed from the pods bound to the node: the oldest one
that wants so many of this resource, has not got them yet, and whose devices, as the scheduler chose them, can be had. The
scheduler keeps at most one such pod of a shape per node in flight, so the guess is right unless something went wrong already.
Without a match the best-linked set wins, leaving alone what was chosen for others if that is possible.

The kubelet fails the pod when the answer is an error, so there is always an answer: `size` of the available ids that include
the mandatory ones, whatever became of pods, model and annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from remuda.agent.allocation.device_choice import DeviceWant, ResourceOf, devices_in_order, wanted_allocations
from remuda.agent.inventory import Inventory, inventory_device_of_plugin_id
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds
from remuda.core.devices.links import DeviceChooser, machine_model_chooser_named

BestSet = Callable[[Sequence[str], int, Sequence[str]], Sequence[str]]  # free devices, how many, those that must be in


class PreferredAsk(msgspec.Struct, frozen=True):
    resource: str
    available: tuple[str, ...]
    must: tuple[str, ...]
    size: int


class PreferredChoice(msgspec.Struct, frozen=True):
    devices: tuple[str, ...]
    pod: str = ""  # namespace/name of the pod it is thought to be for


def choose_plugin_preferred_devices(
    ask: PreferredAsk, pods: Iterable[Pod], has: Callable[[str, str], bool], resource_of: ResourceOf, best: BestSet
) -> PreferredChoice:
    """`has`: whether the pod (uid) already holds the devices of its container (name)."""
    try:
        waiting = [
            (pod, want)
            for pod in sorted(filter(_is_pod_waiting_for_devices, pods), key=_pod_age_key)
            for want in wanted_allocations(pod, resource_of)
            if want.resource == ask.resource and want.chosen and not has(pod.uid, want.container)
        ]
    except Exception:  # somebody's odd pod must not fail another's start
        waiting = []
    for pod, want in waiting:
        ids = _matching_chosen_ids(ask, want)
        if ids is not None:
            return PreferredChoice(ids, f"{pod.namespace}/{pod.name}")
    others = {inventory_device_of_plugin_id(device) for _, want in waiting for device in want.chosen}
    return PreferredChoice(_best_available_ids(ask, others, best))


def plugin_best_set(model: str, inventory: Inventory) -> BestSet:
    """By the machine's model, if it is known."""
    try:
        return plugin_best_linked_devices(machine_model_chooser_named(model), inventory)
    except Refusal:
        return plugin_lowest_devices


def plugin_best_linked_devices(chooser: DeviceChooser, inventory: Inventory) -> BestSet:
    """The best-linked set by the machine's model. Raises for what the model does not have: slices, a ninth device of eight."""

    def best(free: Sequence[str], size: int, must: Sequence[str]) -> Sequence[str]:
        index = {row.id: row.index for row in inventory.rows.values() if not row.parent}
        mask = chooser.best(_plugin_device_mask(index, free), size, _plugin_device_mask(index, must)).mask
        return [device for device in free if mask >> index[device] & 1]

    return best


def plugin_lowest_devices(free: Sequence[str], size: int, must: Sequence[str]) -> Sequence[str]:
    """For a machine whose links nobody knows."""
    return [*must, *(device for device in devices_in_order(free) if device not in must)][:size]


def _plugin_device_mask(index: Mapping[str, int], devices: Iterable[str]) -> int:
    return sum(1 << index[device] for device in set(devices))


def _is_pod_waiting_for_devices(pod: Pod) -> bool:
    return pod.is_live and pod.metadata.deletion_timestamp is None


def _pod_age_key(pod: Pod) -> tuple[float, str, str]:
    created = pod.metadata.creation_timestamp
    return (to_seconds(created) if created is not None else 0.0, pod.namespace, pod.name)


def _matching_chosen_ids(ask: PreferredAsk, want: DeviceWant) -> tuple[str, ...] | None:
    """The ids that stand for the chosen devices, when all of them can be had. A shared device offers any free share."""
    if want.size != ask.size:
        return None
    free = devices_in_order(ask.available)
    taken = devices_in_order(ask.must)
    open_devices = list(want.chosen)
    for plugin_id in taken:
        if inventory_device_of_plugin_id(plugin_id) not in open_devices:
            return None
        open_devices.remove(inventory_device_of_plugin_id(plugin_id))
    for device in open_devices:
        found = next((i for i in free if device in (i, inventory_device_of_plugin_id(i)) and i not in taken), None)
        if found is None:
            return None
        taken.append(found)
    return tuple(devices_in_order(taken))


def _best_available_ids(ask: PreferredAsk, others: set[str], best: BestSet) -> tuple[str, ...]:
    must = list(dict.fromkeys(ask.must))
    free = [i for i in devices_in_order(dict.fromkeys(ask.available)) if i not in must]
    spared = [i for i in free if inventory_device_of_plugin_id(i) not in others]
    if len(must) + len(spared) >= ask.size:
        free = spared
    if all(inventory_device_of_plugin_id(i) == i for i in (*must, *free)):
        try:
            found = tuple(best([*must, *free], ask.size, must))
        except Exception:  # row 18: a table that cannot answer is no reason to fail a pod
            found = ()
        if len(set(found)) == ask.size and set(must) <= set(found) <= {*must, *free}:
            return tuple(devices_in_order(found))
    while free and len(must) < ask.size:
        # Shares of the least shared device first. Whole devices have one each, so they go by number.
        left = {
            device: sum(inventory_device_of_plugin_id(i) == device for i in free)
            for device in map(inventory_device_of_plugin_id, free)
        }
        taken = {inventory_device_of_plugin_id(i) for i in must}
        must.append(
            min(
                free, key=lambda i: (inventory_device_of_plugin_id(i) in taken, -left[inventory_device_of_plugin_id(i)])
            )
        )
        free.remove(must[-1])
    return tuple(devices_in_order(must[: max(ask.size, len(ask.must))]))
