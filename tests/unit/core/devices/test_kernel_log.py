"""Kernel log records: every known code is read from its line, nothing else is, and nothing is lost without a word."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from remuda.core.devices.fault_codes import classify_device_fault_code, fault_table
from remuda.core.devices.kernel_log import (
    KernelFault,
    KernelLogCursor,
    KernelLogEvent,
    KernelLogGap,
    KernelLogParser,
    kernel_log_pci_address,
    parse_kernel_log_record,
    recognise_kernel_fault,
)

CORPUS = Path(__file__).with_name("kmsg_corpus.txt")
BOOT = "8f0c3c7e"


def corpus() -> list[tuple[str, str, str]]:
    """(code, PCI address, record), "-" twice for a record that must not be recognised."""
    cases: list[tuple[str, str, list[str]]] = []
    for line in CORPUS.read_text().splitlines():
        if line.startswith("# "):
            code, pci = line[2:].split()
            cases.append((code, pci, []))
        elif not line.startswith("##"):
            cases[-1][2].append(line)
    return [(code, pci, "\n".join(lines)) for code, pci, lines in cases]


CASES = corpus()


def feed_all(reader: KernelLogParser, records: Iterable[bytes | str]) -> list[KernelLogEvent]:
    return [event for record in records for event in reader.feed(record)]


@pytest.mark.parametrize(("code", "pci", "raw"), CASES, ids=[c[0] for c in CASES])
def test_the_corpus_is_read_as_it_says(code: str, pci: str, raw: str) -> None:
    events = KernelLogParser(BOOT).feed(raw)
    if code == "-":
        assert events == []
        return
    (event,) = events
    assert isinstance(event, KernelFault)
    assert (event.code, event.pci) == (code, pci)
    assert event.message


def test_the_corpus_has_every_code_the_kernel_log_can_tell() -> None:
    told = {code for code, _, _ in CASES}
    told_by_kmsg = {c for c in fault_table().by_code if c.startswith(("xid-", "sxid-", "amd-", "aer-", "nvrm-"))}
    assert told_by_kmsg <= told
    assert told - {"-", "xid-999", "sxid-99999"} <= fault_table().by_code.keys()


@pytest.mark.parametrize("code", ["xid-999", "sxid-99999"])
def test_a_code_nobody_knows_is_told_and_judged_conservatively(code: str) -> None:
    assert code in {c for c, _, _ in CASES}
    assert classify_device_fault_code("kmsg", code).reason == "UnknownFaultCode"


def test_read_at_once_the_corpus_gives_each_sighting_once_and_no_gap() -> None:
    reader = KernelLogParser(BOOT)
    events = feed_all(reader, [raw for _, _, raw in CASES])
    assert [e.code for e in events if isinstance(e, KernelFault)] == [code for code, _, _ in CASES if code != "-"]
    assert not any(isinstance(e, KernelLogGap) for e in events)
    assert feed_all(reader, [raw for _, _, raw in CASES]) == []


# --- records ----------------------------------------------------------------------------------------------------------


def test_a_record_in_all_its_parts() -> None:
    record = parse_kernel_log_record(
        b"12,3,5000000,-,caller=T1;hello \\x0a there\n SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n junk\n"
    )
    assert record is not None
    assert (record.priority, record.facility, record.seq, record.usec) == (4, 1, 3, 5_000_000)
    assert record.text == "hello \n there"
    assert record.fields == (("SUBSYSTEM", "pci"), ("DEVICE", "+pci:0000:1b:00.0"))


@pytest.mark.parametrize(
    "raw", [b"", b"hello", b"1,2;three", b"a,b,c,-;x", b"1,2,3,-", "3,4,5\n;x", b"\xff\xfe,1,2,-;x"]
)
def test_what_is_not_a_record_is_counted_and_dropped(raw: bytes | str) -> None:
    reader = KernelLogParser(BOOT)
    assert parse_kernel_log_record(raw) is None
    assert reader.feed(raw) == []
    assert reader.malformed == 1
    assert reader.cursor.seq == -1


def test_numbers_no_kernel_writes_are_no_numbers() -> None:
    assert parse_kernel_log_record("4," + "9" * 5000 + ",1,-;x") is None
    assert recognise_kernel_fault("NVRM: Xid (PCI:0000:1b:00): " + "9" * 5000 + ", x") is None
    assert parse_kernel_log_record("4,٣,1,-;x") is None


def test_bytes_that_are_no_text_do_not_hide_the_fault() -> None:
    record = parse_kernel_log_record(b"4,1,1,-;NVRM: Xid (PCI:0000:1b:00): 79, name=\xff\xfe, off")
    assert record is not None
    assert recognise_kernel_fault(record.text) == ("0000:1b:00.0", "xid-79")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("PCI:0000:1B:00", "0000:1b:00.0"),
        ("00000000:1b:00.3", "0000:1b:00.3"),
        ("1b:00.0", "0000:1b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("somewhere", ""),
        ("0000:1b", ""),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert kernel_log_pci_address(text) == address


# --- cursor, gaps, rate limit -----------------------------------------------------------------------------------------


def xid(seq: int, *, usec: int = 0, code: int = 79, bus: str = "1b") -> str:
    return f"4,{seq},{usec},-;NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=1"


def dull(seq: int) -> str:
    return f"6,{seq},1,-;usb 1-1: new device"


def test_reading_goes_on_where_it_stopped() -> None:
    first = KernelLogParser(BOOT)
    assert len(feed_all(first, [dull(5), xid(6)])) == 1
    assert first.cursor == KernelLogCursor(BOOT, 6)
    second = KernelLogParser(BOOT, first.cursor)
    assert feed_all(second, [dull(5), xid(6)]) == []
    assert [type(e) for e in second.feed(xid(7, bus="43"))] == [KernelFault]


def test_overwritten_records_are_a_gap_told_before_what_follows() -> None:
    reader = KernelLogParser(BOOT, KernelLogCursor(BOOT, 10))
    gap, sighting = reader.feed(xid(14))
    assert gap == KernelLogGap(11, 13)
    assert isinstance(gap, KernelLogGap)
    assert gap.missing == 3
    assert isinstance(sighting, KernelFault)
    assert reader.feed(dull(15)) == []
    assert reader.feed(dull(17)) == [KernelLogGap(16, 16)]


def test_another_boot_begins_again_and_its_lost_beginning_is_a_gap() -> None:
    assert KernelLogParser("new-boot", KernelLogCursor(BOOT, 900)).feed(dull(0)) == []
    assert KernelLogParser("new-boot", KernelLogCursor(BOOT, 900)).feed(dull(3)) == [KernelLogGap(0, 2)]
    assert KernelLogParser("new-boot", KernelLogCursor(BOOT, 900)).cursor == KernelLogCursor("new-boot", -1)


def test_with_no_past_there_is_nothing_to_miss() -> None:
    assert KernelLogParser(BOOT).feed(dull(4000)) == []
    assert KernelLogParser(BOOT, KernelLogCursor()).feed(dull(4000)) == []


def test_a_storm_passes_in_small_doses_and_says_how_much_was_left_out() -> None:
    reader = KernelLogParser(BOOT, burst=3, window_s=60)
    storm = feed_all(reader, [xid(n, usec=n * 1000) for n in range(1000)])
    assert len(storm) == 3
    (after,) = reader.feed(xid(1000, usec=61_000_000))
    assert isinstance(after, KernelFault)
    assert after.skipped == 997


def test_a_storm_hides_neither_another_code_nor_another_device() -> None:
    reader = KernelLogParser(BOOT, burst=1)
    events = feed_all(reader, [xid(0), xid(1), xid(2, code=48), xid(3, bus="43"), xid(4)])
    assert [(e.code, e.pci) for e in events if isinstance(e, KernelFault)] == [
        ("xid-79", "0000:1b:00.0"),
        ("xid-48", "0000:1b:00.0"),
        ("xid-79", "0000:43:00.0"),
    ]


def test_the_rate_limit_remembers_a_bounded_number_of_pairs() -> None:
    reader = KernelLogParser(BOOT, burst=1)
    events = feed_all(reader, [xid(n, code=n) for n in range(10_000)])
    assert len(events) == 10_000
    assert len(reader._seen) <= 4096


def test_a_very_long_line_is_kept_short() -> None:
    (event,) = KernelLogParser(BOOT).feed(xid(0) + "x" * 10_000)
    assert isinstance(event, KernelFault)
    assert len(event.message) == 500
