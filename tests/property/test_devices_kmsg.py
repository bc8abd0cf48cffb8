"""The kernel log under any history: whatever bytes come, nothing breaks; whatever is lost, repeated or restarted, every record is
either read once or told as missing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.devices.kernel_log import (
    KernelFault,
    KernelLogCursor,
    KernelLogGap,
    KernelLogParser,
    kernel_log_pci_address,
    parse_kernel_log_record,
    recognise_kernel_fault,
)

STEPS = settings(max_examples=150, deadline=None, print_blob=True)
BOOT = "boot-1"

# Pieces of real lines, so that random text gets deep into the patterns.
WORDS = st.sampled_from(
    "NVRM: Xid (PCI:|0000:1b:00|): |79|, |154|149| Nonfatal | to |None|GPU reset|amdgpu |(|)|20034|AER: |pcieport |Fatal|\\x0a|"
    "PCIe Bus Error: severity=|nvidia-nvswitch0: SXid (PCI:0000:04:00.0): ".split("|")
)
TEXT = st.lists(st.one_of(WORDS, st.text(max_size=6)), max_size=12).map("".join)


def line(seq: int, text: str = "usb 1-1: new device") -> str:
    return f"6,{seq},{seq},-;{text}"


@STEPS
@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    KernelLogParser(BOOT).feed(raw)
    KernelLogParser(BOOT).feed(b"4,1,1,-;" + raw)


@STEPS
@given(TEXT)
def test_any_line_is_a_fault_with_an_address_and_a_code_or_nothing(text: str) -> None:
    found = recognise_kernel_fault(text)
    if found is not None:
        pci, code = found
        assert pci == kernel_log_pci_address(pci)
        assert code == code.lower().strip()
        assert code.split("-")[0] in ("xid", "sxid", "recovery", "nvrm", "aer", "amd")


@STEPS
@given(text=TEXT, seq=st.integers(0, 10**9), usec=st.integers(0, 10**12), number=st.integers(0, 191))
def test_what_the_kernel_writes_is_read_back(text: str, seq: int, usec: int, number: int) -> None:
    plain = text.replace("\n", " ").replace("\\", "/")
    record = parse_kernel_log_record(f"{number},{seq},{usec},-;{plain}\n SUBSYSTEM=pci\n".encode())
    assert record is not None
    assert (record.priority, record.facility) == (number % 8, number // 8)
    assert (record.seq, record.usec, record.text) == (seq, usec, plain)
    assert record.fields == (("SUBSYSTEM", "pci"),)


@STEPS
@given(
    arrive=st.lists(st.integers(0, 60), max_size=80),
    restarts=st.sets(st.integers(0, 80), max_size=5),
)
def test_every_record_is_read_once_or_missed_once(arrive: list[int], restarts: set[int]) -> None:
    """Records come late, twice or never, and the reader is made anew from its cursor in between."""
    reader = KernelLogParser(BOOT, KernelLogCursor(BOOT, 0), burst=10**6)
    read: list[int] = []
    missed: list[int] = []
    newest = 0
    for turn, seq in enumerate(arrive):
        if turn in restarts:
            reader = KernelLogParser(BOOT, reader.cursor, burst=10**6)
        for event in reader.feed(line(seq, f"NVRM: Xid (PCI:0000:1b:00): {seq}, pid=1")):
            if isinstance(event, KernelLogGap):
                missed += range(event.first, event.last + 1)
            else:
                read.append(event.seq)
        newest = max(newest, seq)
    assert reader.cursor.seq == newest
    assert sorted(read + missed) == list(range(1, newest + 1))
    assert read == sorted(read)


@STEPS
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5 * 10**6)), max_size=60), st.integers(1, 4))
def test_the_rate_limit_forgets_nobody(storm: list[tuple[int, int]], burst: int) -> None:
    """Sightings that pass and those they say were left out add up to all, but for what is still held back."""
    reader = KernelLogParser(BOOT, burst=burst, window_s=1.0)
    now, told, sent, passed = 0, 0, 0, 0
    for seq, (code, wait) in enumerate(storm):
        now += wait
        sent += 1
        for event in reader.feed(f"4,{seq},{now},-;NVRM: Xid (PCI:0000:1b:00): {code + 40}, pid=1"):
            assert isinstance(event, KernelFault)
            passed += 1
            told += 1 + event.skipped
    held_back = sum(seen.skipped for seen in reader._seen.values())
    assert told + held_back == sent
    assert passed >= len({code for code, _ in storm})
