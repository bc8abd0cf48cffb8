from __future__ import annotations

import ipaddress

import pytest

from remuda.embedded.node.pod_addresses import PodAddresses


def test_addresses_are_unique_loopback_and_stable() -> None:
    addresses = PodAddresses()
    given = [addresses.assign(f"uid-{i}") for i in range(2000)]
    assert len(set(given)) == 2000
    loopback = ipaddress.ip_network("127.0.0.0/8")
    assert all(ipaddress.ip_address(a) in loopback and not a.endswith((".0", ".255")) for a in given)
    assert not any(a.startswith("127.0.") for a in given)
    assert addresses.assign("uid-7") == given[7]


def test_an_address_is_not_given_again_at_once() -> None:
    addresses = PodAddresses()
    first = addresses.assign("a")
    addresses.release("a")
    assert addresses.assign("b") != first


def test_a_restart_finds_the_addresses_again() -> None:
    addresses = PodAddresses()
    assert addresses.recover("old", "127.1.0.5") == "127.1.0.5"
    assert addresses.recover("old", "127.1.0.5") == "127.1.0.5"
    fresh = {addresses.assign(f"uid-{i}") for i in range(300)}
    assert "127.1.0.5" not in fresh


@pytest.mark.parametrize("address", ["", "10.0.0.1", "127.0.0.1", "127.1.0", "127.1.0.999", "::1", "127.255.0.1"])
def test_an_address_that_is_not_ours_is_replaced(address: str) -> None:
    addresses = PodAddresses()
    assert addresses.recover("a", address) == "127.1.0.1"


def test_two_pods_never_share_an_address() -> None:
    addresses = PodAddresses()
    assert addresses.recover("a", "127.9.9.9") != addresses.recover("b", "127.9.9.9")


def test_two_clusters_of_one_machine_begin_at_places_of_their_own_each_always_at_the_same() -> None:
    given = {name: [PodAddresses(cluster=name).assign("a") for _ in range(2)] for name in ("/srv/one", "/srv/two")}
    assert all(len(set(each)) == 1 for each in given.values())
    assert len({each[0].rpartition(".")[0] for each in given.values()}) == 2


def test_releasing_twice_is_harmless() -> None:
    addresses = PodAddresses()
    addresses.assign("a")
    addresses.release("a")
    addresses.release("a")
    assert addresses.assign("a")
