"""Who has a place, and who gives way."""

from __future__ import annotations

import pytest

from remuda.embedded.apiserver.connections import (
    Connection,
    ConnectionLimits,
    ConnectionTable,
    local_apiserver_connection_limits,
    remote_apiserver_connection_limits,
)
from remuda.embedded.apiserver.stream_seats import StreamPlaces

LIMITS = ConnectionLimits(most=6, of_address=4, new=3, streams=4, of_tenant=3)


class Table:
    def __init__(self, limits: ConnectionLimits = LIMITS) -> None:
        self.table = ConnectionTable(limits)
        self.closed: list[str] = []

    def come(self, name: str, address: str = "a") -> Connection:
        found = self.table.admit(address)
        assert found is not None
        found.close = lambda: self.closed.append(name)
        return found


def test_of_those_who_say_nothing_the_oldest_give_way_to_newcomers() -> None:
    """1,500 bare connections took all descriptors for a minute."""
    table = Table()
    for number in range(1_500):
        table.come(f"silent-{number}")
    assert len(table.table) == LIMITS.new
    assert table.closed == [f"silent-{number}" for number in range(1_497)]
    table.come("kubectl").is_busy()
    assert "kubectl" not in table.closed


def test_a_request_under_way_is_never_cut_off() -> None:
    table = Table()
    for number in range(6):
        table.come(f"busy-{number}", f"address-{number}").is_busy()
    assert table.table.admit("b") is None
    assert table.closed == []


def test_the_longest_idle_gives_way_when_nobody_is_new() -> None:
    table = Table()
    there = []
    for number in range(6):
        there.append(table.come(f"c{number}", f"address-{number}"))
        there[-1].is_busy()
    there[2].is_idle()
    there[1].is_idle()
    table.come("next", "b")
    assert table.closed == ["c2"]


def test_one_address_does_not_take_every_place() -> None:
    table = Table()
    for number in range(4):
        table.come(f"mine-{number}", "mine").is_busy()
    assert table.table.admit("mine") is None
    table.come("yours", "yours").is_busy()
    assert table.closed == []


def test_at_its_bound_an_address_gives_way_to_itself() -> None:
    table = Table()
    mine = [table.come(f"mine-{number}", "mine") for number in range(3)]
    for each in mine:
        each.is_busy()
    yours = table.come("yours", "yours")
    yours.is_busy()
    yours.is_idle()
    last = table.come("mine-3", "mine")
    last.is_busy()
    last.is_idle()
    table.come("mine-4", "mine")
    assert table.closed == ["mine-3"]


def test_a_place_is_given_back_once() -> None:
    table = Table()
    one = table.come("one")
    one.leave()
    one.leave()
    one.is_busy()
    assert len(table.table) == 0
    assert not table.table._of_address


@pytest.mark.parametrize("descriptors", [64, 256, 1_024, 65_536, 2**20])
def test_half_of_the_descriptors_are_left_to_everything_else(descriptors: int) -> None:
    remote, local = remote_apiserver_connection_limits(descriptors), local_apiserver_connection_limits(descriptors)
    assert remote.most <= max(16, descriptors // 2)
    assert remote.most + local.most <= descriptors * 5 // 8 or descriptors < 256
    for limits in (remote, local):
        assert 0 < limits.new <= limits.most
        assert 0 < limits.of_tenant <= limits.streams < limits.most  # who only asks still gets in
    assert remote.of_address < remote.most


def test_streams_are_counted_for_each_tenant_and_in_all() -> None:
    places = StreamPlaces(most=4, of_tenant=3)
    assert [places.take("a") for _ in range(4)] == [0, 0, 0, 3]
    assert [places.take("b") for _ in range(2)] == [0, 4]
    places.give_back("a")
    assert places.take("b") == 0
    for tenant in ("a", "a", "b", "b"):
        places.give_back(tenant)
    assert not places._taken
    assert places.take("c") == 0
