"""When a node that nobody vouches for stops its ranks, and how much later they are handed on: both bounds, in one place.

A rank may be given to another only when the old one has surely stopped. Its node stops it by itself (it *fences*) when neither of
these is so any more, each counted from when the node *asked*, which is never later than when the other side heard it:

    a renewal of its lease got through           for `fence_after_s(lease)`
    the manager that leads promised it           for as long as it said: `promise_s`, never longer than its own term

The manager counts the same two from when it *heard* of them, and hands ranks on after `hand_on_after_s(lease)`; a lease whose
holder's clock disagrees with ours counts from when we saw it, else from its own word, which may then be a quarter earlier
(`agent_liveness.AGREE_SHARE`). A manager that comes new counts every lease from when it first sees it, and begins only when the
term of the one before is over: it is bound by promises it never heard of. So, whoever leads:

    fence_after_s + margin <= hand_on_after_s - a quarter of the lease

A manager that stalls counts anew, which is later. A node that stalls cannot stop anything in time. Awake again it asks the
manager first, and without its word stops before anything else when its time was over.
"""

from __future__ import annotations

import math

from remuda.core.health.agent_liveness import AGREE_SHARE

FENCE_SHARE = 2 / 3  # of the lease
LONGEST_LEASE_S = 3600  # as `remuda up --lease`; one that says more counts as this: it would keep a dead node for ever
MARGIN_SHARE = 1 - AGREE_SHARE - FENCE_SHARE  # what is left to stop in: a twelfth


def fence_after_s(lease_s: float) -> float:
    """So long after it was last vouched for a node runs its ranks."""
    return lease_s * FENCE_SHARE


def hand_on_after_s(lease_s: float) -> float:
    """So long after it was last heard of a node's ranks are handed on."""
    return fence_after_s(lease_s) / FENCE_SHARE


def promise_s(lease_s: float, term_left_s: float) -> float:
    """For how long the manager may promise a node that it hands nothing on; 0 = not at all."""
    return max(0.0, min(fence_after_s(lease_s), term_left_s))


class FenceCountdown:
    """Until when a node may run its ranks, on its own clock, which never goes back."""

    def __init__(self) -> None:
        self.runs_until = -math.inf

    def is_over(self, now: float) -> bool:
        return now >= self.runs_until

    def vouched(self, asked_at: float, seconds: float) -> None:
        """Somebody who may say so vouches for that long, counted from the question."""
        if seconds > 0:
            self.runs_until = max(self.runs_until, asked_at + seconds)
