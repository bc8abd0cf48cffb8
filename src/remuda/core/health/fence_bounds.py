"""When a node that nobody vouches for stops its ranks, and how much later they are handed on: both bounds, in one place.

A rank may be given to another only when the old one has surely stopped. Its node stops it by itself (it *fences*) when neither of
these is so any more, each counted from when the node *asked*, which is never later than when the other side heard it:

    a renewal of its lease got through           for `fence_after_s(lease)`
    the manager that leads promised it           for as long as it said: `promised_fence_bound_s`, never longer than its own term

The manager counts the same two from when it *heard* of them, and hands ranks on when the whole lease is over; a lease whose
holder's clock disagrees with ours counts from when we saw it, else from its own word, which may then be a quarter earlier
(`agent_liveness.AGREE_SHARE`). A manager that comes new counts every lease from when it first sees it, and begins only when the
term of the one before is over: it is bound by promises it never heard of. So, whoever leads:

    fence_after_s + margin <= the lease - a quarter of it

A manager that stalls counts anew, which is later. A node that stalls asks the manager first when it is awake again, and without
its word stops before anything else when its time was over. Until then it can stop nothing, so the launchers do, which are
processes of their own beside the ranks: told for how long their rank may run (`launch.protocol.Vouch`), they stop it when that is
over. A launcher cannot know why its agent is silent, and what it stops is work. So it is told no more than is needed:

    nodes in a process beside the manager's      with every vouch, for `launcher_fence_bound_s`: silence of that process is all
      (`up --split`)                             it takes to be handed on. One machine has one clock, so the quarter is not
                                                 needed for clocks that disagree; it serves a process that is killed and
                                                 started again.
    nodes in the process of their manager        never: while it stands still nobody hands anything on.
    an agent beside a kubelet                    from when a renewal has failed until one gets through, what its own countdown
                                                 has left. Stopped, upgraded or gone while its kubelet speaks for the node, it
                                                 is not handed on, and costs nothing.

What is left: an agent beside a kubelet that is stopped before it has noticed that its node is cut off has told its launchers
nothing, and their ranks run until it wakes.
"""

from __future__ import annotations

import math

from remuda.core.health.agent_liveness import AGREE_SHARE, REPORT_TIMEOUT_S

FENCE_SHARE = 2 / 3  # of the lease
LONGEST_LEASE_S = 3600  # as `remuda up --lease`; one that says more counts as this: it would keep a dead node for ever
MARGIN_SHARE = 1 - AGREE_SHARE - FENCE_SHARE  # what is left to stop in: a twelfth


def fence_after_s(lease_s: float) -> float:
    """So long after it was last vouched for a node runs its ranks."""
    return lease_s * FENCE_SHARE


def lease_of_fence_s(fence_s: float) -> float:
    """The lease whose holder runs its ranks for so long. Who was told to fence sooner than its own lease asks for renews as often
    as the holder of this one: a fence is always longer than the time between two renewals, and one that fails is made up for."""
    return fence_s / FENCE_SHARE


def bounded_fence_s(asked_s: float, lease_s: float) -> float:
    """When a node fences that was told to after `asked_s` (0: never). The manager may hand its ranks on when its lease has run
    out: the fence comes before that, whatever was asked. `lease_s` 0: its silence means nothing."""
    return min(asked_s, fence_after_s(min(lease_s, LONGEST_LEASE_S))) if lease_s > 0 else asked_s


def fence_bounded_renewal_pace_s(asked_s: float, lease_s: float) -> float:
    """The lease at whose pace such a node renews."""
    own_s = lease_s or REPORT_TIMEOUT_S
    return min(own_s, lease_of_fence_s(bounded_fence_s(asked_s, lease_s))) if asked_s > 0 else own_s


def launcher_fence_bound_s(left_s: float, lease_s: float) -> float:
    """For how long launchers run on without a word, under a manager with our clock, when our own countdown has `left_s` left."""
    return left_s + AGREE_SHARE * lease_s


def promised_fence_bound_s(lease_s: float, term_left_s: float) -> float:
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
