"""The price of remedies: for every gang, checkpoint age and offer the ladder stays a ladder."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.training import Cause, Remedy
from remuda.core.gang.gang_remedy import ChosenRemedy, MemberFault, PlacementOptions, RemedyCosts, choose_gang_remedy

STEPS = settings(max_examples=200, deadline=None, print_blob=True)
LADDER = [Remedy.RESTART_IN_PLACE, Remedy.PROMOTE_SPARE, Remedy.REPLACE_POD, Remedy.REPLACE_GANG]
SECONDS = st.floats(0, 1e6, allow_nan=False)


@st.composite
def costs(draw: st.DrawFn, failures: int = 0) -> RemedyCosts:
    pods, gpus = draw(st.integers(1, 512)), draw(st.integers(1, 8))
    moved = draw(st.integers(1, pods))
    return RemedyCosts(pods * gpus, moved * gpus, draw(SECONDS), same_pod_failures=failures)


OFFERS = st.builds(
    PlacementOptions,
    spares=st.integers(0, 3),
    room_in_domain=st.integers(0, 3),
    gang_fits=st.sampled_from([None, "rack-2"]),
)
FAULTS = st.lists(
    st.builds(
        lambda number, cause, lost: MemberFault(f"p{number}", f"u{number}", cause, "R", "M.", lost, float(number)),
        st.integers(0, 9),
        st.sampled_from(list(Cause)),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


def choose(lost: bool, offer: PlacementOptions, price: RemedyCosts) -> ChosenRemedy:
    return choose_gang_remedy([MemberFault("p", "u", Cause.DEVICE, "R", "M.", lost, 0.0)], offer, price)


@STEPS
@given(price=costs(), is_lost=st.booleans())
def test_the_first_possible_rung_is_the_cheapest(price: RemedyCosts, is_lost: bool) -> None:
    """However far the last checkpoint is: moving the gang is never a bargain while a spare is parked."""
    offers = [PlacementOptions(1, 1, "r", "s"), PlacementOptions(0, 1, "r", "s"), PlacementOptions(0, 0, "r", "s")]
    taken = [choose(is_lost, offer, price) for offer in offers]
    assert [c.remedy for c in taken] == (LADDER[1:] if is_lost else [Remedy.RESTART_IN_PLACE] * 3)
    prices = [c.price_gpu_hours for c in taken]
    assert prices == sorted(prices), "with less on offer it never gets cheaper"


@STEPS
@given(faults=FAULTS, offer=OFFERS, price=costs())
def test_every_choice_cures_and_explains_itself(
    faults: list[MemberFault], offer: PlacementOptions, price: RemedyCosts
) -> None:
    choice = choose_gang_remedy(faults, offer, price)
    lost = [f for f in faults if f.lost]
    if lost:
        assert choice.remedy is not Remedy.RESTART_IN_PLACE
    if choice.remedy is Remedy.PROMOTE_SPARE:
        assert offer.spares >= max(1, len(lost))
    if choice.remedy is Remedy.REPLACE_GANG:
        assert offer.gang_fits is not None
    explained = {text.split(":")[0] for text in choice.why_not}
    assert {str(r) for r in LADDER if r is not choice.remedy} <= explained
    assert choice.cause in {f.cause for f in faults}
    assert choice.price_gpu_hours > 0


@STEPS
@given(data=st.data(), failures=st.integers(0, 5))
def test_failing_again_never_makes_the_same_place_cheaper(data: st.DataObject, failures: int) -> None:
    once = data.draw(costs(failures))
    again = RemedyCosts(once.gang_gpus, once.moved_gpus, once.rollback_s, same_pod_failures=failures + 1)
    offer = data.draw(OFFERS)
    first, second = choose(False, offer, once), choose(False, offer, again)
    assert LADDER.index(second.remedy) >= LADDER.index(first.remedy)
    assert second.price_gpu_hours >= first.price_gpu_hours
