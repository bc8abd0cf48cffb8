"""Every machine model, shipped or random: devices are given once, and the set chosen is the best there is.

The optimum is computed here anew, from the model's data alone, by trying every set.
"""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.devices.links import machine_model_chooser, machine_model_chooser_named
from remuda.core.devices.machine_models import (
    MachineModel,
    known_machine_models,
    load_built_in_machine_model,
    parse_machine_model,
)

STEPS = settings(max_examples=40, deadline=None, print_blob=True)


def worth(model: MachineModel, a: int, b: int) -> int:
    """The documented scale: 100 per direct link, 50/40/30/20/10 by distance, 15 within a socket."""
    one, other = model.devices[a], model.devices[b]
    direct = sum(100 * link.count for link in model.links if {a, b} <= set(link.among))
    if one.switch and one.switch == other.switch:
        return direct + 50
    if one.switch and other.switch and one.switch.split("/")[0] == other.switch.split("/")[0]:
        return direct + 40
    if one.root and one.root == other.root:
        return direct + 30
    if one.numa == other.numa:
        return direct + 20
    return direct + (15 if model.sockets and model.sockets[one.numa] == model.sockets[other.numa] else 10)


def total(model: MachineModel, devices: tuple[int, ...]) -> int:
    return sum(worth(model, a, b) for a, b in combinations(devices, 2))


def unpack(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def check_best(model: MachineModel, free: int, count: int, must: int = 0) -> None:
    choice = machine_model_chooser(model).best(free, count, must)
    chosen = unpack(choice.mask)
    sets = [s for s in combinations(unpack(free), count) if set(unpack(must)) <= set(s)]
    best = max(total(model, s) for s in sets)
    where = f"{model.name} free={free:b} count={count} must={must:b} chosen={choice.mask:b}"
    assert len(chosen) == count, where
    assert choice.mask & ~free == 0
    assert must & ~choice.mask == 0
    assert choice.exhaustive
    assert total(model, chosen) == choice.score == best, where
    # Of the best sets it is one that leaves the best rest.
    rest = max(total(model, tuple(set(unpack(free)) - set(s))) for s in sets if total(model, s) == best)
    assert total(model, unpack(free & ~choice.mask)) == rest, where


@pytest.mark.parametrize("name", known_machine_models())
@STEPS
@given(data=st.data())
def test_the_chosen_set_is_the_exhaustive_optimum(name: str, data: st.DataObject) -> None:
    model = load_built_in_machine_model(name)
    free = data.draw(st.integers(1, (1 << len(model.devices)) - 1))
    check_best(model, free, data.draw(st.integers(0, free.bit_count())))


@pytest.mark.parametrize("name", known_machine_models())
@STEPS
@given(data=st.data())
def test_also_with_devices_that_must_be_in_it(name: str, data: st.DataObject) -> None:
    model = load_built_in_machine_model(name)
    free = data.draw(st.integers(1, (1 << len(model.devices)) - 1))
    must = data.draw(st.integers(0, (1 << len(model.devices)) - 1)) & free
    check_best(model, free, data.draw(st.integers(must.bit_count(), free.bit_count())), must)


@pytest.mark.parametrize("name", ["two-socket-4x-pcie", "l40s-4x-pcie", "dgx-a100"])
def test_every_mask_and_count_of_small_models(name: str) -> None:
    model = load_built_in_machine_model(name)
    for free in range(1 << len(model.devices)):
        for count in range(free.bit_count() + 1):
            check_best(model, free, count)


@pytest.mark.parametrize("name", ["two-socket-4x-pcie", "l40s-4x-pcie"])
def test_a_pair_never_crosses_the_socket_while_a_pair_of_one_socket_is_free(name: str) -> None:
    model = load_built_in_machine_model(name)
    for free in range(1 << len(model.devices)):
        sockets = [model.socket(model.devices[i].numa) for i in unpack(free)]
        if len(sockets) < 2:
            continue
        chosen = unpack(machine_model_chooser_named(name).best(free, 2).mask)
        crosses = len({model.socket(model.devices[i].numa) for i in chosen}) > 1
        assert crosses == all(sockets.count(s) < 2 for s in sockets)


@pytest.mark.parametrize("name", known_machine_models())
@STEPS
@given(data=st.data())
def test_devices_are_given_once_whatever_comes_and_goes(name: str, data: st.DataObject) -> None:
    chooser = machine_model_chooser_named(name)
    everything = (1 << chooser.size) - 1
    free, held = everything, list[int]()
    for _ in range(data.draw(st.integers(1, 25))):
        give_back = data.draw(st.booleans())
        if held and give_back:
            free |= held.pop(data.draw(st.integers(0, len(held) - 1)))
        elif free:
            taken = chooser.best(free, data.draw(st.integers(1, free.bit_count()))).mask
            assert taken & ~free == 0
            assert all(taken & other == 0 for other in held)
            free &= ~taken
            held.append(taken)
        assert sum(held) | free == everything
        assert sum(held) & free == 0


@st.composite
def machines(draw: st.DrawFn) -> MachineModel:
    """Any shape a user may write, up to ten devices: past the table, still exact."""
    size = draw(st.integers(1, 10))
    numa_nodes = draw(st.integers(1, 4))
    devices = []
    for i in range(size):
        numa = draw(st.integers(0, numa_nodes - 1))
        root = draw(st.sampled_from(["", f"r{numa}a", f"r{numa}b"]))
        switch = f"{root}-s/{draw(st.integers(0, 1))}" if root and draw(st.booleans()) else ""
        devices.append({"index": i, "type": "X", "memoryBytes": 1, "numa": numa, "root": root, "switch": switch})
    links = []
    order = draw(st.permutations(range(size)))
    at = 0
    while at + 2 <= size and draw(st.booleans()):  # groups apart from each other: a pair has one kind of link
        width = draw(st.integers(2, size - at))
        links.append({"kind": "nvlink", "among": order[at : at + width], "count": draw(st.integers(1, 18))})
        at += width
    sockets = draw(st.sampled_from([[], [n // 2 for n in range(numa_nodes)]]))
    return parse_machine_model(
        {"name": "random", "numaNodes": numa_nodes, "sockets": sockets, "devices": devices, "links": links}
    )


@STEPS
@given(model=machines(), data=st.data())
def test_the_optimum_holds_for_any_model_a_user_may_write(model: MachineModel, data: st.DataObject) -> None:
    free = data.draw(st.integers(1, (1 << len(model.devices)) - 1))
    must = data.draw(st.integers(0, (1 << len(model.devices)) - 1)) & free
    check_best(model, free, data.draw(st.integers(must.bit_count(), free.bit_count())), must)
