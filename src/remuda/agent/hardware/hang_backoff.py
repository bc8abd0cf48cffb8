"""Who is not asked for a while: devices over which a call hung, longer each time, until one call returns.

Asking a hung device costs a deadline and a driver process each time, and the others wait meanwhile. It is still asked now and
then: a device that was reset answers again, and nobody else would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

FIRST_S, MOST_S = 10.0, 600.0


class _Hung(msgspec.Struct, frozen=True):
    times: int
    until: float


class Aside:
    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._hung: dict[str, _Hung] = {}

    def __bool__(self) -> bool:
        return bool(self._hung)

    def __iter__(self) -> Iterator[str]:
        return iter(self._hung)

    def may_ask(self, who: str, now: float) -> bool:
        hung = self._hung.get(who)
        return hung is None or now >= hung.until

    def hung(self, who: str, now: float) -> None:
        times = self._hung[who].times + 1 if who in self._hung else 1
        self._hung[who] = _Hung(times, now + min(self._first_s * 2.0 ** (times - 1), self._most_s))

    def answered(self, who: str) -> None:
        self._hung.pop(who, None)

    def keep(self, still: Callable[[str], bool]) -> None:
        """Forget all others: they are not there any more, so nobody waits for their answer."""
        self._hung = {who: hung for who, hung in self._hung.items() if still(who)}
