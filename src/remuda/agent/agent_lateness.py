"""Is the agent given the time it needs? On a node whose pods take more than there is, plugins answer late and health is stale.

The agent sleeps for a known time and looks how late it woke. Late several times in a row is a signal of the node (agent-starved),
on time for a while takes it back. deploy/agent.yaml protects the agent by priority and a request; this says when that is not
enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

LOOK_S = 5.0
SOURCE, STARVED, ON_TIME = "agent", "agent-starved", "agent-on-time"


class LatenessRule(msgspec.Struct, frozen=True):
    late_s: float = 2.0
    times: int = 3  # in a row, before it is said
    well: int = 6  # in a row, before it is taken back


class Lateness(msgspec.Struct, frozen=True):
    late: int = 0
    well: int = 0
    is_starved: bool = False


def agent_lateness_after_sleep(before: Lateness, late_s: float, rule: LatenessRule) -> Lateness:
    """After one more sleep that ended `late_s` too late."""
    if late_s >= rule.late_s:
        late = before.late + 1
        return Lateness(late, 0, before.is_starved or late >= rule.times)
    well = before.well + 1
    return Lateness(0, well, before.is_starved and well < rule.well)


async def watch_agent_lateness(
    report: Callable[[str, str, str, str], None], rule: LatenessRule | None = None, look_s: float = LOOK_S
) -> None:
    """Until cancelled. `node_reporter`: of device "" (the node), source, code, message."""
    rule = rule or LatenessRule()
    loop, state = asyncio.get_running_loop(), Lateness()
    while True:
        began = loop.time()
        await asyncio.sleep(look_s)
        late_s = loop.time() - began - look_s
        after = agent_lateness_after_sleep(state, late_s, rule)
        if after.is_starved and not state.is_starved:
            words = f"The agent woke {late_s:.1f} s late {rule.times} times in a row: the node is too busy to run it."
            report("", SOURCE, STARVED, words)
        elif state.is_starved and not after.is_starved:
            report("", SOURCE, ON_TIME, "The agent is on time again.")
        state = after
