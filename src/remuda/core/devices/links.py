"""What devices of one machine are worth to each other, and the best set of them.

A pair has a class, named as `nvidia-smi topo -m` names it: the path over the host (PIX one PCIe switch, PXB several, PHB one host
bridge, NODE one NUMA node, SYS across), or the direct link when there is one (NV18: eighteen bonded NVLinks; XGMI). Its score is
that of the path plus 100 per direct link, on the scale of NVIDIA's allocator (10 cross socket, 20 same NUMA node, 30 host bridge,
40 several switches, 50 one switch, 100 per NVLink), so that a choice made here and one made by the vendor's plugin agree on what
is better. Between NUMA nodes of one socket the class is SYS, as nvidia-smi says, but 15: nearer than another socket.

`Chooser.best(free, count, must)` is the exact optimum, compared in this order:
1. the sum of pair scores of the set;
2. the sum of pair scores of what stays free: among equally good sets the one that leaves the best-linked rest, so that a small
   job does not split a large set;
3. NIC affinity: the sum, over the NICs nearest to the set's devices, of how near they are. A NIC counts once, so devices with
   a NIC each beat devices that share one;
4. the lowest devices, so that the answer is the same everywhere.
NIC comes after the rest because a NIC near one device is worth less than a pair kept whole for the next job.

Bit i of a mask is the device with index i. Up to TABLE devices every answer (free mask x count) is in a table built once, in
milliseconds; up to EXACT it is found by trying all sets and remembered. Beyond EXACT, which only users' own models reach, the
search is greedy from every device with single swaps until none helps: good, not proven best, and the Choice says so
(`exhaustive` is False).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

import msgspec

from remuda.core.devices.machine_models import (
    DeviceModel,
    MachineModel,
    NicModel,
    known_machine_models,
    load_built_in_machine_model,
)

SELF, PIX, PXB, PHB, NODE, SYS = "X", "PIX", "PXB", "PHB", "NODE", "SYS"
PATH_SCORES = {PIX: 50, PXB: 40, PHB: 30, NODE: 20, SYS: 10}
SAME_SOCKET_SCORE = 15
DIRECT_SCORE = 100  # per link

TABLE = 8
EXACT = 16

Key = tuple[int, int, int, int]


class DeviceSet(msgspec.Struct, frozen=True):
    """A set of devices and the sum of its pair scores. `exhaustive`: no set is better."""

    mask: int
    score: int
    exhaustive: bool = True


def machine_model_path_class(a: DeviceModel | NicModel, b: DeviceModel | NicModel) -> str:
    """How two things of one machine meet over the host."""
    if a.switch and a.switch == b.switch:
        return PIX
    if a.switch and b.switch and a.switch.split("/")[0] == b.switch.split("/")[0]:
        return PXB
    if a.root and a.root == b.root:
        return PHB
    return NODE if a.numa == b.numa else SYS


def machine_model_path_score(model: MachineModel, a: DeviceModel | NicModel, b: DeviceModel | NicModel) -> int:
    name = machine_model_path_class(a, b)
    if name == SYS and model.socket(a.numa) == model.socket(b.numa):
        return SAME_SOCKET_SCORE
    return PATH_SCORES[name]


def device_pair_class(model: MachineModel, a: int, b: int) -> str:
    """The class of two devices as users know it: X, NV18, XGMI, PIX, PXB, PHB, NODE or SYS."""
    if a == b:
        return SELF
    link = model.link(a, b)
    if link is None:
        return machine_model_path_class(model.devices[a], model.devices[b])
    return f"NV{link.count}" if link.kind == "nvlink" else link.kind.upper()


def machine_model_pair_score(model: MachineModel, a: int, b: int) -> int:
    """What two different devices are worth to each other."""
    link = model.link(a, b)
    return machine_model_path_score(model, model.devices[a], model.devices[b]) + (
        DIRECT_SCORE * link.count if link else 0
    )


def link_bandwidth(model: MachineModel, a: int, b: int) -> int:
    """GB/s between two devices over their direct link, both directions together; 0 = no link, or not published."""
    link = model.link(a, b)
    return link.gbytes_per_s if link else 0


def nearest_nic(model: MachineModel, index: int) -> NicModel | None:
    """The NIC the model names as the device's own, else the nearest, of equals the first listed."""
    device = model.devices[index]
    named = next((nic for nic in model.nics if nic.name == device.nic), None)
    return named or max(model.nics, key=lambda nic: machine_model_path_score(model, device, nic), default=None)


def bits_of_device_mask(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class DeviceChooser:
    """The best sets of one machine model. Make it with `machine_model_chooser`, which keeps the tables."""

    def __init__(self, model: MachineModel) -> None:
        self.model = model
        self.size = len(model.devices)
        every = range(self.size)
        self._pairs = [[machine_model_pair_score(model, a, b) if a != b else 0 for b in every] for a in every]
        nics = [nearest_nic(model, i) for i in every]
        self._nic = [nic.name if nic else "" for nic in nics]
        self._nic_score = [
            machine_model_path_score(model, model.devices[i], nic) if nic else 0 for i, nic in enumerate(nics)
        ]
        self._sums = self._all_sums() if self.size <= EXACT else []
        self._known: dict[tuple[int, int, int], DeviceSet] = {}
        self._table = self._all_best() if self.size <= TABLE else []

    @property
    def is_exhaustive(self) -> bool:
        return self.size <= EXACT

    def best(self, free: int, count: int, must: int = 0) -> DeviceSet:
        """The best `count` devices of `free` that include `must`.

        ValueError when there is no such set: fewer than `count` are free, or `must` is not free or has more than `count`.
        """
        if free >> self.size or free.bit_count() < count or must & ~free or must.bit_count() > count or count < 0:
            raise ValueError(f"{self.model.name}: no {count} devices of {free:#x} with {must:#x}")
        if not must and self._table:
            return self._table[free][count]
        key = (free, count, must)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= 1 << 16:
                self._known.clear()
            found = self._known[key] = self._search(free, count, must)
        return found

    def score(self, mask: int) -> int:
        """Sum of pair scores of a set."""
        if self._sums:
            return self._sums[mask]
        return sum(self._pairs[a][b] for a, b in combinations(bits_of_device_mask(mask), 2))

    def nic_affinity(self, mask: int) -> int:
        """Every NIC nearest to a device of the set counts once, by how near it is to the nearest of them."""
        near: dict[str, int] = {}
        for i in bits_of_device_mask(mask):
            near[self._nic[i]] = max(near.get(self._nic[i], 0), self._nic_score[i])
        return sum(near.values())

    def _key(self, free: int, mask: int) -> Key:
        return (
            self.score(mask),
            self.score(free & ~mask),
            self.nic_affinity(mask),
            _lowest_devices_first(mask, self.size),
        )

    def _all_sums(self) -> list[int]:
        """The sum of pair scores of every set, each from the set without its highest device."""
        sums = [0]
        for high in range(self.size):
            to_high = [0]
            for other in range(high):
                to_high += [value + self._pairs[high][other] for value in to_high]
            sums += [value + added for value, added in zip(sums, to_high, strict=True)]
        return sums

    def _all_best(self) -> list[list[DeviceSet]]:
        full = (1 << self.size) - 1
        nic = [self.nic_affinity(mask) for mask in range(full + 1)]
        order = [_lowest_devices_first(mask, self.size) for mask in range(full + 1)]
        sums = self._sums
        table: list[list[DeviceSet]] = []
        for free in range(full + 1):
            best: list[tuple[Key, int] | None] = [None] * (free.bit_count() + 1)
            mask = free
            while True:  # every subset of `free`, the empty one last
                found = ((sums[mask], sums[free ^ mask], nic[mask], order[mask]), mask)
                count = mask.bit_count()
                before = best[count]
                if before is None or found > before:
                    best[count] = found
                if not mask:
                    break
                mask = (mask - 1) & free
            table.append([DeviceSet(mask=f[1], score=f[0][0]) for f in best if f is not None])
        return table

    def _search(self, free: int, count: int, must: int) -> DeviceSet:
        if self.is_exhaustive:
            return DeviceSet(mask := self._best_of_all(free, count, must), self.score(mask))
        starts = [must] if must or not count else [1 << i for i in bits_of_device_mask(free)]
        found = {self._improve(free, self._grow(free, start, count), must) for start in starts}
        mask = max(found, key=lambda m: self._key(free, m))
        return DeviceSet(mask, self.score(mask), exhaustive=False)

    def _best_of_all(self, free: int, count: int, must: int) -> int:
        """Every set is tried; NICs are looked at only between those equal in both sums, because they cost more."""
        sums, best, equal = self._sums, (-1, -1), [must]
        for some in combinations([1 << i for i in bits_of_device_mask(free & ~must)], count - must.bit_count()):
            mask = must | sum(some)
            worth = (sums[mask], sums[free ^ mask])
            if worth > best:
                best, equal = worth, [mask]
            elif worth == best:
                equal.append(mask)
        return max(equal, key=lambda mask: self._key(free, mask))

    def _grow(self, free: int, mask: int, count: int) -> int:
        """Add the device that gains most until there are enough."""
        while mask.bit_count() < count:
            mask |= 1 << max(bits_of_device_mask(free & ~mask), key=lambda i: (self._gain(i, mask), -i))
        return mask

    def _improve(self, free: int, mask: int, must: int) -> int:
        """Swap one device of the set for one outside while that raises the score."""
        while True:
            gain = {i: self._gain(i, mask) for i in bits_of_device_mask(free)}
            swaps = [
                (gain[into] - gain[out] - self._pairs[into][out], out, into)
                for out in bits_of_device_mask(mask & ~must)
                for into in bits_of_device_mask(free & ~mask)
            ]
            rise, out, into = max(swaps, default=(0, 0, 0))
            if rise <= 0:
                return mask
            mask ^= (1 << out) | (1 << into)

    def _gain(self, i: int, mask: int) -> int:
        row = self._pairs[i]
        return sum(row[j] for j in bits_of_device_mask(mask))


def _lowest_devices_first(mask: int, size: int) -> int:
    """Bits reversed, so that the set with the lower devices is the larger number."""
    return sum(1 << (size - 1 - i) for i in bits_of_device_mask(mask))


@lru_cache(maxsize=64)
def _cached_device_chooser(encoded: bytes) -> DeviceChooser:
    return DeviceChooser(msgspec.json.decode(encoded, type=MachineModel))


def machine_model_chooser(model: MachineModel) -> DeviceChooser:
    """The chooser of a model; equal models share one."""
    if model.name in known_machine_models() and model is load_built_in_machine_model(model.name):
        return machine_model_chooser_named(model.name)
    return _cached_device_chooser(msgspec.json.encode(model))


@lru_cache(maxsize=64)
def machine_model_chooser_named(name: str) -> DeviceChooser:
    """The chooser of a model of this build; Refusal UnknownMachineModel."""
    return _cached_device_chooser(msgspec.json.encode(load_built_in_machine_model(name)))
