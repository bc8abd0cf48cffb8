"""Is every device still heard of? A device whose driver says nothing for too long is neither well nor broken: it is Unknown.

Health is reported when it changes, so silence looks like health. Backends therefore keep when they last had an answer about each
device (`DeviceBackend.last_heard`); one look holds that against the device's limit and says no-report, or report-resumed
once there is an answer again. A slice is heard of with its device. A backend that keeps no times (None) is taken at its word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from remuda.api.devices import ObservedDevice, Signal
from remuda.api.meta import to_time

SOURCE, SILENT, RESUMED = "agent", "no-report", "report-resumed"


class ReportWatch:
    """`timeout_s` for every device that `overrides` does not name; 0 = it may be silent for ever."""

    def __init__(self, timeout_s: float, overrides: Mapping[str, float]) -> None:
        self._timeout_s = timeout_s
        self._overrides = overrides

    @property
    def look_s(self) -> float | None:
        """How often to look; None: never."""
        limits = [limit for limit in (self._timeout_s, *self._overrides.values()) if limit > 0]
        return min(limits) / 3 if limits else None

    def limit(self, device: ObservedDevice) -> float:
        return self._overrides.get(device.id, self._overrides.get(device.parent, self._timeout_s))

    def look(
        self, rows: Iterable[ObservedDevice], last_heard: Callable[[str], float | None], now: float
    ) -> list[tuple[str, Signal]]:
        """What there is to say of which device."""
        news: list[tuple[str, Signal]] = []
        for row in rows:
            heard, limit = last_heard(row.parent or row.id), self.limit(row)
            was_silent = any((s.source, s.code) == (SOURCE, SILENT) for s in row.signals)
            is_silent = heard is not None and limit > 0 and now - heard > limit
            if is_silent and not was_silent and heard is not None:
                words = f"Nothing was heard of {row.id} for longer than {limit:g} s."
                news.append((row.id, Signal(SOURCE, SILENT, words, to_time(heard + limit))))
            elif was_silent and not is_silent:
                news.append((row.id, Signal(SOURCE, RESUMED, f"{row.id} is heard of again.", to_time(now))))
        return news
