"""Correlation: what fails together is explained by what it shares, and what does not is not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from remuda.api.devices import ObservedLink
from remuda.core.health.correlation import DomainSuspect, correlated_switch_findings, find_domain_suspects
from remuda.core.health.failure_index import (
    HELD_BACK,
    KEEP_S,
    DeviceFailure,
    RecentFailures,
    nvswitch_correlation_groups,
)

RACK, POWER, CLIQUE = "topology.remuda.dev/rack", "topology.remuda.dev/power", "nvidia.com/gpu.clique"
NODES = 16  # four racks of four; feeds of two racks; cliques of eight
GPUS = [f"gpu-{n}" for n in range(8)]


def labels_of(node: int) -> Mapping[str, str]:
    return {
        RACK: f"rack-{node // 4}",
        POWER: f"feed-{node // 8}",
        CLIQUE: f"c{node // 8}",
        "kubernetes.io/arch": "amd64",
    }


def a_cluster(labels: object = labels_of) -> RecentFailures:
    recent = RecentFailures()
    for node in range(NODES):
        recent.place(f"n{node}", labels(node))  # type: ignore[operator]
        recent.join(f"n{node}", [GPUS], 8)
    return recent


def after(*failures: DeviceFailure, labels: object = labels_of) -> list[DomainSuspect]:
    recent = a_cluster(labels)
    for failure in failures:
        recent.add(failure)
    return find_domain_suspects(recent)


def failed(node: int, at: float = 100.0, device: str = "gpu-0", scope: str = "device") -> DeviceFailure:
    return DeviceFailure(at, f"n{node}", device, "Xid79", scope)


def only(*keys: str) -> object:
    return lambda node: {k: v for k, v in labels_of(node).items() if k in keys}


def test_a_rack_whose_nodes_fail_together_is_suspect() -> None:
    [suspect] = after(failed(0, 100), failed(1, 110), failed(2, 130), labels=only(RACK))
    assert (suspect.domain, suspect.reason) == (f"{RACK}=rack-0", "RackSuspect")
    assert (suspect.since, suspect.until) == (100, 130)
    assert suspect.members == ("n0/gpu-0", "n1/gpu-0", "n2/gpu-0")
    assert suspect.every == ("n0", "n1", "n2", "n3")
    assert "3 of 4 nodes of rack rack-0 failed within 30 s, 0 of 12 elsewhere" in suspect.message


@pytest.mark.parametrize(
    ("why", "failures"),
    [
        ("two are a coincidence", [failed(0), failed(1)]),
        ("not close together", [failed(0, 100), failed(1, 200), failed(2, 300), failed(3, 400)]),
        ("all on one node", [failed(0, device=gpu) for gpu in GPUS[:3]]),
        ("elsewhere it fails as much", [failed(n) for n in (0, 1, 2, 4, 5, 8, 9, 12, 13, 14)]),
        ("half the cluster is where half of all failures fall", [failed(n) for n in (0, 2, 5)]),
    ],
)
def test_no_domain_is_blamed(why: str, failures: list[DeviceFailure]) -> None:
    labels = only(POWER) if "half the cluster" in why else only(RACK)
    assert after(*failures, labels=labels) == [], why


def test_the_feed_is_named_when_all_its_racks_fell_and_the_rack_when_one_did() -> None:
    both = after(*(failed(n, 100 + n) for n in range(8)), labels=only(RACK, POWER))
    assert [(s.domain, s.reason) for s in both] == [(f"{POWER}=feed-0", "PowerEvent")]
    one = after(*(failed(n, 100 + n) for n in range(4)), labels=only(RACK, POWER))
    assert [s.domain for s in one] == [f"{RACK}=rack-0"]


def test_an_nvlink_domain_over_several_racks() -> None:
    [suspect] = after(*(failed(n, scope="link") for n in (0, 3, 5, 7)), labels=only(RACK, CLIQUE))
    assert (suspect.domain, suspect.reason) == ("nvlink/c0", "NvlinkDomainSuspect")


def test_two_domains_at_once() -> None:
    found = after(*(failed(n) for n in (0, 1, 2, 3)), *(failed(n, 2000) for n in (8, 9, 10, 11)), labels=only(RACK))
    assert {s.domain for s in found} == {f"{RACK}=rack-0", f"{RACK}=rack-2"}


def test_nodes_that_are_lost_count_like_devices() -> None:
    lost = [DeviceFailure(100.0 + n, f"n{n}", reason="NodeNotReady") for n in range(3)]
    [suspect] = after(*lost, labels=only(RACK))
    assert suspect.members == ("n0", "n1", "n2")


def test_most_devices_of_a_switch_blame_the_switch_when_links_were_said_to_fail() -> None:
    failures = [failed(0, 100 + n, gpu, "link" if n == 0 else "device") for n, gpu in enumerate(GPUS[:6])]
    recent = a_cluster(only())
    for failure in failures:
        recent.add(failure)
    [suspect] = find_domain_suspects(recent)
    assert (suspect.domain, suspect.reason) == ("nvswitch/n0/0", "NvswitchFailed")
    assert correlated_switch_findings(recent, [suspect], "n0").keys() == {"gpu-6", "gpu-7"}
    assert correlated_switch_findings(recent, [suspect], "n1") == {}


def test_most_devices_of_a_node_without_a_word_of_links_blame_the_node() -> None:
    [suspect] = after(*(failed(0, 100, gpu) for gpu in GPUS[:6]), labels=only())
    assert (suspect.domain, suspect.reason) == ("node/n0", "NodeSuspect")
    assert after(*(failed(0, 100, gpu) for gpu in GPUS[:4]), labels=only()) == []


def held(node: int, gpu: str, at: float = 100.0, reason: str = "PowerCap") -> DeviceFailure:
    return DeviceFailure(at, f"n{node}", gpu, reason, HELD_BACK)


def test_devices_that_are_held_back_alike_are_their_nodes_matter_and_no_racks() -> None:
    [suspect] = after(*(held(3, gpu) for gpu in GPUS))
    assert (suspect.domain, suspect.reason, suspect.nodes) == ("node/n3", "NodeSuspect", ("n3",))
    assert "8 of 8 devices of n3 were slowed down within 0 s (PowerCap)" in suspect.message
    assert after(*(held(3, gpu) for gpu in GPUS[:4])) == [], "half of them may be hot by themselves"
    rack = after(*(held(node, gpu) for node in range(4) for gpu in GPUS))
    assert [s.domain for s in rack] == [f"node/n{node}" for node in range(4)]
    fallen = after(
        failed(0), failed(1), failed(2), *(held(n, gpu) for n in (8, 9, 12) for gpu in GPUS), labels=only(RACK)
    )
    assert fallen[0].reason == "RackSuspect", "no node of those that are held back has failed"


def test_a_node_that_reports_no_devices_any_more_blames_nothing() -> None:
    recent = a_cluster()
    for gpu in GPUS:
        recent.add(failed(3, device=gpu))
    recent.join("n3", [], 0)
    assert find_domain_suspects(recent) == []


def test_one_rack_is_blamed_only_when_most_of_it_fell() -> None:
    same = lambda node: {RACK: "rack-0"}  # noqa: E731
    assert after(*(failed(n) for n in range(4)), labels=same) == []
    assert [s.reason for s in after(*(failed(n) for n in range(9)), labels=same)] == ["RackSuspect"]


def test_repeats_and_order_do_not_matter() -> None:
    failures = [failed(0, 100), failed(1, 110), failed(2, 130)]
    assert after(*reversed(failures), *failures) == after(*failures)


def test_what_is_old_is_forgotten() -> None:
    recent = a_cluster()
    for node in range(3):
        assert recent.add(failed(node))
        assert not recent.add(failed(node))
    recent.expire(100 + KEEP_S + 1)
    assert find_domain_suspects(recent) == []
    assert not recent.by_domain
    assert not recent.hot
    assert recent.add(failed(0))


def test_failures_heard_of_before_their_nodes_are_put_where_they_belong() -> None:
    """As a manager hears of things after its start."""
    recent = RecentFailures()
    for node in range(3):
        recent.add(failed(node))
    assert find_domain_suspects(recent) == []
    for node in range(NODES):
        assert recent.place(f"n{node}", labels_of(node)) is (node < 3)
        recent.join(f"n{node}", [GPUS], 8)
    assert find_domain_suspects(recent) == after(*(failed(node) for node in range(3)))
    assert find_domain_suspects(recent)


def test_a_node_that_moves_leaves_its_domain() -> None:
    recent = a_cluster(only(RACK))
    recent.place("n3", {RACK: "rack-9"})
    recent.forget("n2")
    for node in (0, 1, 3):
        recent.add(failed(node))
    assert recent.nodes[f"{RACK}=rack-0"] == {"n0", "n1"}
    assert find_domain_suspects(recent) == []
    recent.expire(10_000)  # what was filed under the old label goes, too
    assert not recent.by_domain


def test_groups_of_a_switch() -> None:
    links = [ObservedLink("nv18", GPUS), ObservedLink("nv4", ["gpu-0", "gpu-1"]), ObservedLink("PIX", GPUS)]
    assert nvswitch_correlation_groups(links) == [frozenset(GPUS)]
