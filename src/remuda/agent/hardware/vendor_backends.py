"""What differs by maker: the files a container needs to use a device, and the tool that resets one.

Everything about looking, asking and what a hang means is `hardware_backend`'s.

NVIDIA: NVML (nvidia-ml-py, module `pynvml`) in the driver process. A slice is reached through two capability files whose numbers
the kernel driver lists under /proc.

AMD: amdsmi in the driver process. It comes with the node's ROCm, not with this project; where it cannot be imported, `open`
refuses and `sysfs` serves the node. Not run on real hardware yet: the tests use a module with amdsmi's names. AMD partitions
(SPX, CPX) are not cut here.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.agent.hardware.hardware_backend import HardwareBackend
from remuda.api.names import RESOURCE_GPU

RESOURCE_AMD = "amd.com/gpu"
CONTROL_FILES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
CAPABILITY = "DeviceFileMinor:"


class NvmlBackend(HardwareBackend):
    make, source, resource = "nvml", "nvml", RESOURCE_GPU
    reset_command = ("nvidia-smi", "--gpu-reset", "-i", "{places}")

    def device_files(self, device: str) -> Sequence[str]:
        number = self.hardware.number(device)
        minor = self.hardware.ids.devices[number].minor
        files = [f"/dev/nvidia{minor}", *CONTROL_FILES]
        for piece in self.hardware.cut.get(number, []):
            if self.hardware.slice(number, piece).id == device:
                instance = f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{piece['gi']}"
                for access in (f"{instance}/access", f"{instance}/ci{piece['ci']}/access"):
                    files.append(f"/dev/nvidia-caps/nvidia-cap{self._capability(access)}")
        return tuple(files)

    def _capability(self, access: str) -> int:
        for line in (self._root / access).read_text(encoding="ascii").splitlines():
            if line.startswith(CAPABILITY):
                return int(line.removeprefix(CAPABILITY))
        raise OSError(f"/{access} names no {CAPABILITY.rstrip(':')}")


class AmdBackend(HardwareBackend):
    make, source, resource = "amd", "amdsmi", RESOURCE_AMD
    reset_command = ("amd-smi", "reset", "--gpureset", "--gpu", "{places}")

    def device_files(self, device: str) -> Sequence[str]:
        """The compute interface, and the render node the kernel made for this device."""
        pci = self.hardware.ids.devices[self.hardware.number(device)].pci
        nodes = sorted((self._root / "sys/bus/pci/devices" / pci / "drm").glob("renderD*"))
        return ("/dev/kfd", *(f"/dev/dri/{node.name}" for node in nodes))
