"""A dcgm-exporter beside the agent as a source of signals: its metrics page is read now and then, by device UUID.

Useful where NVML is somebody else's (a vendor's stack owns the node) and as a second opinion. The page's counters go through the
same thresholds as everybody's. The last Xid is a gauge: it stays at its value for ever, so a value is reported when it is
another one than at the last reading, and the last reading outlives a restart of the agent (within one boot): an old code must not
be taken for a new one. Two equal codes in a row cannot be told apart here; the kernel's log can.

Only loopback is read: the page is plain text without any proof of who wrote it, and it can take devices out of use. The answer
has a deadline and a size limit. A page that cannot be read is the node's signal source-lost, and no device's fault.

prometheus-client parses the samples, line by line: one bad line costs itself and not the page, and no TYPE line is seen (the
parser renames the samples of a counter). It copies the rest of a line for every label, so lines that are too long are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from remuda.agent.hardware.counters import (
    USUAL,
    CounterLimits,
    Counters,
    KnownCounters,
    throttle_words,
    update_hardware_counters,
)
from remuda.agent.hardware.device_ids import write_whole_hardware_file
from remuda.agent.hardware.kernel_log_reader import SignalReports
from remuda.agent.hardware.signal_listeners import NODE
from remuda.api.errors import Refusal
from remuda.core.devices.fault_codes import classify_device_fault_code

log = structlog.get_logger(__name__)

SOURCE = "dcgm"
POLL_S, DEADLINE_S = 15.0, 5.0
SIZE_LIMIT, LINE_LIMIT = 8 << 20, 4 << 10  # bytes of the page, characters of one sample
COUNT_LIMIT = 1 << 53  # DCGM's blanks of 64 bits lie above it

XID = "DCGM_FI_DEV_XID_ERRORS"
_SUMS = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc_uncorrected",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "ecc_corrected",
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": "ecc_uncorrected_total",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "remapped_rows",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "remapped_rows",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "link_errors",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "link_errors",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "link_errors",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "link_errors",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "pcie_replays",
    "DCGM_FI_DEV_GPU_TEMP": "temperature",
    "DCGM_FI_DEV_GPU_UTIL": "utilisation",
}
_FLAGS = {"DCGM_FI_DEV_ROW_REMAP_PENDING": "remap_pending", "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remap_failed"}
_THROTTLE = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")


class DcgmReading(msgspec.Struct, frozen=True):
    counters: Counters
    xid: int | None = None


class SeenXids(msgspec.Struct, frozen=True):
    """The last Xid of each device, by UUID; in a file."""

    boot: str = ""
    xids: dict[str, int] = {}


def parse_dcgm_samples(text: str) -> Iterator[Sample]:
    """Every sample of DCGM's on a page in the Prometheus text format; lines that are none are passed over."""
    for line in text.split("\n"):
        if len(line) > LINE_LIMIT or not line.startswith("DCGM_FI_"):
            continue
        try:
            for family in text_string_to_metric_families(line):
                yield from family.samples
        except ValueError:
            continue


def read_dcgm_page(text: str) -> dict[str, DcgmReading]:
    """What the page says of each device, by UUID. Counters of slices (GPU_I_ID) are left out; of samples that differ only in
    the pod they name, the largest counts."""
    counts: dict[tuple[str, str], int] = {}
    fields: dict[str, dict[str, Any]] = {}
    xids: dict[str, int] = {}
    for sample in parse_dcgm_samples(text):
        name, labels, value = sample.name, sample.labels, sample.value
        uuid = labels.get("UUID", "")
        if not uuid or not 0 <= value < COUNT_LIMIT:  # no number at all, or DCGM's blank
            continue
        mine = fields.setdefault(uuid, {})
        if name == XID:
            # With slices there is one sample per slice; the newest code is on any of them.
            xids[uuid] = xids.get(uuid) or int(value)
        elif labels.get("GPU_I_ID"):
            continue
        elif name in _SUMS:
            counts[uuid, name] = max(counts.get((uuid, name), 0), int(value))
        elif name in _FLAGS:
            mine[_FLAGS[name]] = bool(value)
        elif name in _THROTTLE:
            mine["throttle"] = throttle_words(int(value))
    for (uuid, name), count in counts.items():
        fields[uuid][_SUMS[name]] = fields[uuid].get(_SUMS[name], 0) + count
    return {uuid: DcgmReading(Counters(**mine), xids.get(uuid)) for uuid, mine in fields.items()}


class DcgmSource:
    """`seen`: file of the last Xids."""

    def __init__(
        self,
        backend: SignalReports,
        boot: str,
        *,
        host: str = "127.0.0.1",
        port: int = 9400,
        seen: Path | None = None,
        clock: Callable[[], float],
        poll_s: float = POLL_S,
        deadline_s: float = DEADLINE_S,
        limits: CounterLimits = USUAL,
    ) -> None:
        _check_dcgm_loopback(host)
        self._backend = backend
        self._boot = boot
        self._host, self._port = host, port
        self._file = seen
        self._clock = clock
        self._poll_s = poll_s
        self._deadline_s = deadline_s
        self._limits = limits
        self._xids = dict(_load_seen_xids(seen, boot))
        self._known: dict[str, KnownCounters] = {}
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._task is None:
            await self.scrape()
            self._task = asyncio.get_running_loop().create_task(self._poll(), name="dcgm")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                await self.scrape()
            except Exception as error:  # a page nobody foresaw must not end the reading
                log.error("dcgm.scrape", error=repr(error))

    async def scrape(self) -> bool:
        """Read the page once and report what is new. False when it could not be read."""
        where = f"The exporter at {self._host}:{self._port}"
        try:
            async with asyncio.timeout(self._deadline_s):
                page = await fetch_dcgm_page(self._host, self._port, SIZE_LIMIT)
        except TimeoutError:
            said = f"{where} did not answer within {self._deadline_s:g} s."
        except (OSError, ValueError, EOFError) as error:
            said = f"{where} cannot be read: {error}."
        else:
            self._backend.report(NODE, SOURCE, "source-back")
            # In a thread: a page of the largest size takes seconds, and the agent has other things to do.
            for uuid, reading in (await asyncio.to_thread(read_dcgm_page, page)).items():
                self._take(uuid, reading)
            return True
        self._backend.report(NODE, SOURCE, "source-lost", said)
        return False

    def _take(self, uuid: str, reading: DcgmReading) -> None:
        device = self._backend.device_at(uuid)
        if not device:
            return
        known, findings = update_hardware_counters(
            self._known.get(uuid, KnownCounters()), self._clock(), reading.counters, self._limits
        )
        self._known[uuid] = known
        for finding in findings:
            self._backend.report(device, SOURCE, finding.code, finding.message)
        if reading.xid is None or reading.xid == self._xids.get(uuid, 0):
            return
        self._xids[uuid] = reading.xid
        if self._file is not None:
            write_whole_hardware_file(self._file, msgspec.json.encode(SeenXids(self._boot, self._xids)))
        if reading.xid:
            code = f"xid-{reading.xid}"
            self._backend.report(device, SOURCE, code, classify_device_fault_code(SOURCE, code).message)


async def fetch_dcgm_page(host: str, port: int, limit: int) -> str:
    """The page's text. HTTP/1.0, so that the answer ends where the connection does; ValueError when it is not a 200 or too
    long."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 16)
    try:
        writer.write(f"GET /metrics HTTP/1.0\r\nHost: {host}\r\nAccept: text/plain\r\n\r\n".encode())
        status = (await reader.readline()).decode("latin-1").split()
        if len(status) < 2 or status[1] != "200":
            raise ValueError(f"the answer is {' '.join(status) or 'empty'}")
        headers = 0
        while (line := await reader.readline()) not in (b"\r\n", b"\n"):
            headers += len(line)
            if not line or headers > 1 << 16:
                raise ValueError("the answer has no body")
        body = bytearray()
        while chunk := await reader.read(1 << 16):
            body += chunk
            if len(body) > limit:
                raise ValueError(f"the answer is longer than {limit} bytes")
        return body.decode("utf-8", "replace")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _check_dcgm_loopback(host: str) -> None:
    try:
        if ipaddress.ip_address(host).is_loopback:
            return
    except ValueError:
        if host == "localhost":
            return
    raise Refusal(
        "NotLoopback",
        f"Metrics from {host} cannot be trusted: nothing proves who wrote them.",
        "Give the exporter a port on this node's loopback address.",
        "host",
    )


def _load_seen_xids(path: Path | None, boot: str) -> Mapping[str, int]:
    if path is None:
        return {}
    try:
        seen = msgspec.json.decode(path.read_bytes(), type=SeenXids)
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        log.warning("dcgm.seen", path=str(path), error=str(error))
        return {}
    return seen.xids if seen.boot == boot else {}
