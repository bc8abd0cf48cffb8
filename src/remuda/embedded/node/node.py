"""`EmbeddedNode`: one node of the embedded cluster, as a kubelet would be.

It has one worker for each pod bound to it, fed from outside (`pod_feed`): all nodes share one watch. Its face in the API (Node
object, lease, self-fencing) is `node_registration`.

Devices are given by its device manager (`devices`), which is the kubelet's in miniature: an agent that serves plugins is dialled
through the node's sockets, or called in process by a simulated node.

Killed and started again, it finds its containers through the runtime and its pods through the API: `start` adopts, then
`sync` joins the two. A container whose pod is gone is ended; a pod whose container is gone is told so; a container that
still runs is neither started twice nor disturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
import structlog

from remuda.api.kubernetes.core_v1 import NodeStatus, Pod
from remuda.embedded.node.container_record import ContainerExit
from remuda.embedded.node.devices.device_ledger import LedgerMemory
from remuda.embedded.node.devices.device_service import Amounts, KubeletDeviceService, KubeletDeviceSettings
from remuda.embedded.node.images import ImageStore
from remuda.embedded.node.node_registration import NodeConfig, NodeRegistration, Vouch
from remuda.embedded.node.node_site import NodeSite
from remuda.embedded.node.orphans import OrphanedPods
from remuda.embedded.node.partition import NodePartition
from remuda.embedded.node.pod_addresses import PodAddresses
from remuda.embedded.node.pod_lifecycle import PodRecord
from remuda.embedded.node.pod_recall import first_pod_record, record_after_process_end
from remuda.embedded.node.pod_worker import PodWorker
from remuda.embedded.node.runtime_port import AdoptedContainer, ContainerKey, ExitListener, PodRuntime
from remuda.embedded.node.shutdown import end_all_containers
from remuda.embedded.node.slow_devices import DeviceSpeeds
from remuda.kube.cluster import Cluster
from remuda.kube.guarded_cluster import ClusterGate
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.link.allocation_port import NodeAgentLink

log = structlog.get_logger(__name__)

REBOOT_S = 5.0  # for containers to die of it
TELL_S = 0.2  # changed counts are gathered that long before they are published


class EmbeddedNode:
    def __init__(
        self,
        config: NodeConfig,
        *,
        cluster: Cluster,
        agent: NodeAgentLink,
        runtime: PodRuntime,
        addresses: PodAddresses,
        clock: Callable[[], float],
        images: ImageStore | None = None,
        silence: Callable[[], None] = lambda: None,
        devices: KubeletDeviceSettings | None = None,
        events: EventSink = SILENCE,
        gate: ClusterGate | None = None,
        vouch: Vouch | None = None,
    ) -> None:
        """`silence` is called when the node is lost: whatever speaks for it elsewhere (its agent) must fall silent too.
        `gate`: what stands between the node's calls and the API, to be shut by a drill. `devices`: without it, the agent hands
        devices out by itself and every one of the config counts. `vouch`: asks the manager beside the API whether the node's
        ranks stay its own."""
        self.config = config
        self.agent = agent
        self.runtime = runtime
        self.images = images if images is not None else ImageStore()
        self.is_lost = False
        self._addresses = addresses
        self._clock = clock
        self._silence = silence
        self._partition = NodePartition(config.name, gate)
        self._speeds = DeviceSpeeds()
        self._device_settings = devices
        self.devices: KubeletDeviceService | None = self._new_devices() if devices is not None else None
        amounts = self._amounts if devices is not None else None
        self._registration = NodeRegistration(
            config, cluster, self.images, clock, agent.fence, agent.unfence, amounts, vouch, agent.vouch
        )
        self._telling: asyncio.TimerHandle | None = None
        self._workers: dict[str, PodWorker] = {}
        self._orphans = OrphanedPods(agent, runtime, addresses, self._spawn)
        self._adopted: dict[str, list[AdoptedContainer]] = {}
        self._is_synced = False
        self._late: dict[str, Pod] | None = None  # pods that came while the node began anew; None: it does not
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order: a simulated run must repeat exactly
        self._site = NodeSite(
            node=config.name,
            cluster=cluster,
            agent=agent,
            runtime=runtime,
            addresses=addresses,
            images=self.images,
            clock=clock,
            images_changed=self._registration.refresh,
            others_gone=self._others_gone,
            devices=lambda: self.devices.manager if self.devices is not None else None,
            events=events,
            speeds=self._speeds,
            host=config.host,
            host_address=next((a.address for a in config.addresses if a.type == "InternalIP"), ""),
        )
        runtime.on_exit(self._container_exited)

    @property
    def name(self) -> str:
        return self.config.name

    # --- life of the node ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """The sockets plugins register at, when they should be there before anything else of the node is."""
        if self.devices is not None:
            await self.devices.start()

    def bound_pods(self) -> list[Pod]:
        """Every pod here that may still get or hold devices, as the agent may see them: of several that wait for the same, only
        the one whose turn it is. On a real cluster the scheduler sees to that, by having one of a shape on its way at a time."""
        manager = self.devices.manager if self.devices is not None else None
        return [p for p in self._active() if manager is None or not manager.is_rival(p)]

    def _active(self) -> list[Pod]:
        return [w.pod for w in self._workers.values() if w.is_active]

    async def start(self) -> None:
        """Find what runs here already, register, keep the lease. Pods come with `sync`."""
        for found in await self.runtime.adopt():
            self._adopted.setdefault(found.key.uid, []).append(found)
            if found.address:
                self._addresses.recover(found.key.uid, found.address)
        await self.open()
        if self.devices is not None:
            await self.devices.connect()
        await self._register()

    async def _register(self) -> None:
        await self._registration.register()
        self._spawn(self._registration.keep())

    def sync(self, pods: Iterable[Pod]) -> None:
        """All pods bound to this node, once, after `start`; what the machine has beyond them is ended."""
        pods = list(pods)
        if self.devices is not None:
            self.devices.recall(pods)
        for pod in pods:
            self.pod_changed(pod)
        for uid, found in self._adopted.items():
            if uid not in self._workers:
                self._orphans.end(uid, found)
        self._adopted.clear()
        self._is_synced = True

    def pod_changed(self, pod: Pod) -> None:
        if self.is_lost:
            return
        if self._partition.misses(pod, is_gone=False):
            return
        worker = self._workers.get(pod.uid)
        if worker is not None:
            worker.update(pod)
            return
        if self._late is not None:
            self._late[pod.uid] = pod
            return
        self._take_on(PodWorker(self._site, pod, self._first_record(pod)))

    def _take_on(self, worker: PodWorker) -> None:
        self._workers[worker.pod.uid] = worker
        self._spawn(self._work(worker))

    def pod_gone(self, pod: Pod) -> None:
        if self._partition.misses(pod, is_gone=True):
            return
        if self._late is not None:
            self._late.pop(pod.uid, None)
        worker = self._workers.get(pod.uid)
        if worker is not None:
            worker.vanish()

    def find(self, name: str, namespace: str) -> PodWorker | None:
        """The newest of that name: one that was removed by force may still be dying beside it."""
        found = (w for w in reversed(self._workers.values()) if (w.pod.name, w.pod.namespace) == (name, namespace))
        return next(found, None)

    def partition(self) -> None:
        """Drill node-partition: the API cannot be reached and nothing is heard of it; what runs here runs on."""
        if self._partition.cut():
            self.agent.isolate(True)

    def heal(self) -> None:
        """The end of a partition: what happened meanwhile is caught up with."""
        missed = self._partition.mend()
        if missed is None:
            return
        for pod, is_gone in missed:
            if is_gone:
                self.pod_gone(pod)
            else:
                self.pod_changed(pod)
        self.agent.isolate(False)

    def set_speed(self, speed: float, device: str = "") -> None:
        """Drills device-slow and power-cap: how fast a device, or every one, works from now on."""
        if device:
            self._speeds.set_device(device, speed)
        else:
            self._speeds.set_node(speed)
        for worker in self._workers.values():
            worker.apply_speed()

    async def restart(self) -> None:
        """As when a kubelet is restarted: it forgets everything but its checkpoint, its sockets are made anew, its plugins have
        to come again and until then none of their devices count. Containers run on, and keep theirs."""
        await self._begin_anew(is_reboot=False)

    async def reboot(self) -> None:
        """The machine restarts: every container is gone, and then as `restart`. A pod that is admitted before the plugin of
        its devices is back fails, as on a kubelet."""
        await self._begin_anew(is_reboot=True)

    async def _begin_anew(self, *, is_reboot: bool) -> None:
        if self.is_lost or self._late is not None:
            return
        self._late = {}
        await self._cancel()
        if is_reboot:
            await self._end_all(self.runtime.kill, REBOOT_S, self._container_exited)
        if self.devices is not None:
            await self.devices.stop()
            self.devices = self._new_devices(self.devices.memory())
            await self.devices.start()
        late, self._late = self._late, None
        workers, self._workers = self._workers, {}
        for old in workers.values():
            if not old.gone.is_set():
                self._take_on(PodWorker(self._site, old.pod, record_after_process_end(old.record)))
        for pod in late.values():
            self.pod_changed(pod)
        self._orphans.resume()
        await self._registration.again()
        self._spawn(self._registration.keep())
        if self.devices is not None:
            self.devices.connect_later()

    async def stop(self) -> None:
        """Let go: containers run on and the next start finds them."""
        await self._cancel()
        await self._close_devices()
        await self.runtime.close()

    async def halt(self, grace_s: float = 5.0) -> None:
        """End every container but keep the pods: the next start runs them again, as after a reboot."""
        await self._cancel()
        await self._close_devices()
        if not self.is_lost:  # of a lost node nothing runs, and nobody will tell
            await self._end_all(lambda key: self.runtime.stop(key, grace_s), grace_s)
        await self.runtime.close()

    async def _end_all(
        self, end: Callable[[ContainerKey], None], grace_s: float, told: ExitListener | None = None
    ) -> None:
        """Of every container, with no worker to start it again."""
        records = [(w.pod.uid, c) for w in self._workers.values() for c in w.record.every]
        live = [ContainerKey(uid, c.name) for uid, c in records if c.is_live]
        await end_all_containers(self.runtime, live, end, grace_s, told)
        self.runtime.on_exit(self._container_exited)

    def lose(self) -> None:
        """Drill node-lost: the power is gone. Nothing is renewed or reported from here on, and every process is dead."""
        if self.is_lost:
            return
        self.is_lost = True
        for task in self._tasks:
            task.cancel()
        self.runtime.power_off()
        if self.devices is not None:
            self.devices.silence()
        self._silence()

    async def _cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def _work(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:
            # A fault of ours in one pod must not take the others along; the pod itself stays as it is and is seen.
            log.exception("node.worker_failed", node=self.name, namespace=worker.pod.namespace, pod=worker.pod.name)
            return
        self._workers.pop(worker.pod.uid, None)

    def _first_record(self, pod: Pod) -> PodRecord:
        record = first_pod_record(
            pod,
            self._adopted.get(pod.uid, ()),
            self._clock(),
            # Whatever was bound before this life of the node may have left devices with the agent.
            held=not (self._is_synced or pod.is_terminal),
            notice=self.runtime.notice(pod),
        )
        if record.address and not pod.is_terminal:
            address = self._addresses.recover(pod.uid, record.address)
            record = msgspec.structs.replace(record, address=address)
        return record

    def _container_exited(self, key: ContainerKey, run: int, end: ContainerExit) -> None:
        if self.is_lost:
            return
        worker = self._workers.get(key.uid)
        if worker is not None:
            worker.container_exited(key.container, run, end)
        elif key.uid in self._orphans:
            self._orphans.exited(key)
        else:  # found alive, and ended before its pod was
            found = self._adopted.get(key.uid, [])
            ended = [msgspec.structs.replace(a, exit=end) if (a.key, a.run) == (key, run) else a for a in found]
            self._adopted[key.uid] = ended

    # --- devices ------------------------------------------------------------------------------------------------------

    def _new_devices(self, memory: LedgerMemory | None = None) -> KubeletDeviceService:
        assert self._device_settings is not None
        return KubeletDeviceService(
            self.config.name,
            self._device_settings,
            agent=self.agent,
            clock=self._clock,
            pods=self._active_pods,
            counts_changed=self._counts_changed,
            health_changed=self._health_changed,
            memory=memory,
        )

    async def _close_devices(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        if self.devices is not None:
            await self.devices.stop()

    def _active_pods(self) -> list[Pod] | None:
        """None while not all pods of the node are known: then nothing may be taken from anybody."""
        return self._active() if self._is_synced else None

    def _amounts(self, old: NodeStatus) -> tuple[Amounts, Amounts]:
        assert self.devices is not None
        return self.devices.amounts(old)

    def _counts_changed(self) -> None:
        """To the node's status, soon: a plugin often has several things to say at once."""
        if self._telling is None and not self.is_lost:
            delay = min(TELL_S, self.config.lease_s / 4)
            self._telling = asyncio.get_running_loop().call_later(delay, self._tell_counts)

    def _tell_counts(self) -> None:
        self._telling = None
        self._registration.refresh()

    def _health_changed(self, uids: frozenset[str]) -> None:
        for uid, worker in self._workers.items():
            if uid in uids:
                worker.health_changed()

    async def _others_gone(self, uid: str) -> bool:
        """Wait for pods that were removed by force and still hold devices; False when there are none."""
        ending = [w for w in self._workers.values() if w.record.vanished and w.record.held and w.pod.uid != uid]
        for worker in ending:
            await worker.gone.wait()
        return bool(ending)
