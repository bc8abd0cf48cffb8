"""The agent's fence: in time when nobody vouches, not at all while somebody does, and over with the next renewal."""

from __future__ import annotations

import asyncio
import math

from remuda.agent.agent_fence import AgentFence
from remuda.runtime.node_agent import AgentProcessConfig
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual

FENCE_S = 20.0


class Story:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.events: list[tuple[str, float]] = []
        self.told: list[tuple[float, float]] = []  # the launchers: when, and until when they may run
        self.promise_s = 0.0
        self.asked = 0

    def play(self, *acts: tuple[float, str]) -> list[tuple[str, float]]:
        async def main() -> None:
            fence = AgentFence(
                lambda: self.events.append(("fence", self.loop.time())),
                lambda: self.events.append(("unfence", self.loop.time())),
                FENCE_S,
                self.loop.time,
                [self._manager],
                lambda seconds: self.told.append((self.loop.time(), self.loop.time() + seconds)),
            )
            running = asyncio.create_task(fence.run())
            for at, what in acts:
                await asyncio.sleep(at - self.loop.time())
                if what == "renew":
                    fence.renewed(self.loop.time())
                elif what == "no renewal":
                    fence.not_renewed()
                elif what == "late renewal":
                    fence.renewed(self.loop.time() - FENCE_S - 1.0)
                elif what == "stop":
                    self.loop.advance(60.0)
                elif what == "promise":
                    self.promise_s = 15.0
                elif what == "no promise":
                    self.promise_s = 0.0
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        run_virtual(main(), self.loop)
        return self.events

    async def _manager(self) -> float:
        self.asked += 1
        await asyncio.sleep(0.1)
        if self.promise_s < 0:
            raise OSError("no stream")
        return self.promise_s


def test_it_fences_in_time_and_once() -> None:
    ((what, at),) = Story().play((5.0, "renew"), (60.0, "end"))
    assert what == "fence"
    assert 25.0 <= at <= 25.6


def test_it_does_nothing_while_renewals_get_through_and_asks_nobody() -> None:
    story = Story()
    assert story.play(*((5.0 * n, "renew") for n in range(1, 40))) == []
    assert story.asked == 0


def test_the_managers_word_keeps_it_running_for_as_long_as_it_lasts() -> None:
    story = Story()
    ((what, at),) = story.play((5.0, "renew"), (6.0, "promise"), (100.0, "no promise"), (200.0, "end"))
    assert what == "fence"
    assert 100.0 < at <= 100.0 + 15.0 + 0.6


def test_the_next_renewal_ends_it() -> None:
    assert [what for what, _ in Story().play((30.0, "renew"), (31.0, "end"))] == ["fence", "unfence"]


def test_a_process_that_was_stopped_too_long_fences_first() -> None:
    ((what, at),) = Story().play((5.0, "renew"), (6.0, "stop"), (70.0, "end"))
    assert what == "fence"
    assert at <= 66.0 + 1.0


def test_one_that_was_stopped_runs_on_by_the_managers_word() -> None:
    assert Story().play((4.0, "promise"), (5.0, "renew"), (6.0, "stop"), (70.0, "renew"), (75.0, "end")) == []


def test_launchers_are_told_a_limit_from_the_first_renewal_that_fails_until_one_gets_through() -> None:
    story = Story()
    story.play(
        (5.0, "renew"), (15.0, "renew"), (20.0, "no renewal"), (22.5, "no renewal"), (25.0, "renew"), (30.0, "end")
    )
    assert story.told == [(5.0, math.inf), (15.0, math.inf), (20.0, 35.0), (25.0, math.inf)]


def test_the_managers_word_is_passed_on_to_launchers_while_renewals_fail() -> None:
    story = Story()
    story.play((5.0, "renew"), (6.0, "no renewal"), (7.0, "promise"), (40.0, "end"))
    limits = [until for _, until in story.told[1:]]
    assert limits == sorted(limits)
    assert limits[0] == 25.0
    assert limits[-1] > 50.0


def test_launchers_are_told_nothing_that_a_new_agent_only_assumes() -> None:
    """The one before may have told them less."""
    story = Story()
    assert [what for what, _ in story.play((1.0, "no renewal"), (30.0, "end"))] == ["fence"]
    assert story.told == []


def test_a_renewal_that_comes_too_late_lifts_nothing() -> None:
    story = Story()
    story.play((5.0, "renew"), (6.0, "no renewal"), (24.0, "end"))
    before = list(story.told)
    again = Story()
    again.play((5.0, "renew"), (6.0, "no renewal"), (26.0, "late renewal"), (27.0, "end"))
    assert again.told == before


def test_the_fence_comes_before_the_lease_runs_out_whatever_was_asked() -> None:
    assert AgentProcessConfig("n").voice.fences_after_s == 20.0
    assert AgentProcessConfig("n", fence_s=5.0).voice.fences_after_s == 5.0
    assert AgentProcessConfig("n", report_timeouts={"": 0.0}).voice.fences_after_s == 25.0
