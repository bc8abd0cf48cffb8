"""Messages as plain mappings, for launchers that live in this process (simulated pods).

The socket's codec is `launch.protocol`; a simulated pod is ours and trusted, so its messages are neither turned into text nor
checked field by field. Hundreds of them share two cores in a benchmark, which is why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remuda.launch.protocol import (
    Checkpoint,
    End,
    Exited,
    Heartbeat,
    Hello,
    Ready,
    Running,
    Start,
    Stop,
    ToAgent,
    ToLauncher,
    Vouch,
)


def render_in_process_launcher_message(message: ToLauncher) -> dict[str, Any]:
    """The wire form of a message to a launcher."""
    if isinstance(message, Stop):
        return {
            "type": "stop",
            "attempt": message.attempt,
            "signal": message.signal,
            "grace": message.grace,
            "rank": message.rank,
            "checkpointDir": message.checkpoint_dir,
        }
    if isinstance(message, Start):
        return {"type": "start", "attempt": message.attempt, "env": message.env}
    if isinstance(message, Checkpoint):
        return {
            "type": "checkpoint",
            "deadline": message.deadline,
            "signal": message.signal,
            "step": message.step,
        }
    if isinstance(message, Vouch):
        return {"type": "vouch", "seconds": message.seconds, "manager": message.manager, "at": message.at}
    if isinstance(message, End):
        return {"type": "end", "grace": message.grace}
    return {"type": "fence"}


def parse_in_process_launcher_message(data: Mapping[str, Any]) -> ToAgent | None:
    """A launcher's message from its wire form; None for a type not known here. KeyError when a field is missing."""
    match data["type"]:
        case "hello":
            who = data["pod"], data["uid"], data["pid"]
            return Hello(*who, data["state"], data["attempt"], floor=data.get("floor", 0))
        case "ready":
            usable, corrupt, abandoned = (tuple(data.get(n, ())) for n in ("checkpoints", "corrupt", "abandoned"))
            return Ready(data["attempt"], usable, corrupt, abandoned, data.get("unreadable", ""))
        case "running":
            return Running(data["attempt"], data["pid"], data["time"])
        case "exited":
            words = data.get("message", ""), data.get("tail", "")
            return Exited(data["attempt"], data["code"], data.get("signal"), data["time"], *words)
        case "heartbeat":
            return Heartbeat(
                data["attempt"],
                data["step"],
                data.get("stepTime"),
                data.get("selfTime"),
                data.get("checkpoint"),
                data.get("checkpointTime"),
                data.get("time", 0.0),
                data.get("totalSteps"),
                data.get("kept"),
            )
    return None
