"""The agent's fence: when nobody vouches for this node any more, the children of its launchers are stopped.

By then the manager may hand their ranks on (`core.health.fence_bounds`). Who can vouch, in this order: the API, by taking a
renewal of the agent's lease; then, asked when that has not happened for a while, each of `vouchers` (the manager beside the API,
then its peers).
A machine that was suspended or a process that was stopped finds its time over when it wakes: it asks them first, and without a
word stops the ranks before it does anything else. The next renewal that gets through ends it.

From when a renewal has failed it passes what is left on to the launchers (`tell`), so that they stop in time even if this process
does not live to do it. The next renewal lifts that; while all is well they are told nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

import structlog

from remuda.core.health.fence_bounds import FenceCountdown

log = structlog.get_logger(__name__)

ASK_SHARE = 0.4  # of the time without a renewal: from then on the vouchers are asked
LOOKS = 16  # per length
SHORTEST_ASK_S = 0.5

Voucher = Callable[
    [], Awaitable[float]
]  # for how many seconds, counted from the question; OSError when it cannot be asked


class AgentFence:
    """`elapsed`: seconds of a clock that never goes back and also runs while the machine sleeps."""

    def __init__(
        self,
        fence: Callable[[], None],
        unfence: Callable[[], None],
        fence_s: float,
        elapsed: Callable[[], float],
        vouchers: Sequence[Voucher] = (),
        tell: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._tell = tell
        self._is_known = False  # whether anybody has vouched since this process began; before, nothing is told
        self._is_in_doubt = False
        self._told_until = -math.inf
        self._fence = fence
        self._unfence = unfence
        self._fence_s = fence_s
        self._elapsed = elapsed
        self.vouchers = list(vouchers)
        self._countdown = FenceCountdown()
        self._countdown.vouched(elapsed(), fence_s)
        self._renewed = elapsed()
        self.is_fenced = False

    @property
    def ask_s(self) -> float:
        """For so long a voucher is waited for."""
        return max(SHORTEST_ASK_S, self._fence_s / LOOKS)

    @property
    def is_over(self) -> bool:
        """Fenced, or about to be: the time is over, whether this process has had its turn since or not."""
        return self.is_fenced or self._countdown.is_over(self._elapsed())

    def renewed(self, sent_at: float) -> None:
        """The API took a renewal that was sent then."""
        self._renewed = max(self._renewed, sent_at)
        self._countdown.vouched(sent_at, self._fence_s)
        if self._countdown.is_over(self._elapsed()):
            return
        self._is_known, self._is_in_doubt = True, False
        self._told_until = math.inf
        self._tell(math.inf)
        if self.is_fenced:
            self.is_fenced = False
            self._unfence()

    def not_renewed(self) -> None:
        """A renewal failed, or was not answered in time."""
        self._is_in_doubt = True
        self._tell_what_is_left()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            left = self._countdown.runs_until - self._elapsed()
            await asyncio.sleep(max(0.001, min(self._fence_s / LOOKS, left if left > 0 else self._fence_s)))

    async def look(self) -> None:
        now = self._elapsed()
        if self.is_fenced or now - self._renewed < self._fence_s * ASK_SHARE:
            return
        await self._ask(max(SHORTEST_ASK_S, min(self.ask_s, self._countdown.runs_until - now)))
        if self._countdown.is_over(self._elapsed()):
            self.is_fenced = True
            log.warning("agent.fence", unreachable_s=round(self._elapsed() - self._renewed, 1))
            self._fence()
        else:
            self._tell_what_is_left()

    def _tell_what_is_left(self) -> None:
        until = self._countdown.runs_until
        if (
            self._is_known
            and self._is_in_doubt
            and self._told_until != until
            and not self._countdown.is_over(self._elapsed())
        ):
            self._told_until = until
            self._tell(until - self._elapsed())

    async def _ask(self, timeout: float) -> None:
        for voucher in self.vouchers:
            asked = self._elapsed()
            try:
                async with asyncio.timeout(timeout):
                    seconds = await voucher()
            except (OSError, TimeoutError) as error:
                log.debug("agent.not_vouched_for", error=str(error) or "no answer in time")
                continue
            self._countdown.vouched(asked, min(seconds, self._fence_s))
            if seconds > 0:
                self._is_known = True
                return
