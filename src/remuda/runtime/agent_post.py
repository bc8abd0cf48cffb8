"""Which agent of a node is at its post: the one whose token is in the state directory. A newer one puts its own there.

Two may run for a while (an upgrade without a gap). What they say to others must not mix: the older one's renewals would put its
own notes for the manager back over the newer one's, and its stream and the newer one's would end each other. So an agent looks
before it writes its lease or gives its word to a peer, and all that speaks for the node ends when its post is taken.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

PLACE = "agent.token"
LOOK_S = 0.5


class AgentPost:
    def __init__(self, state: Path) -> None:
        self._place = state / PLACE
        self._token = uuid.uuid4().hex
        self.taken = asyncio.Event()  # by a newer agent; set a moment later

    def take(self) -> None:
        temporary = self._place.with_suffix(f".{self._token}")
        temporary.write_text(self._token, encoding="ascii")
        temporary.replace(self._place)

    @property
    def is_ours(self) -> bool:
        """As of now. A directory that cannot be read is no newer agent."""
        try:
            return self._place.read_text(encoding="ascii") == self._token
        except OSError:
            return True

    async def watch(self) -> None:
        """Until it is taken."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self.is_ours:
                break
        self.taken.set()
