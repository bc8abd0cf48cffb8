"""MIG: the vendor's profiles, where slices go, and what is refused."""

from __future__ import annotations

import pytest

from remuda.api.errors import Refusal
from remuda.core.devices.mig import (
    Layout,
    MigGeometry,
    MigProfile,
    MigSlice,
    best_slice_start,
    check_mig_layout,
    known_mig_geometries,
    memory_slices_occupied,
    plan_mig_layout,
)

H100 = known_mig_geometries()["h100-80gb"]
# profile without memory -> instances the vendor says fit
COUNTS = {"1g": (7, 4), "1g+me": (1,), "2g": (3,), "3g": (2,), "4g": (1,), "7g": (1,)}


def layout(*pieces: tuple[str, int]) -> Layout:
    return tuple(sorted(MigSlice(start, profile) for profile, start in pieces))


@pytest.mark.parametrize(
    ("name", "profiles"),
    [
        ("a100-40gb", "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("a100-80gb", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("h100-80gb", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("h200-141gb", "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
        ("b200-180gb", "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
        ("gb200-186gb", "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"),
    ],
)
def test_profiles_are_the_vendors(name: str, profiles: str) -> None:
    geometry = known_mig_geometries()[name]
    assert [p.name for p in geometry.profiles] == profiles.split()


@pytest.mark.parametrize("geometry", known_mig_geometries().values(), ids=lambda g: g.name)
def test_as_many_fit_as_the_vendor_says(geometry: MigGeometry) -> None:
    for profile in geometry.profiles:
        kind = profile.name.split(".")[0] + ("+me" if "+me" in profile.name else "")
        expected = COUNTS[kind][-1 if profile.memory > 1 else 0]
        plan_mig_layout(geometry, {profile.name: expected})
        with pytest.raises(Refusal, match="IllegalMigLayout"):
            plan_mig_layout(geometry, {profile.name: expected + 1})


def test_a_profile_nobody_has_is_refused_with_the_near_ones() -> None:
    with pytest.raises(Refusal) as caught:
        H100.profile("3g.30gb")
    assert caught.value.reason == "UnknownMigProfile"
    assert "3g.30gb" in caught.value.message
    assert "Near: 3g.40gb" in caught.value.fix
    assert "machine model" in caught.value.fix


@pytest.mark.parametrize("name", ["", "gpu", "3g.30gb", "9g.999gb", "1g", "....", "mig-"])
def test_any_nonsense_is_refused_the_same_way(name: str) -> None:
    with pytest.raises(Refusal, match="UnknownMigProfile"):
        H100.profile(name)


def test_a_profile_may_be_named_by_its_resource() -> None:
    plain, media = H100.profile("nvidia.com/mig-3g.40gb"), H100.profile("mig-1g.10gb.me")
    assert (plain.name, plain.resource) == ("3g.40gb", "nvidia.com/mig-3g.40gb")
    assert (media.name, media.resource) == ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me")
    assert plain.memory_bytes(H100, 80 << 30) == 40 << 30


@pytest.mark.parametrize(
    ("there", "profile", "start"),
    [
        ((), "1g.10gb", 6),  # 4g can only begin at 0: leave that end alone
        ((), "2g.20gb", 4),
        ((), "3g.40gb", 4),  # leaves 4g
        ((("1g.10gb", 6),), "1g.10gb", 5),
        ((("1g.10gb", 0),), "3g.40gb", 4),
        ((("3g.40gb", 4),), "4g.40gb", 0),
        ((("1g.10gb", 6),), "1g.20gb", 4),  # 6 is taken; 4 and not 0, where 4g begins
        ((("7g.80gb", 0),), "1g.10gb", None),
        ((("1g.10gb", 0), ("1g.10gb", 4)), "3g.40gb", None),
    ],
)
def test_a_slice_goes_where_it_leaves_the_largest_profiles_possible(
    there: tuple[tuple[str, int], ...], profile: str, start: int | None
) -> None:
    assert best_slice_start(H100, memory_slices_occupied(H100, layout(*there)), profile) == start


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ((("2g.20gb", 1),), "IllegalMigStart"),
        ((("4g.40gb", 4),), "IllegalMigStart"),
        ((("3g.40gb", 0), ("1g.10gb", 3)), "MigSlicesOverlap"),
        ((("1g.10gb+me", 0), ("1g.10gb+me", 1)), "NoRoomForMigSlice"),
        ((("3g.30gb", 0),), "UnknownMigProfile"),
    ],
)
def test_layouts_that_are_not_legal(pieces: tuple[tuple[str, int], ...], reason: str) -> None:
    refusal = check_mig_layout(H100, layout(*pieces))
    assert refusal is not None
    assert refusal.reason == reason


def test_compute_slices_are_counted_where_a_users_geometry_has_too_few() -> None:
    geometry = MigGeometry("tight", [MigProfile("2g", 2, 1, [0, 1, 2])], memory_slices=3, compute_slices=4)
    assert check_mig_layout(geometry, layout(("2g", 0), ("2g", 1))) is None
    refusal = check_mig_layout(geometry, layout(("2g", 0), ("2g", 1), ("2g", 2)))
    assert refusal is not None
    assert refusal.reason == "NoRoomForMigSlice"


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({"3g.40gb": 2}, True),
        ({"1g.10gb": 7}, True),
        ({"1g.10gb": 8}, False),
        ({"1g.10gb": 10**9}, False),
        ({"4g.40gb": 1, "3g.40gb": 1}, True),
        ({"4g.40gb": 2}, False),
        ({"2g.20gb": 3, "1g.10gb": 1}, True),
        ({"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}, True),
        ({"1g.20gb": 4}, True),
        ({"7g.80gb": 1, "1g.10gb": 1}, False),
        ({"1g.10gb+me": 1, "1g.10gb": 6}, True),
        ({}, True),
    ],
)
def test_a_layout_for_a_shopping_list(wanted: dict[str, int], fits: bool) -> None:
    if not fits:
        with pytest.raises(Refusal, match="IllegalMigLayout"):
            plan_mig_layout(H100, wanted)
        return
    found = plan_mig_layout(H100, wanted)
    assert check_mig_layout(H100, found) is None
    assert sorted(p.profile for p in found) == sorted(n for n, count in wanted.items() for _ in range(count))
