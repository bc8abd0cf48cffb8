"""No rank twice, as arithmetic: whatever the delays, clocks, managers and promises, a node has fenced before it is handed on.

A node and the managers over it, drawn at random: renewals that get through late or not at all, a node's clock that is off by up
to a quarter of the lease or far more, promises asked for and answered late, the leader's term that ends, managers that come new.
The node stops by `FenceCountdown`; the manager's moment is that of `AgentLeaseRenewals` and the bounds, as `ClusterView` has it.
"""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from remuda.api.kubernetes.core_v1 import Lease, LeaseSpec
from remuda.api.meta import ObjectMeta, to_time
from remuda.core.health.agent_liveness import AgentLeaseRenewals
from remuda.core.health.fence_bounds import (
    MARGIN_SHARE,
    FenceCountdown,
    fence_after_s,
    launcher_fence_bound_s,
    promised_fence_bound_s,
)

BEGIN = 1_800_000_000.0
delays = st.floats(0.0, 3.0)
# (what, seconds until it, delay on the way there, seconds the leader's term has left)
steps = st.tuples(
    st.sampled_from(["renew", "lost", "ask", "new manager"]), st.floats(0.0, 6.0), delays, st.floats(0, 30)
)


@given(st.floats(1.0, 60.0), st.floats(-0.3, 0.3) | st.floats(-50.0, 50.0), st.lists(steps, max_size=12))
@example(8.0, -0.25, [])
@example(8.0, -0.25, [("ask", 4.0, 0.0, 30.0)])
@example(8.0, -0.25, [("ask", 3.0, 1.0, 30.0), ("new manager", 0.0, 0.0, 0.0)])
def test_a_node_has_fenced_before_its_ranks_are_handed_on(
    lease_s: float, skew: float, story: list[tuple[str, float, float, float]]
) -> None:
    length = math.ceil(lease_s)  # a lease has whole seconds
    now, node, seen = BEGIN, FenceCountdown(), AgentLeaseRenewals()
    renewed, promised = now, -math.inf

    def lease() -> Lease:
        spec = LeaseSpec(lease_duration_seconds=length, renew_time=to_time(renewed + skew * length))
        return Lease(metadata=ObjectMeta(name="node"), spec=spec)

    def handed_on_at() -> float:
        heard = seen.renewed_at(lease())
        assert heard is not None
        return max(heard, promised) + length

    node.vouched(now, fence_after_s(lease_s))
    seen.see(lease(), now)
    for what, wait, delay, term_left in story:
        now += wait
        if node.is_over(now) or now > handed_on_at():
            break
        arrives = now + delay
        if what == "renew":
            renewed = now
            if arrives <= handed_on_at():
                node.vouched(now, fence_after_s(lease_s))
            seen.see(lease(), arrives)
        elif what == "ask":
            # As `ClusterView.promise`: nothing is promised to who may have been given up.
            seconds = promised_fence_bound_s(length, term_left) if arrives <= handed_on_at() else 0.0
            if seconds:
                promised = arrives
            node.vouched(now, min(seconds, fence_after_s(lease_s)))
        elif what == "new manager":
            promised = -math.inf
            seen = AgentLeaseRenewals()
            seen.see(lease(), now)
        now = arrives
    assert node.runs_until <= handed_on_at() - MARGIN_SHARE * lease_s + 1e-3


@given(st.floats(1.0, 60.0), st.lists(st.tuples(st.booleans(), st.floats(0.0, 6.0), delays), max_size=12))
@example(8.0, [])
@example(8.0, [(True, 2.0, 0.0), (False, 5.0, 0.0)])
def test_launchers_have_stopped_before_a_process_that_stands_still_is_handed_on(
    lease_s: float, story: list[tuple[bool, float, float]]
) -> None:
    """Nodes beside their manager, with its clock: renewals and promises as they come, and then nothing more."""
    length, now, node = math.ceil(lease_s), BEGIN, FenceCountdown()
    node.vouched(now, fence_after_s(lease_s))
    heard, launchers_until = now, now + launcher_fence_bound_s(node.runs_until - now, lease_s)
    for is_renewal, wait, delay in story:
        asked, now = now + wait, now + wait + delay
        if node.is_over(now):
            break
        node.vouched(asked, fence_after_s(lease_s) if is_renewal else promised_fence_bound_s(lease_s, math.inf))
        heard = asked
        launchers_until = now + launcher_fence_bound_s(node.runs_until - now, lease_s)
    assert launchers_until <= heard + length - MARGIN_SHARE * lease_s + 1e-3
    assert launchers_until > node.runs_until, "a node that is awake stops them first"


def test_the_bounds_leave_a_margin() -> None:
    assert MARGIN_SHARE > 0
    assert fence_after_s(8.0) < 8.0


@given(st.floats(1.0, 3600.0), st.floats(-10.0, 100.0))
def test_no_promise_outlasts_the_term_or_the_fence(lease_s: float, term_left: float) -> None:
    promised = promised_fence_bound_s(lease_s, term_left)
    assert 0 <= promised <= max(0.0, term_left)
    assert promised <= fence_after_s(lease_s)


@given(
    lease_s=st.floats(2.0, 60.0),
    renew_s=st.floats(1.0, 30.0),
    margin_s=st.floats(0.01, 10.0),
    skew_share=st.floats(-0.25, 0.25),
    asks=st.lists(st.tuples(st.floats(0.0, 10.0), delays), max_size=10),
)
def test_old_leader_and_node_against_the_api_and_a_new_leader(
    lease_s: float, renew_s: float, margin_s: float, skew_share: float, asks: list[tuple[float, float]]
) -> None:
    """A partition at the moment of the last renewal: the old leader vouches for as long as its term lasts, another leads from
    `margin_s` after that, sees the node's old lease for the first time, and hands its ranks on when that has run out."""
    length = math.ceil(lease_s)
    node, term_ends = FenceCountdown(), BEGIN + renew_s
    node.vouched(BEGIN, fence_after_s(lease_s))
    now = BEGIN
    for wait, delay in asks:
        now += wait
        node.vouched(now, promised_fence_bound_s(length, term_ends - (now + delay)))
    begins = term_ends + margin_s
    new = AgentLeaseRenewals()
    # The worst: the node's clock is ahead or behind just so far that its word is believed.
    spec = LeaseSpec(lease_duration_seconds=length, renew_time=to_time(BEGIN + skew_share * length))
    lease = Lease(metadata=ObjectMeta(name="node"), spec=spec)
    new.see(lease, begins)
    heard = new.renewed_at(lease)
    assert heard is not None
    assert node.runs_until < max(heard + length, begins)
