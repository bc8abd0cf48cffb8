"""/dev/kmsg from a pipe and from a file: cursor, gaps, whose device it is."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.agent.hardware.kernel_log_reader import KmsgSource
from remuda.api.meta import to_seconds
from remuda.core.devices.kernel_log import KernelLogCursor
from remuda.core.devices.machine_models import load_built_in_machine_model
from tests.unit.agent.hardware.rig import NOW, Clock, Ears

UPTIME = 5000.0
Start = Callable[..., Awaitable[KmsgSource]]


def a_record(seq: int, text: str, *, second: float = 4990.0, priority: int = 3) -> str:
    return f"{priority},{seq},{round(second * 1e6)},-;{text}\n"


def an_xid(seq: int, pci: str, code: int, **more: float) -> str:
    return a_record(seq, f"NVRM: Xid (PCI:{pci.rsplit('.', 1)[0]}): {code}, pid=7, name=python", **more)  # type: ignore[arg-type]


@pytest.fixture
def backend(clock: Clock) -> FakeBackend:
    return FakeBackend(load_built_in_machine_model("dgx-h100"), "node-01", clock)


@pytest.fixture
async def start(backend: FakeBackend, clock: Clock, tmp_path: Path) -> AsyncIterator[Start]:
    opened: list[KmsgSource] = []

    async def start(path: Path, boot: str = "boot-1") -> KmsgSource:
        source = KmsgSource(backend, boot, path=path, cursor=tmp_path / "kmsg.json", clock=clock, uptime=lambda: UPTIME)
        await source.open()
        opened.append(source)
        return source

    yield start
    for source in opened:
        await source.close()


async def test_a_pipe_is_read_as_it_is_written(backend: FakeBackend, start: Start, tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    ears = Ears(backend)
    kernel = os.open(pipe, os.O_RDWR)
    source = await start(pipe)
    address = backend.inventory()[3].pci
    os.write(kernel, (a_record(10, "eth0: link up") + an_xid(11, address, 79)).encode())
    await ears.until(lambda: bool(ears.codes))
    assert ears.codes == [("gpu-3", "xid-79")]
    signal = ears.heard[-1][1]
    assert signal.source == "kmsg"
    assert "Xid" in signal.message
    assert signal.time is not None
    assert to_seconds(signal.time) == NOW - 10.0, "when the kernel wrote it, not when it was read"
    # Half a line is not a record yet.
    whole = an_xid(12, address, 48).encode()
    os.write(kernel, whole[:20])
    source.pump()
    os.write(kernel, whole[20:])
    await ears.until(lambda: len(ears.codes) == 2)
    assert source.cursor == KernelLogCursor("boot-1", 12)
    # Records 13 to 19 were overwritten.
    os.write(kernel, a_record(20, "dull").encode())
    await ears.until(lambda: ("", "kmsg-gap") in ears.codes)
    assert "7 kernel messages (13 to 19)" in ears.message("", "kmsg-gap")
    os.close(kernel)
    await ears.until(lambda: ("", "kmsg-lost") in ears.codes)


async def test_a_restarted_reader_goes_on_where_the_last_one_stopped(
    backend: FakeBackend, start: Start, tmp_path: Path
) -> None:
    log = tmp_path / "kmsg"
    address = backend.inventory()[0].pci
    log.write_text(an_xid(1, address, 13) + an_xid(2, address, 31), encoding="ascii")
    ears = Ears(backend)
    source = await start(log)
    assert ears.codes == [("gpu-0", "xid-13"), ("gpu-0", "xid-31")]
    await source.close()
    assert msgspec.json.decode((tmp_path / "kmsg.json").read_bytes(), type=KernelLogCursor) == KernelLogCursor(
        "boot-1", 2
    )
    ears.forget()
    log.write_text(an_xid(1, address, 13) + an_xid(2, address, 31) + an_xid(3, address, 79), encoding="ascii")
    source = await start(log)
    assert ears.codes == [("gpu-0", "xid-79")], "the old ones are not told again"
    await source.close()
    ears.forget()
    # After a reboot the numbers begin anew.
    log.write_text(an_xid(0, address, 48), encoding="ascii")
    await start(log, boot="boot-2")
    assert ears.codes == [("gpu-0", "xid-48")]


async def test_a_file_that_grows_is_read_on(backend: FakeBackend, start: Start, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(a_record(1, "dull"), encoding="ascii")
    ears = Ears(backend)
    source = await start(log)
    log.write_text(log.read_text(encoding="ascii") + an_xid(2, backend.inventory()[7].pci, 79), encoding="ascii")
    source.pump()
    assert ears.codes == [("gpu-7", "xid-79")]


async def test_a_flood_is_thinned_and_counted(backend: FakeBackend, start: Start, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    address = backend.inventory()[0].pci
    flood = "".join(an_xid(n, address, 31, second=100.0 + n / 1000) for n in range(3000))
    log.write_text(flood + an_xid(3000, address, 31, second=300.0), encoding="ascii")
    ears = Ears(backend)
    source = await start(log)
    while source.cursor.seq < 3000:
        source.pump()
    assert 1 < len(ears.codes) < 10
    assert "2997 more like it before" in ears.message("gpu-0", "xid-31")


async def test_a_switch_or_an_unknown_device_is_the_nodes(backend: FakeBackend, start: Start, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    lines = [
        a_record(1, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 36 LTSSM Fault Up"),
        an_xid(2, "0000:ff:00.0", 79),
    ]
    log.write_text("".join(lines), encoding="ascii")
    ears = Ears(backend)
    await start(log)
    assert ears.codes == [("", "sxid-20034"), ("", "xid-79")]


async def test_a_damaged_cursor_is_as_none(backend: FakeBackend, start: Start, tmp_path: Path) -> None:
    (tmp_path / "kmsg.json").write_bytes(b"{")
    log = tmp_path / "kmsg"
    log.write_text(an_xid(5, backend.inventory()[0].pci, 79), encoding="ascii")
    ears = Ears(backend)
    await start(log)
    assert ears.codes == [("gpu-0", "xid-79")]


async def test_a_file_that_is_not_there_cannot_be_opened(start: Start, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await start(tmp_path / "none")


async def test_an_overrun_under_our_hands_is_a_gap_not_the_end(
    backend: FakeBackend, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel answers EPIPE once and then hands out the oldest record it still has."""
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    kernel = os.open(pipe, os.O_RDWR)
    ears = Ears(backend)
    source = await start(pipe)
    address = backend.inventory()[1].pci
    os.write(kernel, a_record(1, "dull").encode())
    source.pump()
    answers: list[bytes | OSError] = [
        OSError(errno.EPIPE, "Broken pipe"),
        an_xid(900, address, 79).encode(),
        BlockingIOError(),
    ]

    def read(fd: int, size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with monkeypatch.context() as patched:
        patched.setattr("remuda.agent.hardware.kernel_log_reader.os.read", read)
        source.pump()
    os.close(kernel)
    assert ears.codes == [("", "kmsg-gap"), ("gpu-1", "xid-79")]
    assert "898 kernel messages (2 to 899)" in ears.message("", "kmsg-gap")
