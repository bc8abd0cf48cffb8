"""What a device's counters say: readings in, findings out, and only when a threshold is crossed.

A reading is what one source (NVML, a metrics exporter, sysfs, amdsmi) could read of one device at one time; a field that is
None could not be read and changes nothing. `step` takes what was known of the device and the next reading, and returns what is
known now and the *findings*: codes of the fault table, each raised once and taken back once.

Three kinds, because counters lie in three ways:
- *Events* (an uncorrectable error was counted) are raised whenever the count rises and never taken back here: only a reset or a
  probe is evidence of health. A count that falls is a driver that was reloaded, not an event.
- *Conditions* (held down by heat, a link that is down) hold or do not; they are raised after holding for `hold_s` without a
  break and taken back after being gone as long, so that a blip says nothing.
- *Rates* (correctable errors, link retries) are compared over a window; they are taken back at half the limit, so that a device
  near the limit does not chatter.

The first readable look at a condition tells it either way: somebody before us may have raised it and not lived to take it back.

An idle GPU lowers its PCIe *speed* to save power; only the width of an idle link is judged. Software power capping at full load
is how GPUs normally run; only a limit set below the default is a finding.
"""

from __future__ import annotations

import msgspec

BUSY_PERCENT = 20  # utilisation from which the PCIe speed must be the full one
SAMPLES_PER_WINDOW = 12  # a window is kept in that many steps, whatever the polling interval

THERMAL = ("hw-thermal", "sw-thermal")
POWER_BRAKE = "power-brake"

# NVML's and DCGM's bits of "why are the clocks held down"; the rest (idle, application clocks, power cap) is normal.
THROTTLE_BITS = {0x20: "sw-thermal", 0x40: "hw-thermal", 0x80: POWER_BRAKE}

# The code that takes a condition or rate back. Events have none.
TAKEN_BACK_BY = {
    "thermal": "thermal-over",
    "power-brake": "power-brake-over",
    "power-cap": "power-cap-over",
    "row-remap-pending": "row-remap-done",
    "nvlink-down": "nvlink-up",
    "nvlink-errors": "nvlink-quiet",
    "ecc-sbe-rate": "ecc-quiet",
    "pcie-degraded": "pcie-restored",
    "pcie-replays": "pcie-quiet",
    "recovery-reset": "recovery-none",
    "recovery-reboot": "recovery-none",
    "recovery-drain": "recovery-none",
}


class LinkReading(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One NVLink (or xGMI link). `errors`: replays, recoveries and CRC errors together."""

    active: bool = True
    errors: int = 0


class Counters(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    ecc_uncorrected: int | None = None  # since the driver was loaded
    ecc_corrected: int | None = None
    ecc_uncorrected_total: int | None = None  # over the device's life
    remap_pending: bool | None = None  # a row remap or page retirement waits for a reset
    remap_failed: bool | None = None
    remapped_rows: int | None = None
    throttle: list[str] | None = None  # sw-thermal, hw-thermal, power-brake
    power_limit_mw: int | None = None
    power_default_mw: int | None = None
    links: dict[int, LinkReading] | None = None
    link_errors: int | None = None  # where a source has only the sum over all links
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_speed: float | None = None  # generation or GT/s, the same unit in both
    pcie_speed_max: float | None = None
    pcie_replays: int | None = None  # repeated or corrected
    pcie_errors: int | None = None  # uncorrectable
    temperature: int | None = None
    utilisation: int | None = None  # percent
    recovery: str | None = None  # what the driver itself asks for: none, reset, reboot, drain


class CounterLimits(msgspec.Struct, frozen=True):
    hold_s: float = 30.0
    window_s: float = 3600.0
    ecc_corrected: int = 1000
    link_errors: int = 100
    pcie_replays: int = 480


class CounterFinding(msgspec.Struct, frozen=True):
    code: str
    message: str


class KnownCounters(msgspec.Struct, frozen=True):
    """What is known of one device from one source."""

    last: Counters = Counters()
    raised: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()  # conditions and rates whose state was told once, one way or the other
    turning: dict[str, float] = {}  # condition -> since when it has been other than raised says
    windows: dict[str, tuple[tuple[float, int], ...]] = {}  # rate -> (time, count), oldest first
    links_seen: frozenset[int] = frozenset()  # links that were up once: some are never wired


USUAL = CounterLimits()
_BACK = frozenset(TAKEN_BACK_BY.values())


def throttle_words(bits: int) -> list[str]:
    return [word for bit, word in THROTTLE_BITS.items() if bits & bit]


def update_hardware_counters(
    known: KnownCounters, now: float, reading: Counters, limits: CounterLimits = USUAL
) -> tuple[KnownCounters, list[CounterFinding]]:
    """What is known after `reading`, and what it newly says."""
    findings = _counter_events(known, reading)
    raised = set(known.raised) | {f.code for f in findings if f.code == "row-remap-failed"}
    told = set(known.told)
    turning: dict[str, float] = {}
    links_seen = known.links_seen | {n for n, link in (reading.links or {}).items() if link.active}
    for code, holds, message in _counter_conditions(reading, links_seen, known.raised):
        if holds is None or (holds == (code in raised) and (holds or code in told)):
            continue
        if not holds and code not in told:
            told.add(code)
            findings.append(_turn_condition(raised, code, False, message))
            continue
        since = known.turning.get(code, now)
        if now - since < _condition_hold_s(code, limits):
            turning[code] = since
            continue
        told.add(code)
        findings.append(_turn_condition(raised, code, holds, message))
    windows = dict(known.windows)
    for code, count, limit, what in _counter_rates(reading, limits):
        if count is None:
            continue
        windows[code], growth = _window_growth(windows.get(code, ()), now, count, limits.window_s)
        if code not in raised and growth > limit:
            said = f"{growth} {what} within {limits.window_s / 60:g} minutes (limit {limit})."
            told.add(code)
            findings.append(_turn_condition(raised, code, True, said))
        elif growth <= limit // 2 and (
            code in raised or (code not in told and _is_window_full(windows[code], now, limits))
        ):
            told.add(code)
            findings.append(
                _turn_condition(raised, code, False, f"{growth} {what} within {limits.window_s / 60:g} minutes.")
            )
    findings.sort(key=lambda f: f.code not in _BACK)  # one code may take back several: it must not undo what is new
    last = _merged_counters(known.last, reading)
    return KnownCounters(last, frozenset(raised), frozenset(told), turning, windows, links_seen), findings


def _turn_condition(raised: set[str], code: str, holds: bool, message: str) -> CounterFinding:
    if holds:
        raised.add(code)
        return CounterFinding(code, message)
    raised.discard(code)
    return CounterFinding(TAKEN_BACK_BY[code], message)


def _condition_hold_s(code: str, limits: CounterLimits) -> float:
    # These are facts, not measurements: the driver says them once and means it.
    is_fact = code in ("row-remap-pending", "nvlink-down", "power-cap") or code.startswith("recovery-")
    return 0.0 if is_fact else limits.hold_s


def _counter_events(known: KnownCounters, now: Counters) -> list[CounterFinding]:
    before = known.last
    found: list[CounterFinding] = []
    if now.ecc_uncorrected is not None:
        # Any count of this driver load means: no reset since. So a first look raises it too.
        risen = now.ecc_uncorrected - min(before.ecc_uncorrected or 0, now.ecc_uncorrected)
        if risen:
            found.append(
                CounterFinding("ecc-dbe", f"{risen} more uncorrectable memory errors, {now.ecc_uncorrected} in all.")
            )
    elif _has_count_risen(before.ecc_uncorrected_total, now.ecc_uncorrected_total):
        found.append(
            CounterFinding(
                "ecc-dbe", f"Uncorrectable memory errors over the device's life: {now.ecc_uncorrected_total}."
            )
        )
    if _has_count_risen(before.pcie_errors, now.pcie_errors):
        found.append(CounterFinding("pcie-errors", f"Uncorrectable PCIe errors: {now.pcie_errors}."))
    if now.remap_failed and "row-remap-failed" not in known.raised:
        found.append(CounterFinding("row-remap-failed", "A memory row could not be remapped: no spare rows are left."))
    return found


def _has_count_risen(before: int | None, now: int | None) -> bool:
    """Counted over the device's life: a first look tells nothing about when."""
    return before is not None and now is not None and now > before


def _counter_conditions(
    now: Counters, links_seen: frozenset[int], raised: frozenset[str]
) -> list[tuple[str, bool | None, str]]:
    """(code, does it hold, what to say); None where it could not be read."""
    hot = None if now.throttle is None else any(word in THERMAL for word in now.throttle)
    brake = None if now.throttle is None else POWER_BRAKE in now.throttle
    degrees = f" at {now.temperature} degrees" if now.temperature is not None else ""
    down = (
        None if now.links is None else sorted(n for n in links_seen if not now.links.get(n, LinkReading(False)).active)
    )
    capped, caption = _power_condition(now)
    narrow, link = _pcie_condition(now, "pcie-degraded" in raised)
    rows: list[tuple[str, bool | None, str]] = [
        ("thermal", hot, f"Heat and clocks{degrees}."),
        ("power-brake", brake, "The power supply's brake signal and the clocks."),
        ("power-cap", capped, caption),
        ("row-remap-pending", now.remap_pending, "Row remap or page retirement waiting for a reset of the device."),
        (
            "nvlink-down",
            None if down is None else bool(down),
            f"Links down: {', '.join(map(str, down or ())) or 'none'}.",
        ),
        ("pcie-degraded", narrow, link),
    ]
    for wish in ("reset", "reboot", "drain"):
        asked = None if now.recovery is None else now.recovery == wish
        rows.append((f"recovery-{wish}", asked, f"The driver's own advice for the device: {now.recovery}."))
    return rows


def _power_condition(now: Counters) -> tuple[bool | None, str]:
    if now.power_limit_mw is None or now.power_default_mw is None:
        return None, ""
    watts = f"{now.power_limit_mw / 1000:g} of {now.power_default_mw / 1000:g} W"
    return now.power_limit_mw < now.power_default_mw, f"The power limit is {watts}."


def _pcie_condition(now: Counters, is_raised: bool) -> tuple[bool | None, str]:
    if now.pcie_width is None or now.pcie_width_max is None:
        return None, ""
    said = f"PCIe x{now.pcie_width} of x{now.pcie_width_max}"
    if now.pcie_width < now.pcie_width_max:
        return True, f"{said}."
    if now.pcie_speed is None or now.pcie_speed_max is None:
        return False, f"{said}."
    said += f", speed {now.pcie_speed:g} of {now.pcie_speed_max:g}."
    if now.pcie_speed >= now.pcie_speed_max:
        return False, said
    if (now.utilisation or 0) < BUSY_PERCENT:
        # Slow because idle, or slow because broken: an idle look can tell neither.
        return (None if is_raised else False), said
    return True, said


def _counter_rates(now: Counters, limits: CounterLimits) -> list[tuple[str, int | None, int, str]]:
    links = now.link_errors
    if links is None and now.links is not None:
        links = sum(link.errors for link in now.links.values())
    return [
        ("ecc-sbe-rate", now.ecc_corrected, limits.ecc_corrected, "correctable memory errors"),
        ("nvlink-errors", links, limits.link_errors, "link retries and CRC errors"),
        ("pcie-replays", now.pcie_replays, limits.pcie_replays, "PCIe replays and corrected errors"),
    ]


def _window_growth(
    samples: tuple[tuple[float, int], ...], now: float, count: int, window_s: float
) -> tuple[tuple[tuple[float, int], ...], int]:
    """The window with `count` in it, and by how much the counter grew within it."""
    if samples and count < samples[-1][1]:
        samples = ()
    # One sample older than the window stays: the growth is counted from it.
    while len(samples) > 1 and samples[1][0] <= now - window_s:
        samples = samples[1:]
    growth = count - samples[0][1] if samples else 0
    if samples and len(samples) > 1 and now - samples[-2][0] < window_s / SAMPLES_PER_WINDOW:
        samples = samples[:-1]
    return (*samples, (now, count)), growth


def _is_window_full(samples: tuple[tuple[float, int], ...], now: float, limits: CounterLimits) -> bool:
    return samples[0][0] <= now - limits.window_s


def _merged_counters(before: Counters, now: Counters) -> Counters:
    """The newest value of every field: what cannot be read now keeps what it was."""
    values = {name: getattr(now, name) for name in now.__struct_fields__ if getattr(now, name) is not None}
    return msgspec.structs.replace(before, **values)
