"""The kernel's log as evidence: records of /dev/kmsg in, sightings of faults out. Pure; whoever reads the file feeds it here.

A record is `prio,seq,usec,flags[,...];text`, one per read, and may go on with lines ` KEY=value`. `seq` counts every record since
boot without a hole, so (boot id, seq) says exactly where reading stopped: what is not newer is dropped, and a jump means that
records were overwritten before they were read. A jump is told (`KernelLogGap`), never passed over: a fault may have been among
them. A new boot begins at 0 again; where nothing was ever read there is nothing to miss.

A sighting is (PCI address, code, the text as it stands). Codes are those of the fault table: xid-79, sxid-20034, aer-fatal,
amd-reset. Some lines say more than their code: an Xid 154 carries the driver's own verdict and becomes recovery-reset and the
like; an Xid 144-150 marked non-fatal becomes xid-145-nonfatal, because bit error notices must not cost a GPU. A number nobody
knows keeps its number and is judged as unknown, which is the safe side.

One broken device can write thousands of lines a second. Of one (address, code) at most `burst` sightings pass in `window_s` of
the kernel's own time; the next that passes says how many were left out.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

MAX_TRACKED = 4096  # (address, code) pairs the rate limit remembers
MAX_TEXT = 500  # characters of a message that are kept


class KernelRecord(msgspec.Struct, frozen=True):
    priority: int  # 0 emergency .. 7 debug
    facility: int  # 0: the kernel itself
    seq: int
    usec: int  # since boot
    text: str
    fields: tuple[tuple[str, str], ...] = ()


class KernelLogCursor(msgspec.Struct, frozen=True):
    """The last record seen. `seq` -1: none yet."""

    boot: str = ""
    seq: int = -1


class KernelFault(msgspec.Struct, frozen=True):
    """`pci` "" when the line names no device. `skipped`: alike ones left out before this by the rate limit."""

    pci: str
    code: str
    message: str
    seq: int = 0
    usec: int = 0
    skipped: int = 0


class KernelLogGap(msgspec.Struct, frozen=True):
    """Records `first` to `last` were overwritten before they were read."""

    first: int
    last: int

    @property
    def missing(self) -> int:
        return self.last - self.first + 1


KernelLogEvent = KernelFault | KernelLogGap

_HEAD = re.compile(r"(\d{1,6}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)", re.DOTALL | re.ASCII)
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")


def parse_kernel_log_record(raw: bytes | str) -> KernelRecord | None:
    """One record as read from /dev/kmsg, or None when it is not one. Bytes that are not text are replaced, never refused."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    first, *more = text.rstrip("\n").split("\n")
    match = _HEAD.fullmatch(first)
    if match is None:
        return None
    number = int(match[1])
    pairs = (line[1:].partition("=") for line in more if line.startswith(" ") and "=" in line)
    fields = tuple((key, _unescape_kernel_text(value)) for key, _, value in pairs)
    return KernelRecord(number & 7, number >> 3, int(match[2]), int(match[3]), _unescape_kernel_text(match[4]), fields)


def _unescape_kernel_text(text: str) -> str:
    """The kernel writes control characters as \\xNN."""
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)), text)


_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


def kernel_log_pci_address(text: str) -> str:
    """0000:1b:00.0 from any way drivers write it (PCI:0000:1B:00, 00000000:1b:00.0, 1b:00.0); "" when it is not one."""
    match = _PCI.fullmatch(text.strip().removeprefix("PCI:"))
    if match is None:
        return ""
    domain = int(match[1] or "0", 16)
    return f"{domain:04x}:{match[2].lower()}:{match[3].lower()}.{match[4] or '0'}"


# Anchored: what a driver quotes in the middle of its line, a process's name say, is not its own word.
_BDF = r"((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(rf"NVRM: Xid \(PCI:{_BDF}(?:[^)]*)\): (\d{{1,9}})(?!\d)(?:, (.*))?", re.ASCII)
_SXID = re.compile(rf"nvidia-nvswitch\d*: SXid \(PCI:{_BDF}\): (\d{{1,9}})(?!\d)(?:, (.*))?", re.ASCII)
_SXID_DETAIL = ("Data {", "Severity ")  # further lines of the SXid told before
_OFF_BUS = re.compile(rf"NVRM: GPU {_BDF}: GPU has fallen off the bus", re.IGNORECASE)
_AER_FROM = re.compile(
    rf"\S+ \S+: AER: (?:Multiple )?(\w+)(?: \(([\w-]+)\))? error (?:message )?received(?: from|:) {_BDF}"
)
_AER_BUS = re.compile(rf"\S+ {_BDF}: (?:AER: )?PCIe Bus Error: (?:severity=)?(\w+)(?: \(([\w-]+)\))?")
_AER_LOST = re.compile(rf"\S+ {_BDF}: (?:AER: can't recover|device has no AER-aware driver)")
_AMD = re.compile(rf"amdgpu {_BDF}: (?:amdgpu: )?(?:\[drm[^\]]*\] )?(?:\*ERROR\* )?(.*)")

# What the driver says the GPU needs, from the words of Xid 154; the last one named is the present one.
_VERDICTS = {
    "node reboot": "recovery-reboot",
    "gpu reset": "recovery-reset",
    "drain and reset": "recovery-drain",
    "drain p2p": "recovery-drain",
    "none": "recovery-none",
}

# First match decides. Words of the amdgpu driver.
_AMD_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(words, re.IGNORECASE), code)
    for words, code in (
        (r"GPU reset begin", "amd-reset"),
        (r"GPU reset(?:\(\d+\))? succeeded", "amd-reset-done"),
        (r"GPU reset(?:\(\d+\))? (?:failed|end with ret = -)|GPU Recovery Failed", "amd-reset-failed"),
        (r"ring \S+ timeout", "amd-ring-timeout"),
        (r"uncorrectable hardware error ?\(ERREVENT_ATHUB_INTERRUPT\)", "amd-ras-fatal"),
        (r"RAS poison consumption|poison (?:was|is) consumed", "amd-poison"),
        (r"bad pages? .*(?:exceeds?|threshold)|reach(?:es|ed)? bad page threshold|RMA state", "amd-bad-pages"),
        (r"\b0 (?:new )?(?:un)?correctable hardware errors", ""),
        (r"\d+ (?:new )?uncorrectable hardware errors", "amd-ras-uncorrected"),
        (r"\d+ (?:new )?correctable hardware errors", "amd-ras-corrected"),
        (r"Fatal error during GPU init|hw_init of IP block \S+ failed", "amd-init-failed"),
        (r"device lost from bus|GPU is lost|device (?:is )?not accessible", "amd-lost"),
        (r"\bpage fault\b", "amd-page-fault"),
    )
)


def recognise_kernel_fault(text: str) -> tuple[str, str] | None:
    """(PCI address, code) of a line that tells of a fault, or None for all the others."""
    if match := _XID.match(text):
        return kernel_log_pci_address(match[1]), _xid_code(int(match[2]), match[3] or "")
    if match := _SXID.match(text):
        detail = (match[3] or "").startswith(_SXID_DETAIL)
        return None if detail else (kernel_log_pci_address(match[1]), f"sxid-{int(match[2])}")
    if match := _OFF_BUS.match(text):
        return kernel_log_pci_address(match[1]), "nvrm-fell-off-bus"
    if match := _AMD.match(text):
        for words, code in _AMD_WORDS:
            if words.search(match[2]):
                return (kernel_log_pci_address(match[1]), code) if code else None
    if "AER" in text or "PCIe Bus Error" in text:
        return _aer_fault(text)
    return None


def _xid_code(number: int, words: str) -> str:
    if number == 154:
        # "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)": what follows `to` counts.
        now = words.lower().rpartition(" to ")[2]
        return next((code for verdict, code in _VERDICTS.items() if verdict in now), "xid-154")
    if 144 <= number <= 150 and re.search(r"\bnon-?fatal\b", words, re.IGNORECASE):
        return f"xid-{number}-nonfatal"
    return f"xid-{number}"


def _aer_fault(text: str) -> tuple[str, str] | None:
    if match := _AER_LOST.match(text):
        return kernel_log_pci_address(match[1]), "aer-not-recovered"
    if match := _AER_BUS.match(text):
        return kernel_log_pci_address(match[1]), _aer_code(match[2], match[3])
    if match := _AER_FROM.match(text):
        return kernel_log_pci_address(match[3]), _aer_code(match[1], match[2])
    return None


def _aer_code(severity: str, kind: str | None) -> str:
    if severity.lower().startswith("correct"):
        return "aer-corrected"
    return "aer-nonfatal" if (kind or "").lower() == "non-fatal" else "aer-fatal"


class _RateWindow(msgspec.Struct):
    begins: int  # usec of the window
    passed: int
    skipped: int


class KernelLogParser:
    """Turns records into events. `cursor` is what to remember over a restart of the reader."""

    def __init__(
        self, boot: str, cursor: KernelLogCursor | None = None, *, burst: int = 3, window_s: float = 60.0
    ) -> None:
        known = cursor is not None and cursor.seq >= 0
        if known and cursor is not None and cursor.boot == boot:
            self.cursor = cursor
        else:
            self.cursor = KernelLogCursor(boot)
        # After a reboot the log is read from its first record; without any past, from wherever it begins.
        self._expect: int | None = self.cursor.seq + 1 if known else None
        self._burst = burst
        self._window_us = round(window_s * 1e6)
        self._seen: OrderedDict[tuple[str, str], _RateWindow] = OrderedDict()
        self.malformed = 0

    def feed(self, raw: bytes | str) -> list[KernelLogEvent]:
        """Events of one record, in order; none for a record that is old, dull or not a record."""
        record = parse_kernel_log_record(raw)
        if record is None:
            self.malformed += 1
            return []
        if record.seq <= self.cursor.seq:
            return []
        events: list[KernelLogEvent] = []
        if self._expect is not None and record.seq > self._expect:
            events.append(KernelLogGap(self._expect, record.seq - 1))
        self.cursor = KernelLogCursor(self.cursor.boot, record.seq)
        self._expect = record.seq + 1
        # Only the kernel: whoever may write to /dev/kmsg must not be able to take a GPU away.
        found = recognise_kernel_fault(record.text) if record.facility == 0 else None
        if found is not None:
            events += self._limited(record, *found)
        return events

    def _limited(self, record: KernelRecord, pci: str, code: str) -> Iterable[KernelFault]:
        key = (pci, code)
        seen = self._seen.pop(key, None)
        if seen is None or record.usec - seen.begins >= self._window_us or record.usec < seen.begins:
            seen = _RateWindow(record.usec, 0, seen.skipped if seen else 0)
        self._seen[key] = seen  # moved to the end: the longest silent is forgotten first
        if len(self._seen) > MAX_TRACKED:
            self._seen.popitem(last=False)
        if seen.passed >= self._burst:
            seen.skipped += 1
            return ()
        seen.passed += 1
        skipped, seen.skipped = seen.skipped, 0
        return (KernelFault(pci, code, record.text[:MAX_TEXT], record.seq, record.usec, skipped),)
