"""MIG on random histories: whatever is cut and removed, no memory slice is used twice and every layout is a legal one.

Legal is decided here anew, slice by slice, from the geometry's data alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from remuda.api.errors import Refusal
from remuda.core.devices.machine_models import known_machine_models, load_built_in_machine_model
from remuda.core.devices.mig import (
    Layout,
    MigGeometry,
    MigProfile,
    MigSlice,
    best_slice_start,
    check_mig_geometry,
    check_mig_layout,
    known_mig_geometries,
    memory_slices_occupied,
    plan_mig_layout,
)

STEPS = settings(max_examples=40, deadline=None, print_blob=True)
SHIPPED = list(known_mig_geometries().values())


def is_legal(geometry: MigGeometry, layout: Layout) -> bool:
    by_name = {p.name: p for p in geometry.profiles}
    owner: dict[int, str] = {}
    for piece in layout:
        profile = by_name[piece.profile]
        cells = range(piece.start, piece.start + profile.memory)
        if piece.start not in profile.starts or any(c in owner or c >= geometry.memory_slices for c in cells):
            return False
        owner.update(dict.fromkeys(cells, piece.profile))
    counts = Counter(piece.profile for piece in layout)
    limited = all(not by_name[n].most or count <= by_name[n].most for n, count in counts.items())
    return limited and sum(by_name[p.profile].compute for p in layout) <= geometry.compute_slices


def legal_layouts(geometry: MigGeometry, layout: Layout = (), position: int = 0) -> Iterator[Layout]:
    """Every layout that passes the table's check."""
    if position == geometry.memory_slices:
        yield layout
        return
    yield from legal_layouts(geometry, layout, position + 1)
    for profile in geometry.profiles:
        new = (*layout, MigSlice(position, profile.name))
        if position in profile.starts and check_mig_layout(geometry, new) is None:
            yield from legal_layouts(geometry, new, position + profile.memory)


@st.composite
def geometries(draw: st.DrawFn) -> MigGeometry:
    slices = draw(st.integers(1, 10))
    profiles = []
    for n in range(draw(st.integers(1, 4))):
        memory = draw(st.integers(1, slices))
        starts = draw(st.sets(st.integers(0, slices - memory), min_size=1))
        most = draw(st.sampled_from([0, 0, 1, 2]))
        profiles.append(MigProfile(f"{n}g", draw(st.integers(1, 3)), memory, sorted(starts), most))
    found = MigGeometry("random", profiles, slices, draw(st.integers(3, 8)))
    assert check_mig_geometry(found) == ""
    return found


def live(geometry: MigGeometry, data: st.DataObject) -> None:
    """Slices come and go; every step is legal by the rules and by the table's own check."""
    layout: Layout = ()
    for _ in range(data.draw(st.integers(1, 20))):
        remove = data.draw(st.booleans())
        if layout and remove:
            gone = data.draw(st.sampled_from(layout))
            layout = tuple(piece for piece in layout if piece != gone)
        else:
            profile = data.draw(st.sampled_from(geometry.profiles))
            start = best_slice_start(geometry, memory_slices_occupied(geometry, layout), profile.name)
            chosen = (*layout, MigSlice(start, profile.name)) if start is not None else None
            anywhere = any(is_legal(geometry, (*layout, MigSlice(s, profile.name))) for s in profile.starts)
            # The start the table chooses gives a legal layout whenever any start does.
            assert anywhere == (chosen is not None and is_legal(geometry, chosen))
            if chosen is None or not anywhere:
                assert chosen is None or check_mig_layout(geometry, chosen) is not None
                continue
            layout = chosen
        note(f"{layout}")
        assert is_legal(geometry, layout)
        assert check_mig_layout(geometry, layout) is None
        assert memory_slices_occupied(geometry, layout).bit_count() == sum(
            geometry.profile(p.profile).memory for p in layout
        )


@pytest.mark.parametrize("name", [m for m in known_machine_models() if load_built_in_machine_model(m).geometry(0)])
@STEPS
@given(data=st.data())
def test_slices_come_and_go_on_every_model_that_can_be_sliced(name: str, data: st.DataObject) -> None:
    geometry = load_built_in_machine_model(name).geometry(0)
    assert geometry is not None
    live(geometry, data)


@STEPS
@given(data=st.data())
def test_slices_come_and_go_on_a_geometry_no_model_has(data: st.DataObject) -> None:
    live(known_mig_geometries()["a100-40gb"], data)


@STEPS
@given(geometry=geometries(), data=st.data())
def test_slices_come_and_go_on_a_users_geometry(geometry: MigGeometry, data: st.DataObject) -> None:
    live(geometry, data)


@pytest.mark.parametrize("geometry", SHIPPED, ids=lambda g: g.name)
def test_every_layout_listed_is_legal(geometry: MigGeometry) -> None:
    assert all(is_legal(geometry, layout) for layout in legal_layouts(geometry))


def test_the_layouts_of_the_vendors_diagram() -> None:
    """Without the media and the memory-heavy 1g profile, those to which nothing can be added are the vendor's 19."""
    h100 = known_mig_geometries()["h100-80gb"]
    plain = MigGeometry("plain", [p for p in h100.profiles if p.name not in ("1g.10gb+me", "1g.20gb")])
    drawn = [frozenset(layout) for layout in legal_layouts(plain)]
    full = [layout for layout in drawn if not any(layout < other for other in drawn)]
    assert len(full) == 19
    assert {MigSlice(0, "4g.40gb"), MigSlice(4, "3g.40gb")} in full
    assert {*(MigSlice(start, "2g.20gb") for start in (0, 2, 4)), MigSlice(6, "1g.10gb")} in full


@pytest.mark.parametrize("geometry", SHIPPED, ids=lambda g: g.name)
@STEPS
@given(data=st.data())
def test_a_start_is_found_whenever_there_is_one_and_keeps_the_largest_profile(
    geometry: MigGeometry, data: st.DataObject
) -> None:
    taken = data.draw(st.integers(0, (1 << geometry.memory_slices) - 1))
    profile = data.draw(st.sampled_from(geometry.profiles))
    possible = [s for s in profile.starts if not taken & profile.mask(s)]
    start = best_slice_start(geometry, taken, profile.name)
    assert (start is None) == (not possible)
    if start is None:
        return
    assert start in possible
    largest = sorted(geometry.profiles, key=lambda p: (-p.compute, -p.memory))
    for candidate in largest:  # the largest profile that any start leaves room for, this start leaves room for
        kept = {s: any(not (taken | profile.mask(s)) & candidate.mask(t) for t in candidate.starts) for s in possible}
        if any(kept.values()):
            assert kept[start]
            return


@pytest.mark.parametrize("geometry", SHIPPED, ids=lambda g: g.name)
@STEPS
@given(data=st.data())
def test_a_plan_is_found_exactly_when_one_exists(geometry: MigGeometry, data: st.DataObject) -> None:
    names = [p.name for p in geometry.profiles]
    wanted = data.draw(st.dictionaries(st.sampled_from(names), st.integers(1, 4), min_size=1, max_size=3))
    if Counter(wanted) not in _shopping_lists(geometry):
        with pytest.raises(Refusal, match="IllegalMigLayout"):
            plan_mig_layout(geometry, wanted)
        return
    found = plan_mig_layout(geometry, wanted)
    assert is_legal(geometry, found)
    assert Counter(p.profile for p in found) == Counter(wanted)


_LISTS: dict[str, list[Counter[str]]] = {}


def _shopping_lists(geometry: MigGeometry) -> list[Counter[str]]:
    if geometry.name not in _LISTS:
        kinds = {frozenset(Counter(p.profile for p in found).items()) for found in legal_layouts(geometry)}
        _LISTS[geometry.name] = [Counter(dict(kind)) for kind in kinds]
    return _LISTS[geometry.name]
