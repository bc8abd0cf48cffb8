"""A decision tried on a snapshot: what is left on the nodes while a plan is made, and what one pod takes of one node.

A `Transaction` is the only thing a try changes: masks of free devices and counts, with a log by which the try is undone. A try
costs what it took, not the size of the cluster. A pod takes all it asks of a node or nothing. Devices are taken per resource
from the rows that count for it; `choose_snapshot_device_rows` alone decides which of the free ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from remuda.core.devices.links import bits_of_device_mask, machine_model_chooser
from remuda.core.devices.observed_model import machine_model_of
from remuda.core.state.pod_requests import PODS, Amounts, is_extended_resource
from remuda.core.state.snapshot import NodeView, Snapshot, snapshot_device_mask


class Transaction:
    def __init__(self, free: list[int], left: list[Amounts], worn: list[int]) -> None:
        self.free = free
        self.worn = worn or [0] * len(free)  # Degraded ones, for pods that tolerate them
        self.left = left  # the mappings are replaced, never changed: the log holds the old ones
        self.kept: dict[int, str] = {}  # nodes whose rest is kept for a gang
        self.claimed: dict[int, int] = {}  # rows of reserved places that their askers took
        self.spent: dict[int, Amounts] = {}  # by number of a reserved place: what its askers took of its amounts
        self._log: list[tuple[int, int, Amounts, int]] = []  # node, what it had before

    @classmethod
    def of(cls, snapshot: Snapshot) -> Transaction:
        return cls(list(snapshot.free), list(snapshot.left), list(snapshot.worn))

    def mark(self) -> int:
        """A point to go back to."""
        return len(self._log)

    def rollback(self, mark: int) -> None:
        """Give back what was taken since."""
        while len(self._log) > mark:
            ix, self.free[ix], self.left[ix], self.worn[ix] = self._log.pop()

    def settle(self) -> None:
        """What was taken stays taken: nobody goes back behind this point."""
        self._log.clear()

    def keep(self, ix: int, rows: int, gang: str) -> None:
        """Those rows of a node are nobody's for the rest of the plan."""
        if self.free[ix] & rows or self.worn[ix] & rows:
            self.free[ix] &= ~rows
            self.worn[ix] &= ~rows
            self.kept[ix] = gang

    def take(self, view: NodeView, ix: int, requests: Amounts, *, tolerant: bool = False) -> tuple[str, ...] | None:
        """The devices a pod gets here, taken; None, and nothing taken, when the node has not got all it asks."""
        left = self.left[ix]
        chosen = 0
        for resource, count in requests.items():
            if resource in view.resources:
                bits = self._pick(view, ix, resource, count, tolerant)
                if bits is None:
                    return None
                chosen |= bits
            elif left.get(resource, count) < count:
                return None
        if left.get(PODS, 1) < 1:
            return None
        devices = tuple(device for bit, device in enumerate(view.devices) if chosen >> bit & 1)
        self.spend(view, ix, devices, requests)
        return devices

    def spend(self, view: NodeView, ix: int, devices: Iterable[str], requests: Amounts) -> None:
        self._log.append((ix, self.free[ix], self.left[ix], self.worn[ix]))
        rest = ~snapshot_device_mask(view.devices, devices)
        self.free[ix] &= rest
        self.worn[ix] &= rest
        if self.left[ix]:
            self.left[ix] = {r: n - (1 if r == PODS else requests.get(r, 0)) for r, n in self.left[ix].items()}

    def _pick(self, view: NodeView, ix: int, resource: str, count: int, tolerant: bool) -> int | None:
        rows = view.resources[resource]
        free = self.free[ix] & rows
        worn = self.worn[ix] & rows if tolerant and free.bit_count() < count else 0
        held = ((view.usable | view.worn) & rows & ~self.free[ix] & ~self.worn[ix]).bit_count()
        if min((free | worn).bit_count(), view.offered.get(resource, 0) - held) < count:
            return None
        return (
            free | choose_snapshot_device_rows(view, worn, count - free.bit_count())
            if worn
            else choose_snapshot_device_rows(view, free, count)
        )


def choose_snapshot_device_rows(view: NodeView, free: int, count: int) -> int:
    """`count` of the free rows: the best-linked set where the machine is known, else (slices, unknown makes) the lowest."""
    machine = machine_model_of(view.observed) if view.observed and 0 < count < free.bit_count() else None
    if machine is None:
        return _lowest_snapshot_rows(free, count)
    index_of = {device.id: device.index for device in machine.devices}
    row_of = {index_of.get(view.devices[row], -1): row for row in bits_of_device_mask(free)}
    if -1 in row_of or len(row_of) < free.bit_count():
        return _lowest_snapshot_rows(free, count)
    best = machine_model_chooser(machine).best(sum(1 << index for index in row_of), count)
    return sum(1 << row_of[index] for index in bits_of_device_mask(best.mask))


def _lowest_snapshot_rows(free: int, count: int) -> int:
    chosen = 0
    for _ in range(count):
        bit = free & -free
        chosen |= bit
        free ^= bit
    return chosen


def resource_snapshot_node_lacks(view: NodeView, requests: Amounts) -> str:
    """An extended resource the node's status does not name: such a pod is never bound there. A kubelet would start it without
    the device rather than refuse it."""
    return next((r for r, n in requests.items() if n and is_extended_resource(r) and r not in view.offered), "")
