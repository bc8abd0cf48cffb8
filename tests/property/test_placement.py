"""Placement on random clusters: whatever is asked, devices are given once, gangs whole, and refusals tell the truth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.devices import DeviceState
from remuda.api.kubernetes.core_v1 import Pod
from remuda.core.scheduling.gang_placement import plan_placement
from remuda.core.scheduling.placement_request import GangAsk
from remuda.core.state.snapshot import Snapshot
from tests.builders.gangs import RACK, NodeBuilder, a_gang_ask, a_held_pod, a_node, a_snapshot

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes

GPUS = 4
STEPS = settings(max_examples=120, deadline=None, print_blob=True)
DEVICES = [f"gpu-{i}" for i in range(GPUS)]


@st.composite
def nodes(draw: st.DrawFn) -> NodeBuilder:
    node = a_node(f"node-{draw(st.integers(1, 6)):02d}").rack(f"rack-{draw(st.integers(1, 3))}").gpus(GPUS)
    for device in draw(st.sets(st.sampled_from(DEVICES), max_size=2)):
        node = node.device(device, draw(st.sampled_from(list(DeviceState))))
    for device in draw(st.sets(st.sampled_from(DEVICES), max_size=1)):
        node = node.quarantined(device)
    change = draw(st.sampled_from(["", "", "", "cordoned", "not ready", "tainted"]))
    if change == "tainted":
        return node.tainted("x")
    return {"": node, "cordoned": node.cordoned(), "not ready": node.not_ready()}[change]


CLUSTERS = st.lists(nodes(), max_size=6, unique_by=lambda n: n.name)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    held = sorted(draw(st.sets(st.sampled_from(DEVICES), min_size=1, max_size=3)))
    phase = draw(st.sampled_from(["Running", "Pending", "Failed"]))
    return a_held_pod(f"held-{draw(st.integers(0, 99))}", f"node-{draw(st.integers(1, 6)):02d}", held, phase=phase)


@st.composite
def asks(draw: st.DrawFn) -> GangAsk:
    return a_gang_ask(
        draw(st.integers(0, 4)),
        gpus=draw(st.integers(0, GPUS)),
        key=f"default/{draw(st.sampled_from('abcdef'))}",
        spares=draw(st.integers(0, 2)),
        topology=draw(st.sampled_from([RACK, ""])),
        pinned=draw(st.sampled_from([None, None, "rack-1", "rack-2"])),
    )


GANGS = st.lists(asks(), max_size=4, unique_by=lambda a: a.key)


def room(snapshot: Snapshot, ask: GangAsk, free: list[int]) -> dict[str, int]:
    """Pods of this gang's shape that each domain can take, counted node by node."""
    found: dict[str, int] = {}
    size = ask.members[0].gpus
    for view, mask in zip(snapshot.nodes, free, strict=True):
        domain = view.labels.get(ask.topology) if ask.topology else ""
        if domain is None or (ask.pinned is not None and ask.topology and domain != ask.pinned):
            continue
        takes = 0 if view.closed or view.taints else (mask.bit_count() // size if size else 1000)
        found[domain] = found.get(domain, 0) + takes
    return found


@STEPS
@given(cluster=CLUSTERS, held=st.lists(pods(), max_size=4), gangs=GANGS)
def test_placement_keeps_its_promises(cluster: list[NodeBuilder], held: list[Pod], gangs: list[GangAsk]) -> None:
    snapshot = a_snapshot(cluster, held)
    gangs = [g if g.topology or g.pinned is None else a_gang_ask(len(g.members), key=g.key, topology="") for g in gangs]
    plan = plan_placement(snapshot, gangs)
    views = {view.name: (view, mask) for view, mask in zip(snapshot.nodes, snapshot.free, strict=True)}
    given_away: set[tuple[str, str]] = set()
    for assignment in plan.assignments:
        view, mask = views[assignment.node]
        assert not view.closed
        assert not view.taints
        assert len(assignment.devices) == assignment.pod.gpus
        for device in assignment.devices:
            bit = view.devices.index(device)
            assert mask >> bit & 1, f"{device} of {view.name} was not free"
            assert (view.name, device) not in given_away, f"{device} of {view.name} given twice"
            given_away.add((view.name, device))
    placed = {a.pod.name: a.node for a in plan.assignments}
    refused = {pod.name: refusal for pod, refusal in plan.refused}
    for gang in gangs:
        names = [p.name for p in gang.members]
        there = [name for name in names if name in placed]
        assert there in ([], names), "a gang is placed whole or not at all"
        everyone = [*names, *(p.name for p in gang.spares)]
        assert all((name in placed) != (name in refused) for name in everyone), "an answer for everyone, and one"
        if gang.topology:
            domains = {views[placed[name]][0].labels[RACK] for name in everyone if name in placed}
            assert len(domains) <= 1
            assert gang.pinned is None or domains <= {gang.pinned}
    assert all(r.reason and r.message and r.fix for r in refused.values())
    again = plan_placement(snapshot, gangs)
    assert again.assignments == plan.assignments, "deciding twice is deciding the same"
    assert [(p, str(r)) for p, r in again.refused] == [(p, str(r)) for p, r in plan.refused]


@STEPS
@given(cluster=CLUSTERS, held=st.lists(pods(), max_size=4), gang=asks().filter(lambda a: bool(a.members)))
def test_a_gang_is_refused_exactly_when_no_domain_has_room(
    cluster: list[NodeBuilder], held: list[Pod], gang: GangAsk
) -> None:
    snapshot = a_snapshot(cluster, held)
    gang = gang if gang.topology else a_gang_ask(len(gang.members), gpus=gang.members[0].gpus, topology="")
    plan = plan_placement(snapshot, [gang])
    best = max(room(snapshot, gang, list(snapshot.free)).values(), default=0)
    members = {p.name for p in gang.members}
    placed = [a for a in plan.assignments if a.pod.name in members]
    assert (len(placed) == len(members)) == (best >= len(members)), plan.refused
