"""Resets of real devices by the maker's command-line tool, which must be on the node (in the agent's PATH).

NVML has no public call for a reset, and amdsmi's is not for every device. The tool decides: it refuses while a process has the
device open, and its words are passed on.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from remuda.agent.orders.node_commands import run_hook
from remuda.api.errors import Refusal


async def run_tool(command: Sequence[str]) -> None:
    """Refusal ResetNotSupported without the tool, ResetFailed when it fails."""
    program = shutil.which(command[0])
    if program is None:
        raise Refusal(
            "ResetNotSupported",
            f"There is no {command[0]} on this node.",
            "Put it into the agent's image, or give the rung a hook.",
        )
    ran = await run_hook([program, *command[1:]], {})
    if ran.code:
        raise Refusal("ResetFailed", f"{command[0]} ended with {ran.code}: {ran.output}", "Reboot the node.")


def reset_not_supported(node: str) -> Refusal:
    return Refusal(
        "ResetNotSupported", f"The agent of {node} has no way to reset a device.", "Give the rung a hook, or reboot."
    )
