"""Whose fault an exit was: the code's, the device's or the infrastructure's. One table of rules, first match wins. Pure.

An exit code alone says little: ranks die of each other, of their device, of their node, and of their own mistakes, and most
die with code 1. So an exit is read together with what stood around it: signals of its devices within the look-back and the state
of its node. Evidence of hardware goes first, because what is charged to the code ends the job and what is charged to the device
costs a device for a while; then what cannot be hardware (a loss that is not a number, faults that the driver itself calls the
application's); then the words of the log. A lost node, an eviction or one step failing again and again is no exit: see
`core.training.faults`.

Every answer has a reason, a sentence, and how sure it is. Where nothing speaks for anything else, it was the code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from remuda.api.devices import DeviceState, Signal
from remuda.api.meta import to_seconds
from remuda.api.training import Cause
from remuda.core.devices.fault_codes import DeviceRemedy, FaultClass
from remuda.core.health.signals import classify_signals

LOOK_BACK_S = 10.0
SIGKILL, SIGTERM = 9, 15
TORN_DOWN = "xid-45"  # says only that a process was ended

_COLLECTIVE = re.compile(
    r"nccl(System|Remote|Internal|Unhandled\w*)?Error|NCCL (error|WARN)|collective operation timeout|RCCL"
    r"|Connection (reset|closed|refused) by (peer|remote)|Gloo.*(timeout|closed)|Broken pipe",
    re.IGNORECASE,
)
_NOT_A_NUMBER = re.compile(
    r"\b(loss|grad\w*|norm)\b[^\n]{0,40}\b(nan|inf)\b|LossNotFinite|FloatingPointError", re.IGNORECASE
)
_DEVICE = re.compile(
    r"uncorrectable ECC|GPU has fallen off the bus|device.{0,12}(lost|removed|not ready)|cudaErrorECC\w*"
    r"|CUDA error: (unknown error|system not yet initialized|hardware)|hipErrorECCNotCorrectable|no CUDA-capable device",
    re.IGNORECASE,
)
_DEVICE_MEMORY = re.compile(r"(CUDA|HIP) out of memory|OutOfMemoryError", re.IGNORECASE)
_STORAGE = re.compile(
    r"No space left on device|Stale file handle|Input/output error|Read-only file system", re.IGNORECASE
)


class Confidence(StrEnum):
    CERTAIN = "certain"
    LIKELY = "likely"
    GUESS = "guess"


class Attribution(msgspec.Struct, frozen=True):
    cause: Cause
    reason: str
    message: str
    confidence: Confidence = Confidence.LIKELY


class ProcessExit(msgspec.Struct, frozen=True):
    """How a process ended. `signal`: 0 when it was not killed by one; else told by 128 + signal, too. `reason`: the container
    runtime's word (OOMKilled, Error)."""

    code: int
    at: float
    signal: int = 0
    reason: str = ""
    tail: str = ""

    @property
    def killed_by(self) -> int:
        return self.signal or (self.code - 128 if 128 < self.code < 160 else 0)


class ExitCircumstances(msgspec.Struct, frozen=True):
    """What stood around the exit."""

    signals: Sequence[Signal] = ()  # of the devices the pod holds, and of its node
    memory_pressure: bool = False
    look_back_s: float = LOOK_BACK_S


def attribute_exit(exit: ProcessExit, scene: ExitCircumstances) -> Attribution:
    for rule in (
        _exit_by_own_device,
        _exit_by_node,
        _exit_by_loss_not_finite,
        _exit_by_application,
        _exit_by_collective,
        _exit_by_kill,
        _exit_by_log,
    ):
        found = rule(exit, scene)
        if found is not None:
            return found
    return Attribution(
        Cause.CODE,
        "ProcessExited",
        f"The process ended with code {exit.code}; nothing was reported of its device or node.",
        Confidence.LIKELY if not exit.killed_by else Confidence.GUESS,
    )


def device_fault_behind_exit(signals: Sequence[Signal], at: float, look_back_s: float) -> FaultClass | None:
    """The gravest fault of hardware close enough to `at` to explain an end at that time. A crash may come before its report, so
    it is looked for on both sides."""
    near = classify_signals(s for s in signals if _is_signal_near(s, at, look_back_s))
    bad = [known.fault for known in near if is_hardware_to_blame(known.fault)]
    order = list(DeviceRemedy)
    return max(bad, key=lambda f: (f.effect is DeviceState.UNHEALTHY, order.index(f.remedy)), default=None)


def is_hardware_to_blame(fault: FaultClass) -> bool:
    """A contained memory error leaves a working device behind, and is the device's all the same."""
    is_hung = fault.effect is DeviceState.UNKNOWN and fault.remedy is not DeviceRemedy.NONE
    return fault.effect is DeviceState.UNHEALTHY or is_hung or fault.cls in ("ecc_contained", "bus")


def _is_signal_near(signal: Signal, at: float, look_back_s: float) -> bool:
    return signal.time is not None and abs(to_seconds(signal.time) - at) <= look_back_s


def _exit_by_own_device(exit: ProcessExit, scene: ExitCircumstances) -> Attribution | None:
    fault = device_fault_behind_exit(scene.signals, exit.at, scene.look_back_s)
    if fault is None:
        return None
    words = f"Its device reported {fault.code} within {scene.look_back_s:g} s of the exit. {fault.message}"
    return Attribution(Cause.DEVICE, fault.reason, words, Confidence.CERTAIN)


def _exit_by_node(exit: ProcessExit, scene: ExitCircumstances) -> Attribution | None:
    if exit.killed_by == SIGKILL and scene.memory_pressure:
        words = "It was killed while its node was short of memory."
        return Attribution(Cause.INFRA, "NodeMemoryPressure", words)
    return None


def _exit_by_loss_not_finite(exit: ProcessExit, scene: ExitCircumstances) -> Attribution | None:
    if not _NOT_A_NUMBER.search(exit.tail):
        return None
    return Attribution(Cause.CODE, "LossNotFinite", "Its log ends with a loss that is not a number.")


def _exit_by_application(exit: ProcessExit, scene: ExitCircumstances) -> Attribution | None:
    """What the driver calls the application's fault: an illegal address, a page fault."""
    for known in classify_signals(s for s in scene.signals if _is_signal_near(s, exit.at, scene.look_back_s)):
        fault = known.fault
        if fault.cls == "app" and fault.remedy is DeviceRemedy.RESTART_APP and fault.code != TORN_DOWN:
            words = f"The driver reported {fault.code}, an error of the application. {fault.message}"
            return Attribution(Cause.CODE, fault.reason, words)
    return None


def _exit_by_collective(exit: ProcessExit, scene: ExitCircumstances) -> Attribution | None:
    """It waited in a collective for one that was gone already: that one's fault is its own."""
    if not _COLLECTIVE.search(exit.tail):
        return None
    words = "It lost its peers in a collective: the network between them, most likely."
    return Attribution(Cause.INFRA, "CollectiveFailed", words, Confidence.GUESS)


def _exit_by_kill(exit: ProcessExit, scene: ExitCircumstances) -> Attribution | None:
    if exit.reason == "OOMKilled":
        words = "It needed more memory than its own limit allows."
        return Attribution(Cause.CODE, "OutOfMemory", words, Confidence.CERTAIN)
    if exit.killed_by == SIGTERM:
        words = "Something other than Remuda stopped it."
        return Attribution(Cause.INFRA, "Terminated", words, Confidence.GUESS)
    return None


def _exit_by_log(exit: ProcessExit, scene: ExitCircumstances) -> Attribution | None:
    if _DEVICE.search(exit.tail):
        words = "Its log ends with an error of the device. Nothing else has confirmed that yet."
        return Attribution(Cause.DEVICE, "DeviceErrorInLog", words)
    if _DEVICE_MEMORY.search(exit.tail):
        return Attribution(
            Cause.CODE, "DeviceOutOfMemory", "It needed more memory than its device has.", Confidence.CERTAIN
        )
    if _STORAGE.search(exit.tail):
        return Attribution(Cause.INFRA, "StorageFailed", "Its storage failed or was full.")
    return None
