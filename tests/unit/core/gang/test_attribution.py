"""Attribution: the same exit code, and whose fault it was by what stood around it."""

from __future__ import annotations

import pytest

from remuda.api.devices import Signal
from remuda.api.meta import to_time
from remuda.api.training import Cause
from remuda.core.gang.attribution import Confidence, ExitCircumstances, ProcessExit, attribute_exit

T = 1000.0
NCCL = "RuntimeError: NCCL error: remote process exited or there was a network error (ncclRemoteError)"
CODE, DEVICE, INFRA = Cause.CODE, Cause.DEVICE, Cause.INFRA


def said(code: str, at: float = T, source: str = "kmsg") -> Signal:
    return Signal(source, code, time=to_time(at))


def exited(code: int = 1, tail: str = "", at: float = T, **more: object) -> ProcessExit:
    return ProcessExit(code, at, tail=tail, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exit", "scene", "cause", "reason"),
    [
        # nothing else is known
        (exited(1), ExitCircumstances(), CODE, "ProcessExited"),
        (exited(139), ExitCircumstances(), CODE, "ProcessExited"),
        # its own device
        (exited(1), ExitCircumstances([said("xid-79", T - 3)]), DEVICE, "Xid79"),
        (exited(1), ExitCircumstances([said("xid-79", T + 8)]), DEVICE, "Xid79"),  # died first, reported after
        (exited(1), ExitCircumstances([said("xid-79", T - 60)]), CODE, "ProcessExited"),
        (exited(1), ExitCircumstances([said("xid-79", T - 60)], look_back_s=90.0), DEVICE, "Xid79"),
        (exited(1), ExitCircumstances([said("xid-94")]), DEVICE, "Xid94"),  # contained, and memory all the same
        (exited(1), ExitCircumstances([said("xid-92")]), CODE, "ProcessExited"),  # degraded kills nobody
        (exited(1), ExitCircumstances([said("driver-hang", source="nvml")]), DEVICE, "DriverHang"),
        (exited(1), ExitCircumstances([said("xid-99999")]), DEVICE, "UnknownFaultCode"),
        (
            exited(1, "loss is nan"),
            ExitCircumstances([said("xid-48")]),
            DEVICE,
            "Xid48",
        ),  # a bad memory makes bad numbers
        # the driver lays it to the application
        (exited(1), ExitCircumstances([said("xid-13")]), CODE, "Xid13"),
        (exited(1), ExitCircumstances([said("xid-31")]), CODE, "Xid31"),
        (exited(1), ExitCircumstances([said("xid-13"), said("xid-79")]), DEVICE, "Xid79"),
        (exited(1), ExitCircumstances([said("xid-45")]), CODE, "ProcessExited"),
        # its node
        (exited(137), ExitCircumstances(memory_pressure=True), INFRA, "NodeMemoryPressure"),
        (exited(1), ExitCircumstances(memory_pressure=True), CODE, "ProcessExited"),
        (exited(137, signal=9), ExitCircumstances(), CODE, "ProcessExited"),
        (exited(137, reason="OOMKilled"), ExitCircumstances(), CODE, "OutOfMemory"),
        (exited(143), ExitCircumstances(), INFRA, "Terminated"),
        # cannot be hardware
        (exited(1, "step 12: loss = nan, stopping"), ExitCircumstances(), CODE, "LossNotFinite"),
        (exited(1, "nanny process started"), ExitCircumstances(), CODE, "ProcessExited"),
        # the log
        (exited(1, "CUDA error: uncorrectable ECC error encountered"), ExitCircumstances(), DEVICE, "DeviceErrorInLog"),
        (exited(1, "torch.OutOfMemoryError: CUDA out of memory."), ExitCircumstances(), CODE, "DeviceOutOfMemory"),
        (exited(1, "OSError: [Errno 28] No space left on device"), ExitCircumstances(), INFRA, "StorageFailed"),
        # its peers
        (exited(1, NCCL), ExitCircumstances(), INFRA, "CollectiveFailed"),
    ],
)
def test_whose_fault(exit: ProcessExit, scene: ExitCircumstances, cause: Cause, reason: str) -> None:
    found = attribute_exit(exit, scene)
    assert (found.cause, found.reason) == (cause, reason)
    assert found.message.endswith(".")


def test_an_answer_says_how_sure_it_is() -> None:
    assert attribute_exit(exited(1), ExitCircumstances([said("xid-79")])).confidence is Confidence.CERTAIN
    assert attribute_exit(exited(137), ExitCircumstances()).confidence is Confidence.GUESS
