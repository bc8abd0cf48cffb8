"""What a node lends the workers of its pods."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from remuda.embedded.node.devices.device_manager import KubeletDeviceManager
from remuda.embedded.node.images import ImageStore
from remuda.embedded.node.pod_addresses import PodAddresses
from remuda.embedded.node.runtime_port import PodRuntime
from remuda.embedded.node.slow_devices import DeviceSpeeds
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.link.allocation_port import NodeAgentLink


class NodeSite(msgspec.Struct, frozen=True):
    node: str
    cluster: Cluster
    agent: NodeAgentLink
    runtime: PodRuntime
    addresses: PodAddresses
    images: ImageStore
    clock: Callable[[], float]
    images_changed: Callable[[], None]
    others_gone: Callable[[str], Coroutine[Any, Any, bool]]  # waits for pods that were removed by force; False: none
    speeds: DeviceSpeeds
    devices: Callable[[], KubeletDeviceManager | None] = lambda: None  # None: the agent hands devices out by itself
    events: EventSink = SILENCE
    host: Mapping[str, int | str] = {}  # cpu and memory of the node
    host_address: str = ""
