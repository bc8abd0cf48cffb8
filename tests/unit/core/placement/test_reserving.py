"""Places that belong to somebody although nobody sits there."""

from __future__ import annotations

from remuda.core.placement.gang import plan_placement
from remuda.core.placement.reserving import Reservation, pod_key
from tests.builders.gangs import a_gang_ask, a_held_pod, a_node, a_snapshot, racks

ALL = tuple(f"gpu-{i}" for i in range(8))
LENT = Reservation("node-01", ALL, ("default/job", pod_key("else", "guest")))


def names(*asks: object, nodes: int = 1, reserved: tuple[Reservation, ...] = (LENT,)) -> dict[str, str]:
    plan = plan_placement(a_snapshot(racks(nodes), reserved=reserved), asks)  # type: ignore[arg-type]
    taken = [(a.node, device) for a in plan.assignments for device in a.devices]
    assert len(taken) == len(set(taken))
    return {a.pod.name: a.node for a in plan.assignments}


def test_only_its_askers_get_a_reserved_place() -> None:
    stranger, gang = a_gang_ask(1, key="default/other"), a_gang_ask(1, key="default/job")
    guest = a_gang_ask(1, key=pod_key("else", "guest"))
    assert names(stranger) == {}
    assert names(stranger, gang) == {"job-0": "node-01"}
    assert names(stranger, guest) == {"guest-0": "node-01"}
    assert names(stranger, nodes=2) == {"other-0": "node-02"}


def test_two_askers_never_get_the_same_devices() -> None:
    gang, guest = a_gang_ask(1, key="default/job"), a_gang_ask(1, key=pod_key("else", "guest"))
    assert len(names(gang, guest)) == 1
    halves = (a_gang_ask(1, 4, key="default/job"), a_gang_ask(1, 4, key=pod_key("else", "guest")))
    assert names(*halves) == {"job-0": "node-01", "guest-0": "node-01"}


def test_a_spare_may_return_to_its_place() -> None:
    spare = a_gang_ask(0, key="default/job", spares=1, pinned="rack-1")
    other = a_gang_ask(0, key="default/other", spares=1, pinned="rack-1")
    assert names(other, spare) == {"job-spare-0": "node-01"}


def test_a_refusal_is_not_passed_on_to_one_that_has_a_place() -> None:
    """Both ask for the same; the first has no reservation."""
    guest = a_gang_ask(1, key=pod_key("else", "guest"))
    asks = [a_gang_ask(1, key="default/other"), guest, a_gang_ask(1, key="default/third")]
    assert names(*asks) == {"guest-0": "node-01"}


def test_what_is_held_or_broken_is_not_free_to_an_asker_either() -> None:
    held = a_snapshot(racks(1), [a_held_pod("p", "node-01", ALL[:4])], reserved=[LENT])
    assert held.free == (0,)
    assert held.opened_to("default/job").free == (0xF0,)
    assert held.opened_to("default/other").free == (0,)
    unknown = a_snapshot([a_node("node-01").rack("rack-1").quarantined("gpu-0")], reserved=[LENT])
    assert unknown.opened_to("default/job").free == (0xFE,)
