"""AMD devices through amdsmi, in the driver process (`amd_calls`).

amdsmi comes with the node's ROCm, not with this project; where it cannot be imported, `open` refuses and `sysfs` serves the node.
Not run on real hardware yet: the tests use a module with amdsmi's names. AMD partitions (SPX, CPX) are not cut here.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.agent.hardware.hardware_backend import HardwareBackend

RESOURCE_AMD = "amd.com/gpu"


class AmdBackend(HardwareBackend):
    make, source, resource = "amd", "amdsmi", RESOURCE_AMD
    reset_command = ("amd-smi", "reset", "--gpureset", "--gpu", "{places}")

    def device_files(self, device: str) -> Sequence[str]:
        """The compute interface, and the render node the kernel made for this device."""
        pci = self.census.ids.devices[self.census.number(device)].pci
        nodes = sorted((self._root / "sys/bus/pci/devices" / pci / "drm").glob("renderD*"))
        return ("/dev/kfd", *(f"/dev/dri/{node.name}" for node in nodes))
