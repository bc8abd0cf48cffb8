"""The exporter's page, from a real HTTP server on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.agent.hardware.counters import CounterLimits, Counters
from remuda.agent.hardware.dcgm import XID, DcgmReading, DcgmSource, fetch_dcgm_page, parse_dcgm_samples, read_dcgm_page
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.api.errors import Refusal
from remuda.core.devices.machine_models import load_built_in_machine_model
from tests.unit.agent.hardware.rig import Clock, Ears


class Exporter:
    """What the server answers; `hold` keeps it from answering."""

    def __init__(self) -> None:
        self.page = ""
        self.status = 200
        self.hold = threading.Event()
        self.hold.set()
        self.port = 0


@pytest.fixture(name="exporter")
def served_exporter() -> Iterator[Exporter]:
    state = Exporter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.hold.wait(30)
            body = state.page.encode()
            self.send_response(state.status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            try:
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the reader gave up, as it should

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state
    state.hold.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def backend(clock: Clock) -> FakeBackend:
    return FakeBackend(load_built_in_machine_model("dgx-h100"), "node-01", clock)


def a_source(backend: FakeBackend, exporter: Exporter, clock: Clock, **more: object) -> DcgmSource:
    return DcgmSource(
        backend,
        "boot-1",
        port=exporter.port,
        clock=clock,
        limits=CounterLimits(hold_s=0.0),
        **{"deadline_s": 20.0, **more},  # type: ignore[arg-type]
    )


def a_sample(name: str, uuid: str, value: float, **labels: str) -> str:
    more = "".join(f',{k}="{v}"' for k, v in labels.items())
    return f'{name}{{gpu="0",UUID="{uuid}",device="nvidia0",modelName="NVIDIA H100 80GB HBM3"{more}}} {value:g}\n'


def test_the_page_format() -> None:
    text = (
        "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1",name="a \\"quoted\\", one"} 41\n'
        "# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER counter\nDCGM_FI_DEV_PCIE_REPLAY_COUNTER 1 1700000000000\n"
        "DCGM_FI_broken{ 3\nDCGM_FI_nan NaN\nDCGM_FI_no_number x\nup 1\n"
    )
    found = list(parse_dcgm_samples(text))
    assert [s.name for s in found] == ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_nan"]
    assert found[0].labels == {"UUID": "GPU-1", "name": 'a "quoted", one'}


@pytest.mark.parametrize("value", ["Inf", "-Inf", "NaN", "-1", "9223372036854775792", "9" * 3000, "9" * 5000])
@pytest.mark.parametrize("name", [XID, "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"])
def test_a_value_that_counts_nothing(name: str, value: str) -> None:
    assert read_dcgm_page(f'{name}{{UUID="GPU-1"}} {value}') == {}


def test_a_hostile_page_costs_a_bounded_time() -> None:
    """Lines that the parser would take apart in quadratic time: labels without end, quotes, backslashes, nothing but a name."""
    labels = ",".join(f'l{i}="x"' for i in range(100_000))
    bombs = [
        f"{{{labels}}} 1",
        '{UUID="' + '\\"' * 500_000 + '"} 1',
        '{UUID="' + "\\" * 1_000_000,
        " " * 1_000_000,
        "{" * 1_000_000,
    ]
    good = a_sample("DCGM_FI_DEV_XID_ERRORS", "GPU-1", 79)
    began = time.process_time()
    assert read_dcgm_page("\n".join(XID + bomb for bomb in bombs) + "\n" + good) == {
        "GPU-1": DcgmReading(Counters(), 79)
    }
    assert time.process_time() - began < 5.0


@given(st.lists(st.text(alphabet='DCGM_FI_{}="\\,# \t\r\u2028UID1e.-+x').map("DCGM_FI_".__add__)))
def test_no_page_raises(lines: list[str]) -> None:
    read_dcgm_page("\n".join(lines))


def test_counters_of_a_page() -> None:
    page = (
        a_sample("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "GPU-1", 3)
        + a_sample("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "GPU-1", 4)
        + a_sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "GPU-1", 2, pod="a")
        + a_sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "GPU-1", 2, pod="b")
        + a_sample("DCGM_FI_DEV_GPU_TEMP", "GPU-1", float("nan"))
        + a_sample("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "GPU-1", 0x48)
        + a_sample("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "GPU-1", 9, GPU_I_ID="1")
    )
    [reading] = read_dcgm_page(page).values()
    counters = reading.counters
    assert (counters.link_errors, counters.ecc_uncorrected, counters.ecc_corrected) == (7, 2, None)
    assert (counters.temperature, counters.throttle, reading.xid) == (None, ["hw-thermal"], None)


async def test_signals_by_uuid(backend: FakeBackend, exporter: Exporter, clock: Clock) -> None:
    ears = Ears(backend)
    source = a_source(backend, exporter, clock)
    second, fifth = backend.inventory()[2].uuid, backend.inventory()[5].uuid
    exporter.page = a_sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", second, 0) + a_sample("DCGM_FI_DEV_XID_ERRORS", fifth, 0)
    assert await source.scrape()
    assert ears.codes == []
    exporter.page = (
        a_sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", second, 1)
        + a_sample("DCGM_FI_DEV_ROW_REMAP_PENDING", second, 1)
        + a_sample("DCGM_FI_DEV_XID_ERRORS", fifth, 79)
        + a_sample("DCGM_FI_DEV_XID_ERRORS", "GPU-of-another-node", 48)
    )
    await source.scrape()
    await source.scrape()
    assert sorted(ears.codes) == [("gpu-2", "ecc-dbe"), ("gpu-2", "row-remap-pending"), ("gpu-5", "xid-79")]
    assert {s.source for _, s in ears.heard} == {"dcgm"}


async def test_an_old_code_is_not_new_after_a_restart(
    backend: FakeBackend, exporter: Exporter, clock: Clock, tmp_path: Path
) -> None:
    ears = Ears(backend)
    exporter.page = a_sample("DCGM_FI_DEV_XID_ERRORS", backend.inventory()[0].uuid, 79)
    seen = tmp_path / "dcgm.json"
    await a_source(backend, exporter, clock, seen=seen).scrape()
    assert ears.codes == [("gpu-0", "xid-79")]
    await a_source(backend, exporter, clock, seen=seen).scrape()
    assert ears.codes == [("gpu-0", "xid-79")]
    exporter.page = a_sample("DCGM_FI_DEV_XID_ERRORS", backend.inventory()[0].uuid, 48)
    await a_source(backend, exporter, clock, seen=seen).scrape()
    assert ears.codes[1:] == [("gpu-0", "xid-48")]


async def test_an_exporter_that_fails_is_the_nodes_trouble(
    backend: FakeBackend, exporter: Exporter, clock: Clock
) -> None:
    ears = Ears(backend)
    source = a_source(backend, exporter, clock)
    exporter.status = 503
    assert not await source.scrape()
    assert ears.codes == [("", "source-lost")]
    assert "503" in ears.message("", "source-lost")
    exporter.status = 200
    assert await source.scrape()
    assert ears.all_codes[-1] == ("", "source-back")


async def test_an_exporter_that_never_answers_hits_the_deadline(
    backend: FakeBackend, exporter: Exporter, clock: Clock
) -> None:
    ears = Ears(backend)
    exporter.hold.clear()
    assert not await a_source(backend, exporter, clock, deadline_s=0.2).scrape()
    assert "did not answer within 0.2 s" in ears.message("", "source-lost")


async def test_a_page_too_long_is_refused(exporter: Exporter) -> None:
    exporter.page = "x" * 100_000
    assert len(await fetch_dcgm_page("127.0.0.1", exporter.port, 100_000)) == 100_000
    with pytest.raises(ValueError, match="longer than 99999 bytes"):
        await fetch_dcgm_page("127.0.0.1", exporter.port, 99_999)


async def test_opened_it_reads_by_itself(backend: FakeBackend, exporter: Exporter, clock: Clock) -> None:
    ears = Ears(backend)
    source = a_source(backend, exporter, clock, poll_s=0.01)
    await source.open()
    exporter.page = a_sample("DCGM_FI_DEV_XID_ERRORS", backend.inventory()[1].uuid, 94)
    await ears.until(lambda: ("gpu-1", "xid-94") in ears.codes)
    await source.close()


@pytest.mark.parametrize("host", ["10.0.0.7", "exporter.example.com", "0.0.0.0"])
def test_only_loopback_is_believed(backend: FakeBackend, clock: Clock, host: str) -> None:
    with pytest.raises(Refusal, match="NotLoopback"):
        DcgmSource(backend, "", host=host, clock=clock)
