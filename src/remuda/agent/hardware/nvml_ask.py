"""Asking NVML: what a question that fails means, and how its values are spelt as plain ones. Runs in the driver process only."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml as nv

from remuda.agent.hardware.driver_port import DriverFault

# Answers that are about the device or the driver, not about the one question.
_GRAVE = (nv.NVML_ERROR_GPU_IS_LOST, nv.NVML_ERROR_UNINITIALIZED, nv.NVML_ERROR_DRIVER_NOT_LOADED)


def nvml_handle(pci: str) -> Any:
    domain, rest = pci.split(":", 1)
    return nv.nvmlDeviceGetHandleByPciBusId(f"{int(domain, 16):08X}:{rest.upper()}".encode())


def find_nvml_handle(pci: str) -> Any:
    """The handle, or None: of a lost device among others."""
    try:
        return nvml_handle(pci)
    except nv.NVMLError:
        return None


def nvml_pci_address(info: Any) -> str:
    """As the kernel writes it; NVML has an upper-case one with a long domain."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def nvml_pointer(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def nvml_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def nvml_must(ask: Callable[..., Any], *about: Any, **options: Any) -> Any:
    """What the library says, or a fault with its own word for why not."""
    try:
        return ask(*about, **options)
    except nv.NVMLError as error:
        raise DriverFault(type(error).__name__.removeprefix("NVMLError_"), str(error)) from None


def nvml_may(ask: Callable[..., Any], *about: Any, **options: Any) -> Any:
    """The same, but None where only this question cannot be answered."""
    try:
        return ask(*about, **options)
    except nv.NVMLError as error:
        if error.value in _GRAVE:
            raise DriverFault(type(error).__name__.removeprefix("NVMLError_"), str(error)) from None
        return None
