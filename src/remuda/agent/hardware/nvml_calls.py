"""The NVML library as calls of the driver process: what it says, as plain JSON values. Runs in the child only.

Devices are addressed by PCI bus address: NVML attaches to a device when its handle is asked for, and a handle by index or UUID
may make it touch every device, the sick one included. What a device cannot tell (NotSupported, a library older than the
question) is null. A lost device is an error of its own call and of no other.
"""

from __future__ import annotations

import threading
from typing import Any

import pynvml as nv

from remuda.agent.hardware.driver_port import Emit
from remuda.agent.hardware.nvml_ask import (
    find_nvml_handle,
    nvml_handle,
    nvml_may,
    nvml_must,
    nvml_pci_address,
    nvml_pointer,
    nvml_text,
)
from remuda.agent.hardware.nvml_mig import MigCalls

_EVENT_WAIT_MS = 1000
_NO_INSTANCE = 0xFFFFFFFF

_RECOVERY = {0: "none", 1: "reset", 2: "reboot", 3: "drain", 4: "drain", 5: "none", 6: "reset", 7: "reboot"}
_ARCHITECTURES = {5: "volta", 6: "turing", 7: "ampere", 8: "ada-lovelace", 9: "hopper", 10: "blackwell", 13: "rubin"}
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class NvmlDriver(MigCalls):
    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._is_open = False
        self._listening: dict[int, str] = {}  # address of a handle -> PCI
        self._events: Any = None

    # --- the node ---------------------------------------------------------------------------------------------------------

    def open(self) -> dict[str, Any]:
        if not self._is_open:
            # A node whose last device fell off the bus still has a driver to ask.
            nvml_must(nv.nvmlInitWithFlags, nv.NVML_INIT_FLAG_NO_GPUS)
            self._is_open = True
        cuda = nvml_may(nv.nvmlSystemGetCudaDriverVersion_v2)
        return {
            "driver": nvml_text(nvml_may(nv.nvmlSystemGetDriverVersion)),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            "count": nvml_must(nv.nvmlDeviceGetCount),
        }

    def device(self, index: int) -> dict[str, Any]:
        handle = nvml_must(nv.nvmlDeviceGetHandleByIndex, index)
        info = nvml_must(nv.nvmlDeviceGetPciInfo, handle)
        mode = nvml_may(nv.nvmlDeviceGetMigMode, handle)
        compute = nvml_may(nv.nvmlDeviceGetCudaComputeCapability, handle)
        minor = nvml_may(nv.nvmlDeviceGetMinorNumber, handle)
        memory = nvml_must(nv.nvmlDeviceGetMemoryInfo, handle)
        return {
            "uuid": nvml_text(nvml_must(nv.nvmlDeviceGetUUID, handle)),
            "pci": nvml_pci_address(info),
            "name": nvml_text(nvml_must(nv.nvmlDeviceGetName, handle)),
            "memory": int(memory.total),
            "numa": nvml_may(nv.nvmlDeviceGetNumaNodeId, handle),
            "minor": index if minor is None else minor,
            "mig": mode[0] if mode else None,
            "compute": f"{compute[0]}.{compute[1]}" if compute else "",
            "family": _ARCHITECTURES.get(nvml_may(nv.nvmlDeviceGetArchitecture, handle) or 0, ""),
            "links": self._remote_ends(handle),
        }

    def topology(self, pcis: list[str]) -> list[list[str]]:
        """[a, b, PIX | PXB | PHB | NODE | SYS] for every pair that can be asked about."""
        handles = {pci: h for pci in pcis if (h := find_nvml_handle(pci)) is not None}
        pairs: list[list[str]] = []
        for a, first in handles.items():
            for b, second in handles.items():
                level = nvml_may(nv.nvmlDeviceGetTopologyCommonAncestor, first, second) if a < b else None
                if level is not None:
                    pairs.append([a, b, _LEVELS.get(level, "SYS")])
        return pairs

    def _remote_ends(self, handle: Any) -> list[dict[str, Any]]:
        ends: list[dict[str, Any]] = []
        for link in range(nv.NVML_NVLINK_MAX_LINKS):
            active = nvml_may(nv.nvmlDeviceGetNvLinkState, handle, link)
            if active is None:
                continue
            kind = nvml_may(nv.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            remote = nvml_may(nv.nvmlDeviceGetNvLinkRemotePciInfo, handle, link) if active else None
            is_switch = kind == nv.NVML_NVLINK_DEVICE_TYPE_SWITCH
            ends.append(
                {"link": link, "switch": is_switch, "pci": nvml_pci_address(remote) if remote is not None else ""}
            )
        return ends

    # --- one device -------------------------------------------------------------------------------------------------------

    def counters(self, pci: str) -> dict[str, Any]:
        """`agent.hardware.counters.Counters` as JSON."""
        handle = nvml_must(nvml_handle, pci)
        volatile, total = nv.NVML_VOLATILE_ECC, nv.NVML_AGGREGATE_ECC
        bad, mended = nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_MEMORY_ERROR_TYPE_CORRECTED
        rows = nvml_may(nv.nvmlDeviceGetRemappedRows, handle)
        pages = nvml_may(nv.nvmlDeviceGetRetiredPagesPendingStatus, handle) if rows is None else None
        bits = nvml_may(nv.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if bits is None:
            bits = nvml_may(nv.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        use = nvml_may(nv.nvmlDeviceGetUtilizationRates, handle)
        found = {
            "eccUncorrected": nvml_may(nv.nvmlDeviceGetTotalEccErrors, handle, bad, volatile),
            "eccCorrected": nvml_may(nv.nvmlDeviceGetTotalEccErrors, handle, mended, volatile),
            "eccUncorrectedTotal": nvml_may(nv.nvmlDeviceGetTotalEccErrors, handle, bad, total),
            "remapPending": bool(rows[2]) if rows else (None if pages is None else bool(pages)),
            "remapFailed": bool(rows[3]) if rows else None,
            "remappedRows": rows[0] + rows[1] if rows else None,
            "throttleBits": bits,
            "powerLimitMw": nvml_may(nv.nvmlDeviceGetEnforcedPowerLimit, handle),
            "powerDefaultMw": nvml_may(nv.nvmlDeviceGetPowerManagementDefaultLimit, handle),
            "links": self._link_counters(handle),
            "pcieWidth": nvml_may(nv.nvmlDeviceGetCurrPcieLinkWidth, handle),
            "pcieWidthMax": nvml_may(nv.nvmlDeviceGetMaxPcieLinkWidth, handle),
            "pcieSpeed": nvml_may(nv.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            "pcieSpeedMax": nvml_may(nv.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            "pcieReplays": nvml_may(nv.nvmlDeviceGetPcieReplayCounter, handle),
            "temperature": nvml_may(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU),
            "utilisation": use.gpu if use is not None else None,
            "recovery": self._recovery(handle),
        }
        return {name: value for name, value in found.items() if value is not None}

    def processes(self, pci: str) -> list[dict[str, int]]:
        handle = nvml_must(nvml_handle, pci)
        found = nvml_may(nv.nvmlDeviceGetComputeRunningProcesses, handle) or []
        return [
            {
                "pid": int(p.pid),
                "memory": int(p.usedGpuMemory or 0),
                "gi": int(getattr(p, "gpuInstanceId", _NO_INSTANCE)),
            }
            for p in found
        ]

    def probe(self, pci: str) -> str:
        """Ask the device what only the device can answer; the driver's caches do not count. "" or what failed."""
        handle = nvml_must(nvml_handle, pci)
        nvml_must(nv.nvmlDeviceGetMemoryInfo, handle)
        nvml_must(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU)
        rows = nvml_may(nv.nvmlDeviceGetRemappedRows, handle)
        if rows and rows[3]:
            return "a memory row could not be remapped"
        wish = self._recovery(handle)
        return f"the driver asks for: {wish}" if wish not in (None, "none") else ""

    def _link_counters(self, handle: Any) -> dict[str, dict[str, Any]] | None:
        links: dict[str, dict[str, Any]] = {}
        for link in range(nv.NVML_NVLINK_MAX_LINKS):
            active = nvml_may(nv.nvmlDeviceGetNvLinkState, handle, link)
            if active is None:
                continue
            counts = [
                nvml_may(nv.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind)
                for kind in range(nv.NVML_NVLINK_ERROR_COUNT)
            ]
            links[str(link)] = {"active": bool(active), "errors": sum(c or 0 for c in counts)}
        return links or None

    def _recovery(self, handle: Any) -> str | None:
        values = nvml_may(nv.nvmlDeviceGetFieldValues, handle, [nv.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if values is None or values[0].nvmlReturn != nv.NVML_SUCCESS:
            return None
        return _RECOVERY.get(values[0].value.uiVal, "none")

    # --- events -----------------------------------------------------------------------------------------------------------

    def listen(self, pcis: list[str]) -> list[str]:
        """Report Xid events of these devices from now on. Those that cannot be listened to are returned."""
        deaf: list[str] = []
        if self._events is None:
            self._events = nvml_must(nv.nvmlEventSetCreate)
            threading.Thread(target=self._wait, name="events", daemon=True).start()
        for pci in pcis:
            handle = find_nvml_handle(pci)
            if handle is None:
                deaf.append(pci)
                continue
            self._listening[nvml_pointer(handle)] = pci
            kind = nv.nvmlEventTypeXidCriticalError
            try:
                nv.nvmlDeviceRegisterEvents(handle, kind, self._events)
            except nv.NVMLError:
                deaf.append(pci)
        return deaf

    def _wait(self) -> None:
        while True:
            try:
                event = nv.nvmlEventSetWait(self._events, _EVENT_WAIT_MS)
            except nv.NVMLError as error:
                if error.value == nv.NVML_ERROR_TIMEOUT:
                    continue
                if error.value == nv.NVML_ERROR_GPU_IS_LOST:
                    self._emit({"type": "lost"})
                    threading.Event().wait(_EVENT_WAIT_MS / 1000)  # it says so again and again without waiting
                    continue
                self._emit({"type": "deaf", "message": str(error)})
                return
            if event.eventType == nv.nvmlEventTypeXidCriticalError:
                gi = event.gpuInstanceId
                self._emit(
                    {
                        "type": "xid",
                        "pci": self._listening.get(nvml_pointer(event.device), ""),
                        "code": int(event.eventData),
                        "gi": None if gi == _NO_INSTANCE else int(gi),
                    }
                )
