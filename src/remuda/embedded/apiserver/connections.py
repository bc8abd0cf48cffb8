"""How many connections there may be, whose, and who gives way when there is no room. No sockets here.

A connection is new until its first request has come, then busy or idle. Room is made for a newcomer by closing the oldest one
that is new, then the one that has been idle longest; a request under way is never cut off. So whoever opens connections and says
nothing only pushes out others who say nothing: somebody who speaks has all the time until as many newcomers have come.

The bounds leave half of the process's descriptors to everything else: the store, logs, pods, agents.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable

import msgspec

MOST = 2_000
_OF_LOCAL = 1_000


def descriptor_limit() -> int:
    """How many files and sockets this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else soft


class ConnectionLimits(msgspec.Struct, frozen=True):
    """`most` in all, `of_address` from one address, `new` that have not yet made a request. `streams`: watches and logs that are
    followed, of which one tenant has `of_tenant` at most."""

    most: int
    of_address: int
    new: int
    streams: int
    of_tenant: int


def remote_apiserver_connection_limits(descriptors: int) -> ConnectionLimits:
    """For TCP, where anybody may connect. `descriptors`: how many files and sockets the process may have."""
    most = max(16, min(MOST, descriptors // 2))
    return ConnectionLimits(most, most * 3 // 4, max(8, min(256, most // 4)), most // 2, most // 4)


def local_apiserver_connection_limits(descriptors: int) -> ConnectionLimits:
    """For the unix socket, where only the owner can: the CLI and the parts of a split cluster."""
    most = max(16, min(_OF_LOCAL, descriptors // 8))
    return ConnectionLimits(most, most, most // 2, most * 3 // 4, most * 3 // 4)


class Connection:
    """One place in the table. `close` is how it is ended when it has to give way."""

    __slots__ = ("_table", "address", "close")

    def __init__(self, table: ConnectionTable, address: str) -> None:
        self._table = table
        self.address = address
        self.close: Callable[[], None] = lambda: None

    def is_busy(self) -> None:
        self._table._move(self, self._table._busy)

    def is_idle(self) -> None:
        self._table._move(self, self._table._idle)

    def leave(self) -> None:
        self._table._drop(self)


_Places = dict[Connection, None]  # in the order of coming


class ConnectionTable:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._new: _Places = {}
        self._idle: _Places = {}
        self._busy: _Places = {}
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._new) + len(self._idle) + len(self._busy)

    def admit(self, address: str) -> Connection | None:
        """A place for a connection from there, or None when everyone is busy."""
        limits = self.limits
        if self._of_address[address] >= limits.of_address and not self.make_room(address):
            return None
        if len(self) >= limits.most and not self.make_room():
            return None
        if len(self._new) >= limits.new:
            self._end(next(iter(self._new)))
        connection = Connection(self, address)
        self._new[connection] = None
        self._of_address[address] += 1
        return connection

    def make_room(self, address: str = "") -> bool:
        """Whether a connection (of that address) had to go."""
        for places in (self._new, self._idle):
            for each in places:
                if not address or each.address == address:
                    self._end(each)
                    return True
        return False

    def _end(self, connection: Connection) -> None:
        self._drop(connection)
        connection.close()

    def _drop(self, connection: Connection) -> None:
        for places in (self._new, self._idle, self._busy):
            if connection in places:
                del places[connection]
                self._of_address[connection.address] -= 1
                if not self._of_address[connection.address]:
                    del self._of_address[connection.address]

    def _move(self, connection: Connection, to: _Places) -> None:
        for places in (self._new, self._idle, self._busy):
            if connection in places:
                del places[connection]
                to[connection] = None
                return
