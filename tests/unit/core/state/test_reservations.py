"""Places that belong to somebody although nobody sits there."""

from __future__ import annotations

import msgspec

from remuda.core.scheduling.gang_placement import plan_placement
from remuda.core.scheduling.placement_request import GangAsk
from remuda.core.state.reservations import Reservation, lone_pod_reservation_key
from remuda.core.state.snapshot import Snapshot, build_snapshot
from tests.builders.gangs import a_gang_ask, a_held_pod, a_node, a_snapshot, racks

ALL = tuple(f"gpu-{i}" for i in range(8))
LENT = Reservation("node-01", ALL, ("default/job", lone_pod_reservation_key("else", "guest")))


def names(*asks: object, nodes: int = 1, reserved: tuple[Reservation, ...] = (LENT,)) -> dict[str, str]:
    plan = plan_placement(a_snapshot(racks(nodes), reserved=reserved), asks)  # type: ignore[arg-type]
    taken = [(a.node, device) for a in plan.assignments for device in a.devices]
    assert len(taken) == len(set(taken))
    return {a.pod.name: a.node for a in plan.assignments}


def test_only_its_askers_get_a_reserved_place() -> None:
    stranger, gang = a_gang_ask(1, key="default/other"), a_gang_ask(1, key="default/job")
    guest = a_gang_ask(1, key=lone_pod_reservation_key("else", "guest"))
    assert names(stranger) == {}
    assert names(stranger, gang) == {"job-0": "node-01"}
    assert names(stranger, guest) == {"guest-0": "node-01"}
    assert names(stranger, nodes=2) == {"other-0": "node-02"}


def test_two_askers_never_get_the_same_devices() -> None:
    gang, guest = a_gang_ask(1, key="default/job"), a_gang_ask(1, key=lone_pod_reservation_key("else", "guest"))
    assert len(names(gang, guest)) == 1
    halves = (a_gang_ask(1, 4, key="default/job"), a_gang_ask(1, 4, key=lone_pod_reservation_key("else", "guest")))
    assert names(*halves) == {"job-0": "node-01", "guest-0": "node-01"}


def test_a_spare_may_return_to_its_place() -> None:
    spare = a_gang_ask(0, key="default/job", spares=1, pinned="rack-1")
    other = a_gang_ask(0, key="default/other", spares=1, pinned="rack-1")
    assert names(other, spare) == {"job-spare-0": "node-01"}


def test_a_refusal_is_not_passed_on_to_one_that_has_a_place() -> None:
    """Both ask for the same; the first has no reservation."""
    guest = a_gang_ask(1, key=lone_pod_reservation_key("else", "guest"))
    asks = [a_gang_ask(1, key="default/other"), guest, a_gang_ask(1, key="default/third")]
    assert names(*asks) == {"guest-0": "node-01"}


def test_what_is_held_or_broken_is_not_free_to_an_asker_either() -> None:
    held = a_snapshot(racks(1), [a_held_pod("p", "node-01", ALL[:4])], reserved=[LENT])
    assert held.free == (0,)
    assert held.opened_to("default/job").free == (0xF0,)
    assert held.opened_to("default/other").free == (0,)
    unknown = a_snapshot([a_node("node-01").rack("rack-1").quarantined("gpu-0")], reserved=[LENT])
    assert unknown.opened_to("default/job").free == (0xFE,)


# -- what is counted ---------------------------------------------------------------------------------------------------

FIRST = Reservation("node-01", ALL[:4], ("default/job", lone_pod_reservation_key("else", "guest")), {"cpu": 6000})
SECOND = Reservation("node-01", ALL[4:], ("default/job", lone_pod_reservation_key("else", "other")), {"cpu": 3000})


def counted(*reserved: Reservation, cpu: int = 10) -> Snapshot:
    node = a_node("node-01").rack("rack-1")
    made = node.node()
    amounts = {**made.status.allocatable, "cpu": cpu, "pods": 4}
    made = msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, allocatable=amounts))
    return build_snapshot([made], [node.devices()], (), reserved=reserved)


def asking(key: str, cpu: int, gpus: int = 0) -> GangAsk:
    ask = a_gang_ask(1, gpus, key=key)
    (pod,) = ask.members
    others = (("cpu", cpu * 1000),)
    return msgspec.structs.replace(ask, members=(msgspec.structs.replace(pod, others=others),))


def placed(picture: Snapshot, *asks: GangAsk) -> set[str]:
    return {a.pod.name for a in plan_placement(picture, asks).assignments}


GANG, GUEST, OTHER = "default/job", lone_pod_reservation_key("else", "guest"), lone_pod_reservation_key("else", "other")


def test_amounts_of_a_place_are_in_no_count_but_its_askers() -> None:
    picture = counted(FIRST)
    assert picture.left == ({"cpu": 4000, "pods": 3},)
    assert picture.opened_to(GANG).left == ({"cpu": 10000, "pods": 4},)
    assert placed(picture, asking("default/x", 5)) == set()
    assert placed(picture, asking("default/x", 4)) == {"x-0"}
    assert placed(picture, asking(GANG, 10)) == {"job-0"}


def test_an_asker_takes_of_its_place_first_and_leaves_the_rest_hidden() -> None:
    picture = counted(FIRST)
    assert placed(picture, asking(GUEST, 2), asking("default/x", 4)) == {"guest-0", "x-0"}
    assert placed(picture, asking(GUEST, 2), asking("default/x", 5)) == {"guest-0"}
    assert placed(picture, asking(GUEST, 8), asking("default/x", 3)) == {"guest-0"}, "two of it were everybody's"
    assert placed(picture, asking(GUEST, 8), asking("default/x", 2)) == {"guest-0", "x-0"}


def test_what_one_asker_took_is_gone_for_the_next() -> None:
    picture = counted(FIRST)
    assert placed(picture, asking(GANG, 8), asking(GUEST, 3)) == {"job-0"}
    assert placed(picture, asking(GANG, 8), asking(GUEST, 2)) == {"job-0", "guest-0"}


def test_two_places_on_one_node_are_kept_apart() -> None:
    picture = counted(FIRST, SECOND)
    assert picture.left == ({"cpu": 1000, "pods": 2},)
    assert placed(picture, asking(OTHER, 5)) == set()
    assert placed(picture, asking(OTHER, 4), asking(GUEST, 6)) == {"other-0", "guest-0"}
    assert placed(picture, asking(GANG, 10)) == {"job-0"}
    assert placed(picture, asking(GANG, 7), asking(OTHER, 3)) == {"job-0", "other-0"}
    assert placed(picture, asking(GANG, 7), asking(GUEST, 2), asking(OTHER, 3)) == {"job-0", "other-0"}


def test_no_more_is_kept_than_there_is() -> None:
    assert counted(FIRST, cpu=4).left == ({"cpu": 0, "pods": 3},)
    assert counted(FIRST, SECOND, cpu=7).left == ({"cpu": 0, "pods": 2},)


def test_a_loan_of_before_amounts_were_written_down_keeps_devices_only() -> None:
    assert counted(LENT).left == ({"cpu": 10000, "pods": 4},)
