"""The cheapest remedy that cures, and why the cheaper ones were not taken."""

import msgspec
import pytest

from remuda.api.training import Budgets, Cause, Remedy
from remuda.core.gang.budgets import charge_budgets, exhausted_budget, refill_budgets, refund_budget
from remuda.core.gang.gang_remedy import (
    MemberFault,
    PlacementOptions,
    RemedyCosts,
    causes_to_charge,
    choose_gang_remedy,
    gang_price_of_staying_slow,
    root_gang_fault,
)

COSTS = RemedyCosts(gang_gpus=64, moved_gpus=8, rollback_s=60.0)
PLENTY = PlacementOptions(spares=1, room_in_domain=4, domain="rack-1", gang_fits="rack-2")


def a_fault(cause: Cause = Cause.CODE, *, pod: str = "p0", lost: bool = False, at: float = 0.0) -> MemberFault:
    return MemberFault(pod, f"uid-{pod}", cause, "Reason", "What happened.", lost, at)


BROKEN = a_fault(Cause.DEVICE, lost=True)


@pytest.mark.parametrize(
    ("faults", "offer", "remedy"),
    [
        ([a_fault()], PLENTY, Remedy.RESTART_IN_PLACE),
        ([a_fault()], PlacementOptions(), Remedy.RESTART_IN_PLACE),
        ([BROKEN], PLENTY, Remedy.PROMOTE_SPARE),
        ([BROKEN], PlacementOptions(room_in_domain=1, gang_fits="rack-2"), Remedy.REPLACE_POD),
        ([BROKEN], PlacementOptions(gang_fits="rack-2"), Remedy.REPLACE_GANG),
        ([BROKEN], PlacementOptions(), Remedy.REPLACE_POD),
        ([BROKEN, a_fault(Cause.DEVICE, pod="p1", lost=True)], PLENTY, Remedy.REPLACE_POD),
        ([BROKEN, a_fault(pod="p1")], PLENTY, Remedy.PROMOTE_SPARE),
    ],
)
def test_choice(faults: list[MemberFault], offer: PlacementOptions, remedy: Remedy) -> None:
    assert choose_gang_remedy(faults, offer, COSTS).remedy is remedy


TWO = [BROKEN, a_fault(Cause.DEVICE, pod="p1", lost=True)]


@pytest.mark.parametrize(
    ("faults", "offer", "pull_s", "remedy", "recalled"),
    [
        ([BROKEN], PlacementOptions(lent=1, recall_s=30.0), 0.0, Remedy.RECALL_SPARE, 1),
        ([BROKEN], PlacementOptions(spares=1, lent=1, recall_s=0.0), 0.0, Remedy.PROMOTE_SPARE, 0),
        ([BROKEN], PlacementOptions(room_in_domain=1, lent=1, recall_s=30.0), 0.0, Remedy.REPLACE_POD, 0),
        ([BROKEN], PlacementOptions(room_in_domain=1, lent=1, recall_s=30.0), 120.0, Remedy.RECALL_SPARE, 1),
        (TWO, PlacementOptions(lent=1), 0.0, Remedy.REPLACE_POD, 0),  # waits: one place is not enough
        (TWO, PlacementOptions(spares=1, lent=2), 0.0, Remedy.RECALL_SPARE, 1),
        (TWO, PlacementOptions(room_in_domain=1, lent=1), 0.0, Remedy.RECALL_SPARE, 1),
        ([a_fault()], PlacementOptions(lent=1), 0.0, Remedy.RESTART_IN_PLACE, 0),
    ],
)
def test_a_lent_spare_is_called_back_when_nothing_is_cheaper(
    faults: list[MemberFault], offer: PlacementOptions, pull_s: float, remedy: Remedy, recalled: int
) -> None:
    choice = choose_gang_remedy(faults, offer, msgspec.structs.replace(COSTS, pull_s=pull_s))
    assert (choice.remedy, choice.recalled) == (remedy, recalled)


def test_a_recall_costs_the_borrowers_grace() -> None:
    soon, late = (
        choose_gang_remedy([BROKEN], PlacementOptions(lent=1, recall_s=s), COSTS).price_gpu_hours for s in (1.0, 31.0)
    )
    assert late - soon == pytest.approx(30.0 * COSTS.gang_gpus / 3600, rel=0.1)


def test_every_cheaper_rung_says_why_not() -> None:
    choice = choose_gang_remedy([BROKEN], PlacementOptions(domain="rack-1", gang_fits="rack-2"), COSTS)
    text = " | ".join(choice.why_not)
    assert "RestartInPlace: p0 cannot be used again (Reason)" in text
    assert "PromoteSpare: 0 spares parked in rack-1, 1 needed" in text
    assert "ReplacePod: no room in rack-1" in text


def test_waiting_for_room_says_what_for() -> None:
    choice = choose_gang_remedy([BROKEN], PlacementOptions(domain="rack-1", why_no_room="Rack full."), COSTS)
    assert choice.remedy is Remedy.REPLACE_POD
    assert any("Rack full." in why for why in choice.why_not)


def test_the_same_pod_failing_again_and_again_is_moved() -> None:
    def remedy(failures: int) -> Remedy:
        costs = RemedyCosts(gang_gpus=64, moved_gpus=8, rollback_s=60.0, same_pod_failures=failures)
        return choose_gang_remedy([a_fault()], PLENTY, costs).remedy

    assert [remedy(n) for n in (0, 3)] == [Remedy.RESTART_IN_PLACE, Remedy.PROMOTE_SPARE]


@pytest.mark.parametrize("field", ["rollback_s", "stop_s", "restart_s"])
def test_what_takes_longer_costs_more(field: str) -> None:
    def price(seconds: float) -> float:
        costs = msgspec.structs.replace(COSTS, **{field: seconds})
        return choose_gang_remedy([a_fault()], PLENTY, costs).price_gpu_hours

    assert price(10) < price(100) < price(1000)


def test_the_price_is_in_gpu_hours() -> None:
    sure = RemedyCosts(gang_gpus=64, moved_gpus=0, rollback_s=3600 - 6.0)
    price = choose_gang_remedy([a_fault()], PlacementOptions(), sure).price_gpu_hours
    assert price == pytest.approx(64, rel=0.07)  # one hour of the gang, and five per cent chance of the next rung


def test_the_root_is_nearest_to_the_hardware_then_earliest() -> None:
    late, early = a_fault(pod="p1", at=2.0), a_fault(pod="p2", at=1.0)
    assert root_gang_fault([late, early]) is early
    assert root_gang_fault([early, BROKEN]) is BROKEN


@pytest.mark.parametrize(
    ("causes", "charged"),
    [
        ([Cause.CODE, Cause.CODE], [Cause.CODE]),
        ([Cause.CODE, Cause.DEVICE], [Cause.DEVICE]),
        ([Cause.HANG, Cause.CODE], [Cause.CODE]),
        ([Cause.DEVICE, Cause.INFRA], [Cause.DEVICE, Cause.INFRA]),
    ],
)
def test_who_is_charged(causes: list[Cause], charged: list[Cause]) -> None:
    faults = [a_fault(c, pod=f"p{i}") for i, c in enumerate(causes)]
    assert causes_to_charge(faults) == charged
    assert charge_budgets({}, charged) == {c.value: 1 for c in charged}


def test_a_budget_of_two_allows_two() -> None:
    limits = Budgets(code=2, preemption=-1)
    assert exhausted_budget(limits, {"code": 2, "preemption": 1000}) is None
    assert exhausted_budget(limits, {"code": 3}) is Cause.CODE


def test_a_charge_moves_to_the_cause_that_explains_it() -> None:
    assert charge_budgets(refund_budget({"code": 2}, "code"), [Cause.DEVICE]) == {"code": 1, "device": 1}
    assert charge_budgets(refund_budget({"code": 1}, "code"), [Cause.DEVICE]) == {"device": 1}


@pytest.mark.parametrize(("step", "after"), [(109, ({"code": 2}, 10)), (110, ({}, 110))])
def test_budgets_refill_on_progress(step: int, after: tuple[dict[str, int], int]) -> None:
    assert refill_budgets(Budgets(refill_after_steps=100), {"code": 2}, 10, step) == after


def test_it_shrinks_only_when_nothing_else_is_possible_and_waiting_costs_more() -> None:
    elastic = PlacementOptions(shrinks_to=7)
    assert choose_gang_remedy([BROKEN], elastic, COSTS).remedy is Remedy.SHRINK
    for better in (
        PlacementOptions(spares=1, shrinks_to=7),
        PlacementOptions(room_in_domain=1, shrinks_to=7),
        PlacementOptions(gang_fits="r", shrinks_to=7),
    ):
        assert choose_gang_remedy([BROKEN], better, COSTS).remedy is not Remedy.SHRINK
    soon = msgspec.structs.replace(COSTS, wait_s=5.0)
    assert choose_gang_remedy([BROKEN], elastic, soon).remedy is Remedy.REPLACE_POD, (
        "another stop later costs more than waiting"
    )


def test_a_segment_is_moved_rather_than_the_gang() -> None:
    offer = PlacementOptions(is_segmented=True, segment_fits="rack-3", gang_fits="rack-4")
    assert choose_gang_remedy([BROKEN], offer, COSTS).remedy is Remedy.MOVE_SEGMENT
    full = PlacementOptions(is_segmented=True, gang_fits="rack-4")
    assert choose_gang_remedy([BROKEN], full, COSTS).remedy is Remedy.REPLACE_GANG


def test_the_image_is_part_of_the_price() -> None:
    slow = msgspec.structs.replace(COSTS, pull_s=300.0)
    prices = [
        choose_gang_remedy([BROKEN], PlacementOptions(room_in_domain=1), costs).price_gpu_hours
        for costs in (COSTS, slow)
    ]
    assert prices[1] - prices[0] == pytest.approx(64 * 300 / 3600, rel=0.1)


def test_staying_beside_a_slow_device_costs_the_slow_down_of_all() -> None:
    costs = RemedyCosts(gang_gpus=64, moved_gpus=8, rollback_s=60.0, expected_s=7200.0)
    assert gang_price_of_staying_slow(costs, 2.0) == pytest.approx(64.0)
    assert gang_price_of_staying_slow(costs, 1.0) < 1.0
