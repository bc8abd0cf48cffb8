"""The fake backend: a machine model that can be told to break."""

from __future__ import annotations

import pytest

from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.api.devices import Signal
from remuda.api.errors import Refusal
from remuda.api.meta import to_time
from remuda.core.devices.machine_models import load_built_in_machine_model

NOW = 1_700_000_000.0


def a_backend() -> FakeBackend:
    return FakeBackend(load_built_in_machine_model("dgx-h100"), "node-01", lambda: NOW)


def test_it_has_the_devices_of_its_model() -> None:
    backend = a_backend()
    assert backend.model == "dgx-h100"
    assert [(d.id, d.index, d.numa) for d in backend.inventory()] == [(f"gpu-{i}", i, i // 4) for i in range(8)]
    assert all(not d.signals for d in backend.inventory())


@pytest.mark.parametrize(("code", "source"), [("xid-79", "kmsg"), ("ecc-dbe", "nvml")])
def test_a_fault_is_reported_from_where_a_real_one_would_be(code: str, source: str) -> None:
    backend, heard = a_backend(), list[tuple[str, Signal]]()
    backend.subscribe(lambda device, signal: heard.append((device, signal)))
    backend.inject("gpu-3", code)
    [(device, signal)] = heard
    assert (device, signal.source, signal.code, signal.time) == ("gpu-3", source, code, to_time(NOW))
    assert "drill" in signal.message


def test_what_cannot_be_broken() -> None:
    with pytest.raises(Refusal, match="UnknownDevice") as caught:
        a_backend().inject("gpu-8", "xid-79")
    assert "gpu-7" in caught.value.fix
    with pytest.raises(Refusal, match="MissingFaultCode"):
        a_backend().inject("gpu-0", "")
