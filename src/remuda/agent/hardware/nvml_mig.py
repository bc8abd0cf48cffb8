"""MIG through NVML: the slices of a device listed, made and unmade. Runs in the driver process only.

A slice is a GPU instance (a profile at a place) with one compute instance that has all of it. Profiles are found by the name the
driver gives them; a driver too old to name them is helped by the rule the names follow.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import pynvml as nv

from remuda.agent.hardware.driver_port import DriverFault
from remuda.agent.hardware.nvml_ask import nvml_handle, nvml_may, nvml_must, nvml_text

_GIB = 1 << 30
_MIG_OFF, _MIG_ON = 0, 1
_SHARED = nv.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED


class MigCalls:
    def slices(self, pci: str) -> list[dict[str, Any]]:
        handle = nvml_must(nvml_handle, pci)
        mode = nvml_may(nv.nvmlDeviceGetMigMode, handle)
        if not mode or mode[0] != _MIG_ON:
            return []
        profiles = {info["id"]: info for info in self._profiles(handle)}
        found: list[dict[str, Any]] = []
        for position in range(nvml_may(nv.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = nvml_may(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
            if part is None:
                continue
            gi = nvml_must(nv.nvmlDeviceGetGpuInstanceId, part)
            instance = nvml_must(nv.nvmlDeviceGetGpuInstanceById, handle, gi)
            info = nvml_must(nv.nvmlGpuInstanceGetInfo, instance)
            profile = profiles.get(info.profileId, {"name": "", "memory": 0})
            found.append(
                {
                    "uuid": nvml_text(nvml_must(nv.nvmlDeviceGetUUID, part)),
                    "gi": gi,
                    "ci": nvml_may(nv.nvmlDeviceGetComputeInstanceId, part) or 0,
                    "profile": profile["name"],
                    "memory": profile["memory"],
                    "start": int(info.placement.start),
                }
            )
        return sorted(found, key=lambda s: (s["start"], s["gi"]))

    def apply_slices(self, pci: str, layout: list[list[Any]]) -> list[dict[str, Any]]:
        """Exactly these ([profile, start or null]) and no others. When one cannot be made, those of before are made again."""
        handle = nvml_must(nvml_handle, pci)
        before = [[s["profile"], s["start"]] for s in self.slices(pci)]
        mode = nvml_must(nv.nvmlDeviceGetMigMode, handle)
        if layout and mode[0] != _MIG_ON:
            nvml_must(nv.nvmlDeviceSetMigMode, handle, _MIG_ON)
            if nvml_must(nv.nvmlDeviceGetMigMode, handle)[0] != _MIG_ON:
                raise DriverFault("ResetRequired", "MIG mode takes effect after a reset of the device")
        self._destroy_all(handle)
        try:
            for profile, start in layout:
                self._create(handle, profile, start)
        except DriverFault:
            self._destroy_all(handle)
            for profile, start in before:
                self._create(handle, profile, start)
            raise
        if not layout and mode[0] == _MIG_ON:
            nvml_must(nv.nvmlDeviceSetMigMode, handle, _MIG_OFF)
        return self.slices(pci)

    def _create(self, handle: Any, profile: str, start: int | None) -> None:
        info = next((p for p in self._profiles(handle) if p["name"] == profile), None)
        if info is None:
            raise DriverFault("UnknownProfile", f"the driver has no profile {profile}")
        if start is None:
            instance = nvml_must(nv.nvmlDeviceCreateGpuInstance, handle, info["id"])
        else:
            place = nv.c_nvmlGpuInstancePlacement_t(start, self._size_at(handle, info["id"], start))
            instance = nvml_must(nv.nvmlDeviceCreateGpuInstanceWithPlacement, handle, info["id"], ctypes.byref(place))
        kind = getattr(nv, f"NVML_COMPUTE_INSTANCE_PROFILE_{info['compute']}_SLICE")
        whole = nvml_must(nv.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, kind, _SHARED)
        nvml_must(nv.nvmlGpuInstanceCreateComputeInstance, instance, whole.id)

    def _size_at(self, handle: Any, profile: int, start: int) -> int:
        places = (nv.c_nvmlGpuInstancePlacement_t * 16)()
        count = ctypes.c_uint(16)
        nvml_must(
            nv.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile, ctypes.byref(places), ctypes.byref(count)
        )
        size = next((p.size for p in places[: count.value] if p.start == start), None)
        if size is None:
            raise DriverFault("UnknownPlace", f"the driver has no place {start} for the profile")
        return int(size)

    def _destroy_all(self, handle: Any) -> None:
        for profile in self._profiles(handle):
            for instance in _mig_handles(nv.c_nvmlGpuInstance_t, nv.nvmlDeviceGetGpuInstances, handle, profile["id"]):
                for kind in range(nv.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
                    info = nvml_may(nv.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, kind, _SHARED)
                    if info is None:
                        continue
                    made = _mig_handles(
                        nv.c_nvmlComputeInstance_t, nv.nvmlGpuInstanceGetComputeInstances, instance, info.id
                    )
                    for part in made:
                        nvml_must(nv.nvmlComputeInstanceDestroy, part)
                nvml_must(nv.nvmlGpuInstanceDestroy, instance)

    def _profiles(self, handle: Any) -> list[dict[str, Any]]:
        total = nvml_must(nv.nvmlDeviceGetMemoryInfo, handle).total
        found: list[dict[str, Any]] = []
        for number in range(nv.NVML_GPU_INSTANCE_PROFILE_COUNT):
            info = nvml_may(nv.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
            if info is None:
                info = nvml_may(nv.nvmlDeviceGetGpuInstanceProfileInfo, handle, number, version=1)
            if info is None:
                continue
            name = nvml_text(getattr(info, "name", b"")).removeprefix("MIG ")
            memory = int(info.memorySizeMB) << 20
            if not name:
                name = f"{info.sliceCount}g.{_nvml_profile_gigabytes(memory, total)}gb"
                name += "+me" if number == nv.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1 else ""
            found.append({"id": int(info.id), "name": name, "compute": int(info.sliceCount), "memory": memory})
        return found


def _nvml_profile_gigabytes(memory: int, total: int) -> int:
    """The number in a profile's name: the eighths of the device it has, of the device's memory in whole GB."""
    eighths = math.ceil(memory / total * 8)
    return round(eighths / 8 * math.ceil(total / _GIB))


def _mig_handles(kind: Any, ask: Callable[..., Any], parent: Any, profile: int) -> list[Any]:
    found = (kind * 16)()
    count = ctypes.c_uint(16)
    if nvml_may(ask, parent, profile, ctypes.byref(found), ctypes.byref(count)) is None:
        return []
    return [found[n] for n in range(count.value)]
