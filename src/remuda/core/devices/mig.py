"""MIG: how a device is cut into slices, as data (`mig.json`) and arithmetic on masks.

A device that can be sliced has a geometry: so many memory slices (8) and compute slices (7), and profiles. A profile takes a
run of `memory` slices that begins at one of its `starts` and `compute` compute slices; a profile with media engines exists
at most once (`most`). A layout is the slices on one device, in order of their start. It is legal when every profile is one of
the geometry's, every start one of the profile's, no memory slice is used twice, and neither the compute slices nor `most` is
exceeded. Nothing else about a layout matters, so a layout is a plain tuple and each change gives a new one.

The start of a new slice is chosen so that the most is left: of all legal starts, the one after which the largest profile still
fits most often, then the next largest, and so on; between equals the highest, which fills the device from the end the large
profiles cannot begin at. With the occupied memory slices as a mask this is one look-up, built on first use.

A profile's memory is its share of the device's memory. What the driver reports is less by what it keeps for itself, differs
between driver versions and is not in the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

import msgspec

from remuda.api.errors import Refusal

RESOURCE_PREFIX = "nvidia.com/mig-"
MAX_SLICES = 16  # the table has 2^slices rows


class MigProfile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    name: str
    compute: int
    memory: int
    starts: list[int]
    most: int = 0  # on one device; 0 = as many as fit

    @property
    def resource(self) -> str:
        """The resource name the vendor's plugin counts it under; a plus sign is not allowed in one."""
        return RESOURCE_PREFIX + self.name.replace("+", ".")

    def mask(self, start: int) -> int:
        return ((1 << self.memory) - 1) << start

    def memory_bytes(self, geometry: MigGeometry, device_bytes: int) -> int:
        return device_bytes * self.memory // geometry.memory_slices


class MigGeometry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    name: str
    profiles: list[MigProfile]
    memory_slices: int = 8
    compute_slices: int = 7
    source: str = ""

    def profile(self, name: str) -> MigProfile:
        """The profile by its own name or its resource's; Refusal UnknownMigProfile names the near ones."""
        wanted = name.removeprefix(RESOURCE_PREFIX).removeprefix("mig-")
        for profile in self.profiles:
            if wanted in (profile.name, profile.name.replace("+", ".")):
                return profile
        raise Refusal(
            "UnknownMigProfile",
            f"`{wanted}` is not a MIG profile of {self.name}.",
            f"Near: {', '.join(self._near(wanted))}. A profile of your own goes into migGeometries of a machine model file.",
            "profile",
        )

    def _near(self, wanted: str) -> list[str]:
        """Same number of compute slices first, then nearest memory; at most three."""
        compute, gigabytes = _profile_numbers(wanted)

        def distance(profile: MigProfile) -> tuple[bool, int, int]:
            its_compute, its_gigabytes = _profile_numbers(profile.name)
            return its_compute != compute, abs(its_gigabytes - gigabytes), abs(its_compute - compute)

        return [p.name for p in sorted(self.profiles, key=distance)[:3]]


class MigSlice(msgspec.Struct, frozen=True, order=True):
    """One slice of a device."""

    start: int
    profile: str


Layout = tuple[MigSlice, ...]


def check_mig_geometry(geometry: MigGeometry) -> str:
    """What is wrong with a geometry, "" for nothing."""
    if not geometry.name:
        return "has no name"
    if not 1 <= geometry.memory_slices <= MAX_SLICES:
        return f"has {geometry.memory_slices} memory slices; 1 to {MAX_SLICES} are possible"
    if not geometry.profiles:
        return "has no profiles"
    for name, times in Counter(p.name for p in geometry.profiles).items():
        if times > 1 or not name:
            return f"names profile `{name}` {times} times" if name else "has a profile without a name"
    for p in geometry.profiles:
        if not 1 <= p.compute <= geometry.compute_slices:
            return f"profile `{p.name}` has {p.compute} compute slices of {geometry.compute_slices}"
        if p.memory < 1 or not p.starts or len(set(p.starts)) != len(p.starts):
            return f"profile `{p.name}` needs memory slices and different starts"
        if any(start < 0 or start + p.memory > geometry.memory_slices for start in p.starts):
            return f"profile `{p.name}` has a start from which it does not fit {geometry.memory_slices} memory slices"
        if p.most < 0:
            return f"profile `{p.name}` may be there {p.most} times"
    return ""


class _Table(msgspec.Struct, frozen=True):
    """best[profile][occupied memory slices] = start, or -1."""

    best: dict[str, list[int]]


_tables: dict[bytes, _Table] = {}


def best_slice_start(geometry: MigGeometry, occupied: int, profile: str) -> int | None:
    """Where a slice of the profile goes on a device with those memory slices taken, or None: nowhere."""
    found = _slice_start_table(geometry).best[geometry.profile(profile).name][occupied]
    return None if found < 0 else found


def _slice_start_table(geometry: MigGeometry) -> _Table:
    key = msgspec.json.encode(geometry)
    table = _tables.get(key)
    if table is None:
        table = _tables[key] = _build_slice_starts(geometry)
    return table


def _build_slice_starts(geometry: MigGeometry) -> _Table:
    largest_first = sorted(geometry.profiles, key=lambda p: (-p.compute, -p.memory, p.name))

    @cache
    def room(occupied: int) -> tuple[int, ...]:
        return tuple(count_slices_that_fit(p, occupied) for p in largest_first)

    best: dict[str, list[int]] = {}
    for profile in geometry.profiles:
        best[profile.name] = row = []
        for occupied in range(1 << geometry.memory_slices):
            starts = [s for s in profile.starts if not occupied & profile.mask(s)]
            row.append(max(starts, key=lambda s: (room(occupied | profile.mask(s)), s), default=-1))
    return _Table(best)


def count_slices_that_fit(profile: MigProfile, occupied: int) -> int:
    """How many of the profile fit beside what is there. Starts in order, first come: equal runs never gain by skipping."""
    count = 0
    for start in sorted(profile.starts):
        if not occupied & profile.mask(start):
            occupied |= profile.mask(start)
            count += 1
    return min(count, profile.most) if profile.most else count


def memory_slices_occupied(geometry: MigGeometry, layout: Layout) -> int:
    """Memory slices the layout uses."""
    mask = 0
    for piece in layout:
        mask |= geometry.profile(piece.profile).mask(piece.start)
    return mask


def check_mig_layout(geometry: MigGeometry, layout: Layout) -> Refusal | None:
    """Why the layout is not legal, or None."""
    taken, compute, counts = 0, 0, Counter[str]()
    for piece in layout:
        try:
            profile = geometry.profile(piece.profile)
        except Refusal as refusal:
            return refusal
        if piece.start not in profile.starts:
            legal = ", ".join(map(str, profile.starts))
            return Refusal(
                "IllegalMigStart", f"{profile.name} cannot start at slice {piece.start}.", f"It can at: {legal}."
            )
        if taken & profile.mask(piece.start):
            return Refusal(
                "MigSlicesOverlap",
                f"{profile.name} at slice {piece.start} overlaps another slice.",
                "Remove that one first, or choose another start.",
            )
        taken |= profile.mask(piece.start)
        compute += profile.compute
        counts[profile.name] += 1
        if compute > geometry.compute_slices or (profile.most and counts[profile.name] > profile.most):
            return _no_room_for_slice(geometry, profile)
    return None


def plan_mig_layout(geometry: MigGeometry, wanted: Mapping[str, int]) -> Layout:
    """A legal layout with so many slices of each profile; Refusal IllegalMigLayout when there is none.

    Largest first, every start tried: a device has at most 16 slices and the search is small.
    """
    amounts = [(geometry.profile(name), count) for name, count in wanted.items()]
    found = None
    if sum(profile.memory * count for profile, count in amounts) <= geometry.memory_slices:
        profiles = [profile for profile, count in amounts for _ in range(count)]
        profiles.sort(key=lambda p: (-p.memory, -p.compute, p.name))
        found = _search_mig_layout(geometry, (), profiles)
    if found is None:
        what = ", ".join(f"{count} x {name}" for name, count in wanted.items())
        raise Refusal(
            "IllegalMigLayout",
            f"{what} do not fit one {geometry.name}.",
            _nearest_mig_layout(geometry, amounts),
        )
    return found


def _nearest_mig_layout(geometry: MigGeometry, amounts: Sequence[tuple[MigProfile, int]]) -> str:
    """The nearest that would fit: slices left out from the end of the list, one after the other."""
    profiles = [profile for profile, count in amounts for _ in range(min(count, geometry.memory_slices))]
    while profiles := profiles[:-1]:
        if (
            _search_mig_layout(geometry, (), sorted(profiles, key=lambda p: (-p.memory, -p.compute, p.name)))
            is not None
        ):
            counts = Counter(profile.name for profile in profiles)
            return f"Ask for fewer slices: {', '.join(f'{n} x {name}' for name, n in counts.items())} would fit."
    return "Ask for smaller slices."


def _search_mig_layout(
    geometry: MigGeometry, layout: Layout, profiles: Sequence[MigProfile], last: MigSlice | None = None
) -> Layout | None:
    """`last`: the slice placed just before. One more of its profile goes below it: the order of equals does not matter."""
    if not profiles:
        return tuple(sorted(layout))
    first, *rest = profiles
    best = best_slice_start(geometry, memory_slices_occupied(geometry, layout), first.name)
    for start in sorted(first.starts, key=lambda s: (s != best, -s)):
        if last is not None and last.profile == first.name and start > last.start:
            continue
        new = MigSlice(start, first.name)
        if check_mig_layout(geometry, (*layout, new)) is None:
            found = _search_mig_layout(geometry, (*layout, new), rest, new)
            if found is not None:
                return found
    return None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    source: str
    geometries: list[MigGeometry]


@cache
def known_mig_geometries() -> Mapping[str, MigGeometry]:
    """The geometries of this build by name."""
    file = msgspec.json.decode(resources.files(__package__).joinpath("mig.json").read_bytes(), type=_File)
    for geometry in file.geometries:
        if wrong := check_mig_geometry(geometry):
            raise ValueError(f"MIG table {file.version}: {geometry.name} {wrong}")
    return {geometry.name: geometry for geometry in file.geometries}


def _no_room_for_slice(geometry: MigGeometry, profile: MigProfile) -> Refusal:
    limit = f"; a device has at most {profile.most}" if profile.most else ""
    return Refusal(
        "NoRoomForMigSlice",
        f"No room for {profile.name} on this {geometry.name}{limit}.",
        "Remove a slice, or take a smaller profile.",
    )


def _profile_numbers(name: str) -> tuple[int, int]:
    """3g.40gb+me -> (3, 40); what is not a number counts as 0."""
    parts = name.lower().partition("+")[0].split(".")
    digits = ["".join(c for c in part if c.isdigit()) for part in (*parts, "", "")]
    return int(digits[0] or 0), int(digits[1] or 0)
