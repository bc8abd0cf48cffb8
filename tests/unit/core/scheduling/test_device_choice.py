"""Which of a node's free devices a pod gets: the best-linked set where the machine is known, the lowest ones where not."""

from __future__ import annotations

import pytest

from remuda.api.devices import Observed, ObservedDevice, ObservedLink
from remuda.core.state.snapshot import NodeView
from remuda.core.state.transaction import choose_snapshot_device_rows


def a_view(observed: Observed | None) -> NodeView:
    ids = tuple(d.id for d in observed.devices) if observed else tuple(f"gpu-{i}" for i in range(4))
    return NodeView(name="node-01", labels={}, devices=ids, usable=(1 << len(ids)) - 1, observed=observed)


def rows(*ids: str) -> list[ObservedDevice]:
    return [ObservedDevice(id=i, type="X") for i in ids]


def two_sockets(*ids: str) -> NodeView:
    return a_view(Observed(model="two-socket-4x-pcie", devices=rows(*(ids or ("gpu-0", "gpu-1", "gpu-2", "gpu-3")))))


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        (0b1110, 2, 0b1100),  # not the lowest two: those are on two sockets
        (0b1111, 2, 0b0011),
        (0b0111, 1, 0b0100),  # the pair stays whole
        (0b0101, 2, 0b0101),
        (0b1111, 4, 0b1111),
        (0b1111, 0, 0),
    ],
)
def test_on_two_sockets_a_pair_stays_together(free: int, count: int, chosen: int) -> None:
    assert choose_snapshot_device_rows(two_sockets(), free, count) == chosen


def test_rows_need_not_be_in_the_models_order() -> None:
    view = two_sockets("gpu-3", "gpu-1", "gpu-2")
    assert choose_snapshot_device_rows(view, 0b111, 2) == 0b101  # gpu-3 and gpu-2


def test_slices_are_taken_from_the_lowest() -> None:
    view = two_sockets("gpu-0", "gpu-1", "gpu-0-1g.10gb-0", "gpu-0-1g.10gb-1", "gpu-0-1g.10gb-2")
    assert choose_snapshot_device_rows(view, 0b11100, 2) == 0b01100


def test_an_unknown_machine_is_judged_by_what_it_shows() -> None:
    links = [ObservedLink("nvlink", ["gpu-0", "gpu-3"])]
    view = a_view(Observed(model="homemade", devices=rows("gpu-0", "gpu-1", "gpu-2", "gpu-3"), links=links))
    assert choose_snapshot_device_rows(view, 0b1111, 2) == 0b1001


def test_with_nothing_known_the_lowest_are_taken() -> None:
    assert choose_snapshot_device_rows(a_view(None), 0b1110, 2) == 0b0110
    assert choose_snapshot_device_rows(a_view(Observed(devices=rows("x", "y", "z"))), 0b110, 1) == 0b010
