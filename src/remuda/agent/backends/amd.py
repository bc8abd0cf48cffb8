"""AMD devices through amdsmi, in the driver process (`amd_calls`).

amdsmi comes with the node's ROCm, not with this project; where it cannot be imported, `open` refuses and `sysfs` serves the node.
Not run on real hardware yet: the tests use a module with amdsmi's names. AMD partitions (SPX, CPX) are not cut here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from remuda.agent.backends.hardware import HardwareBackend, HardwareConfig
from remuda.agent.backends.sysfs import nearest_nics

RESOURCE_AMD = "amd.com/gpu"


class AmdBackend(HardwareBackend):
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
            make="amd",
            source="amdsmi",
            resource=RESOURCE_AMD,
            environment=environment,
            nics=lambda pcis: nearest_nics(root / "sys", pcis),
        )
        self._root = root

    def device_files(self, device: str) -> Sequence[str]:
        """The compute interface, and the render node the kernel made for this device."""
        pci = self.census.ids.devices[self.census.number(device)].pci
        nodes = sorted((self._root / "sys/bus/pci/devices" / pci / "drm").glob("renderD*"))
        return ("/dev/kfd", *(f"/dev/dri/{node.name}" for node in nodes))
