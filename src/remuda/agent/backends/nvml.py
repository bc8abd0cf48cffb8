"""NVIDIA devices through NVML (nvidia-ml-py, module `pynvml`), in the driver process.

Everything about looking, asking and what a hang means is `hardware`'s; here is what only NVIDIA nodes have: the files a container
needs. A slice is reached through two capability files whose numbers the kernel driver lists under /proc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from remuda.agent.backends.hardware import HardwareBackend, HardwareConfig
from remuda.agent.backends.sysfs import nearest_nics
from remuda.api.names import RESOURCE_GPU

CONTROL_FILES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
CAPABILITY = "DeviceFileMinor:"


class NvmlBackend(HardwareBackend):
    """`root`: where /proc and /sys are looked for. `environment`: of the driver process."""

    def __init__(
        self,
        config: HardwareConfig,
        clock: Callable[[], float],
        *,
        environment: Mapping[str, str] | None = None,
        root: Path = Path("/"),
    ) -> None:
        super().__init__(
            config,
            clock,
            make="nvml",
            source="nvml",
            resource=RESOURCE_GPU,
            environment=environment,
            nics=lambda pcis: nearest_nics(root / "sys", pcis),
        )
        self._root = root

    def device_files(self, device: str) -> Sequence[str]:
        number = self.census.number(device)
        minor = self.census.ids.devices[number].minor
        files = [f"/dev/nvidia{minor}", *CONTROL_FILES]
        for piece in self.census.cut.get(number, []):
            if self.census.slice(number, piece).id == device:
                instance = f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{piece['gi']}"
                for access in (f"{instance}/access", f"{instance}/ci{piece['ci']}/access"):
                    files.append(f"/dev/nvidia-caps/nvidia-cap{self._capability(access)}")
        return tuple(files)

    def _capability(self, access: str) -> int:
        for line in (self._root / access).read_text(encoding="ascii").splitlines():
            if line.startswith(CAPABILITY):
                return int(line.removeprefix(CAPABILITY))
        raise OSError(f"/{access} names no {CAPABILITY.rstrip(':')}")
