"""The amdsmi library as calls of the driver process. Runs in the child only.

Written from amdsmi's published interface and tested with a module of the same names; it has not met real hardware. So every
answer is optional: what the library does not have, or answers in another shape, is null, and the device is served without it.
amdsmi prints when its library is missing and may fail at import; both stay in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from remuda.agent.hardware.driver_port import DriverFault, Emit

_GONE = ("NO_DEVICE", "NOT_FOUND", "DRM_ERROR")


class AmdDriver:
    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._smi: Any = None
        self._handles: dict[str, Any] = {}  # by PCI address
        self._order: list[str] = []

    def open(self) -> dict[str, Any]:
        if self._smi is None:
            try:
                self._smi = import_module("amdsmi")
                self._smi.amdsmi_init()
            except Exception as error:  # whatever an import of a C library can raise
                self._smi = None
                raise DriverFault("LibraryNotFound", f"amdsmi cannot be used: {error}") from None
        handles = self._must(self._smi.amdsmi_get_processor_handles)
        self._handles = {str(self._must(self._smi.amdsmi_get_gpu_device_bdf, h)).lower(): h for h in handles}
        self._order = sorted(self._handles)
        first = self._handles[self._order[0]] if self._order else None
        info = self._may("amdsmi_get_gpu_driver_info", first) if first is not None else None
        return {"driver": str((info or {}).get("driver_version", "")), "cuda": "", "count": len(self._order)}

    def device(self, index: int) -> dict[str, Any]:
        pci = self._order[index]
        handle = self._handles[pci]
        asic = self._may("amdsmi_get_gpu_asic_info", handle) or {}
        kind = getattr(self._smi, "AmdSmiMemoryType", None)
        memory = self._may("amdsmi_get_gpu_memory_total", handle, kind.VRAM) if kind is not None else None
        return {
            "uuid": str(self._must(self._smi.amdsmi_get_gpu_device_uuid, handle)),
            "pci": pci,
            "name": str(asic.get("market_name", "")),
            "memory": int(memory or 0),
            "numa": self._may("amdsmi_topo_get_numa_node_number", handle),
            "minor": index,
            "mig": None,
            "compute": "",
            "family": str(asic.get("target_graphics_version", "")),
            "links": [{"link": n, "switch": False, "pci": far} for n, far in enumerate(self._neighbours(pci))],
        }

    def _neighbours(self, pci: str) -> list[str]:
        near: list[str] = []
        for other in self._order:
            found = (
                self._may("amdsmi_topo_get_link_type", self._handles[pci], self._handles[other])
                if other != pci
                else None
            )
            if found is not None and "XGMI" in _amdsmi_name(self._smi, found.get("type")):
                near.append(other)
        return near

    def topology(self, pcis: list[str]) -> list[list[str]]:
        return []

    def counters(self, pci: str) -> dict[str, Any]:
        handle = self._handle(pci)
        ecc = self._may("amdsmi_get_gpu_total_ecc_count", handle) or {}
        pcie = self._may("amdsmi_get_pcie_info", handle) or {}
        static, metric = pcie.get("pcie_static") or {}, pcie.get("pcie_metric") or {}
        cap = self._may("amdsmi_get_power_cap_info", handle) or {}
        use = self._may("amdsmi_get_gpu_activity", handle) or {}
        pages = self._may("amdsmi_get_gpu_bad_page_info", handle)
        found = {
            "eccUncorrected": ecc.get("uncorrectable_count"),
            "eccCorrected": ecc.get("correctable_count"),
            "pcieWidth": metric.get("pcie_width"),
            "pcieWidthMax": static.get("max_pcie_width"),
            "pcieSpeed": metric.get("pcie_speed"),
            "pcieSpeedMax": static.get("max_pcie_speed"),
            "pcieReplays": metric.get("pcie_replay_count"),
            "powerLimitMw": _amdsmi_thousandth(cap.get("power_cap")),
            "powerDefaultMw": _amdsmi_thousandth(cap.get("default_power_cap")),
            "utilisation": use.get("gfx_activity"),
            "temperature": self._temperature(handle),
            "remappedRows": len(pages) if isinstance(pages, list) else None,
        }
        return {name: value for name, value in found.items() if isinstance(value, int | float)}

    def processes(self, pci: str) -> list[dict[str, int]]:
        found = self._may("amdsmi_get_gpu_process_list", self._handle(pci)) or []
        rows = [p for p in found if isinstance(p, dict)]
        return [{"pid": int(p.get("pid", 0)), "memory": int(p.get("mem", 0) or 0)} for p in rows]

    def probe(self, pci: str) -> str:
        handle = self._handle(pci)
        self._must(self._smi.amdsmi_get_gpu_device_uuid, handle)
        return "" if self._temperature(handle) is not None else "no sensor of the device answers"

    def listen(self, pcis: list[str]) -> list[str]:
        return pcis  # events are read from the kernel's log

    def slices(self, pci: str) -> list[dict[str, Any]]:
        return []

    def _temperature(self, handle: Any) -> int | None:
        kinds, metrics = (
            getattr(self._smi, "AmdSmiTemperatureType", None),
            getattr(self._smi, "AmdSmiTemperatureMetric", None),
        )
        if kinds is None or metrics is None:
            return None
        value = self._may("amdsmi_get_temp_metric", handle, kinds.HOTSPOT, metrics.CURRENT)
        return int(value) if isinstance(value, int | float) else None

    def _handle(self, pci: str) -> Any:
        if pci not in self._handles:
            raise DriverFault("GpuIsLost", f"the driver has no device at {pci}")
        return self._handles[pci]

    def _must(self, ask: Callable[..., Any], *about: Any) -> Any:
        try:
            return ask(*about)
        except Exception as error:  # amdsmi's own exceptions, of whatever version is installed
            code = type(error).__name__
            is_gone = any(word in str(error).upper() for word in _GONE)
            raise DriverFault("GpuIsLost" if is_gone else code, str(error)) from None

    def _may(self, name: str, *about: Any) -> Any:
        ask = getattr(self._smi, name, None)
        if ask is None:
            return None
        try:
            return self._must(ask, *about)
        except DriverFault as fault:
            if fault.code == "GpuIsLost":
                raise
            return None


def _amdsmi_name(smi: Any, value: Any) -> str:
    """An enumeration's member by its number: they were renamed and renumbered between releases."""
    for enum in ("AmdSmiLinkType", "AmdSmiIoLinkType"):
        for member in getattr(smi, enum, ()):
            if value in (member, getattr(member, "value", None)):
                return str(member.name)
    return str(value)


def _amdsmi_thousandth(value: Any) -> int | None:
    return round(value / 1000) if isinstance(value, int | float) else None
