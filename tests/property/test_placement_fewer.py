"""Segments, and pods that a gang can do without: whatever the racks and the gang, what is placed obeys the promises."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.errors import Refusal
from remuda.core.scheduling.gang_placement import place_gang_members, plan_placement
from remuda.core.scheduling.placement_request import GangAsk, SegmentAsk
from tests.builders.gangs import RACK, a_gang_ask, a_pod_ask, a_snapshot, racks

STEPS = settings(max_examples=150, deadline=None)
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@STEPS
@given(sizes=SIZES, blocks=st.lists(st.integers(1, 4), min_size=1, max_size=4), gpus=st.sampled_from([4, 8]))
def test_every_segment_is_whole_in_one_rack_or_nobody_is_placed(sizes: list[int], blocks: list[int], gpus: int) -> None:
    snapshot = a_snapshot(racks(*sizes))
    segments = tuple(
        SegmentAsk(tuple(a_pod_ask(f"s{number}-{pod}", gpus) for pod in range(size)))
        for number, size in enumerate(blocks)
    )
    members = tuple(pod for segment in segments for pod in segment.members)
    placed = place_gang_members(snapshot, GangAsk("default/job", members, topology=RACK, segments=segments))
    if isinstance(placed, Refusal):
        per_rack = [size * (8 // gpus) for size in sizes]
        assert (
            max(blocks) > max(per_rack)
            or sum(blocks) > sum(per_rack)
            or len(set(blocks)) > 1
            or not _fits(blocks, per_rack)
        )
        return
    assert sorted(a.pod.name for a in placed) == sorted(p.name for p in members)
    taken = [(a.node, device) for a in placed for device in a.devices]
    assert len(taken) == len(set(taken)) == gpus * len(members)
    for segment in segments:
        names = {p.name for p in segment.members}
        assert len({snapshot.domain_of(a.node, RACK) for a in placed if a.pod.name in names}) == 1


def _fits(blocks: list[int], rooms: list[int]) -> bool:
    """Equal blocks: each room takes as many as it holds."""
    return sum(room // blocks[0] for room in rooms) >= len(blocks)


@STEPS
@given(sizes=SIZES, replicas=st.integers(1, 6), least=st.integers(1, 6))
def test_a_gang_is_placed_whole_where_it_fits_and_never_below_its_least(
    sizes: list[int], replicas: int, least: int
) -> None:
    least = min(least, replicas)
    ask = a_gang_ask(replicas)
    members = tuple(msgspec.structs.replace(p, optional=n >= least) for n, p in enumerate(ask.members))
    plan = plan_placement(a_snapshot(racks(*sizes)), [msgspec.structs.replace(ask, members=members)])
    placed = {a.pod.name for a in plan.assignments}
    best = max(sizes)
    assert len(placed) == (min(best, replicas) if best >= least else 0)
    assert len(placed) + len(plan.refused) == replicas
    if placed:
        assert {p.name for p in members if not p.optional} <= placed
