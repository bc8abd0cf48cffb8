"""`EmbeddedNode`: one node of the embedded cluster, as a kubelet would be.

It has one worker for each pod bound to it, fed from outside (`feed`): all nodes share one watch. Its face in the API (Node
object, lease, self-fencing) is `registration`.

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

from remuda.api.core_v1 import Pod
from remuda.api.meta import to_seconds
from remuda.kube.cluster import Cluster
from remuda.link.allocation import NodeAgent
from remuda.node import containers
from remuda.node.addresses import PodAddresses
from remuda.node.containers import ContainerRecord, Exit, Phase, backoff_of, remembered
from remuda.node.images import ImageStore
from remuda.node.lifecycle import PodRecord
from remuda.node.registration import NodeConfig, Registration
from remuda.node.runtime import Adopted, ContainerKey, PodRuntime
from remuda.node.worker import PodWorker, Site

log = structlog.get_logger(__name__)


class EmbeddedNode:
    def __init__(
        self,
        config: NodeConfig,
        *,
        cluster: Cluster,
        agent: NodeAgent,
        runtime: PodRuntime,
        addresses: PodAddresses,
        clock: Callable[[], float],
        images: ImageStore | None = None,
        silence: Callable[[], None] = lambda: None,
    ) -> None:
        """`silence` is called when the node is lost: whatever speaks for it elsewhere (its agent) must fall silent too."""
        self.config = config
        self.agent = agent
        self.runtime = runtime
        self.images = images if images is not None else ImageStore()
        self.is_lost = False
        self._addresses = addresses
        self._clock = clock
        self._silence = silence
        self._registration = Registration(config, cluster, self.images, clock, agent.fence, agent.unfence)
        self._workers: dict[str, PodWorker] = {}
        self._orphans: dict[str, set[str]] = {}  # uid -> containers still to die
        self._adopted: dict[str, list[Adopted]] = {}
        self._is_synced = False
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order: a simulated run must repeat exactly
        self._site = Site(
            node=config.name,
            cluster=cluster,
            agent=agent,
            runtime=runtime,
            addresses=addresses,
            images=self.images,
            clock=clock,
            images_changed=self._registration.refresh,
            others_gone=self._others_gone,
        )
        runtime.on_exit(self._container_exited)

    @property
    def name(self) -> str:
        return self.config.name

    # --- life of the node ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find what runs here already, register, keep the lease. Pods come with `sync`."""
        for found in await self.runtime.adopt():
            self._adopted.setdefault(found.key.uid, []).append(found)
            if found.address:
                self._addresses.recover(found.key.uid, found.address)
        await self._registration.register()
        self._spawn(self._registration.keep())

    def sync(self, pods: Iterable[Pod]) -> None:
        """All pods bound to this node, once, after `start`; what the machine has beyond them is ended."""
        for pod in pods:
            self.pod_changed(pod)
        for uid, found in self._adopted.items():
            if uid not in self._workers:
                self._end_orphan(uid, found)
        self._adopted.clear()
        self._is_synced = True

    def pod_changed(self, pod: Pod) -> None:
        if self.is_lost:
            return
        worker = self._workers.get(pod.uid)
        if worker is not None:
            worker.update(pod)
            return
        worker = PodWorker(self._site, pod, self._first_record(pod))
        self._workers[pod.uid] = worker
        self._spawn(self._work(worker))

    def pod_gone(self, pod: Pod) -> None:
        worker = self._workers.get(pod.uid)
        if worker is not None:
            worker.vanish()

    def find(self, name: str, namespace: str) -> PodWorker | None:
        """The newest of that name: one that was removed by force may still be dying beside it."""
        found = (w for w in reversed(self._workers.values()) if (w.pod.name, w.pod.namespace) == (name, namespace))
        return next(found, None)

    async def stop(self) -> None:
        """Let go: containers run on and the next start finds them."""
        await self._cancel()
        await self.runtime.close()

    async def halt(self, grace_s: float = 5.0) -> None:
        """End every container but keep the pods: the next start runs them again, as after a reboot."""
        await self._cancel()
        workers = () if self.is_lost else self._workers.values()  # of a lost node nothing runs, and nobody will tell
        records = [(w.pod.uid, c) for w in workers for c in w.record.containers]
        live = {ContainerKey(uid, c.name) for uid, c in records if c.is_live}
        ended = asyncio.Event()

        def exited(key: ContainerKey, run: int, end: Exit) -> None:
            live.discard(key)
            if not live:
                ended.set()

        self.runtime.on_exit(exited)
        for key in tuple(live):
            self.runtime.stop(key, grace_s)
        if not await _within(grace_s, ended, live):
            for key in tuple(live):
                self.runtime.kill(key)
            await _within(grace_s, ended, live)
        await self.runtime.close()

    def lose(self) -> None:
        """Drill node-lost: the power is gone. Nothing is renewed or reported from here on, and every process is dead."""
        if self.is_lost:
            return
        self.is_lost = True
        for task in self._tasks:
            task.cancel()
        self.runtime.power_off()
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
        """What is known of a pod this life of the node has not seen before."""
        now = self._clock()
        found = {a.key.container: a for a in self._adopted.get(pod.uid, ())}
        statuses = {s.name: s for s in pod.status.container_statuses}
        records: list[ContainerRecord] = []
        for spec in pod.spec.containers:
            record = remembered(spec.name, statuses.get(spec.name), now)
            adopted = found.get(spec.name)
            records.append(record if adopted is None else _joined(record, adopted, pod))
        address = next((a.address for a in found.values() if a.address), pod.status.pod_ip)
        if address and not pod.is_terminal:
            address = self._addresses.recover(pod.uid, address)
        started = pod.status.start_time
        return PodRecord(
            containers=tuple(records),
            # Whatever was bound before this life of the node may have left devices with the agent.
            held=bool(found) or not (self._is_synced or pod.is_terminal),
            address=address,
            start_time=to_seconds(started) if started is not None else now,
            notice=self.runtime.notice(pod),
            untold=next((r.exit.code for r in records if r.exit is not None), None),
        )

    def _container_exited(self, key: ContainerKey, run: int, end: Exit) -> None:
        if self.is_lost:
            return
        worker = self._workers.get(key.uid)
        if worker is not None:
            worker.container_exited(key.container, run, end)
        elif key.uid in self._orphans:
            waiting = self._orphans[key.uid]
            waiting.discard(key.container)
            if not waiting:
                self._spawn(self._bury(key.uid))
        else:  # found alive, and ended before its pod was
            found = self._adopted.get(key.uid, [])
            ended = [msgspec.structs.replace(a, exit=end) if (a.key, a.run) == (key, run) else a for a in found]
            self._adopted[key.uid] = ended

    def _end_orphan(self, uid: str, found: list[Adopted]) -> None:
        """Its pod was removed while nobody was here: devices and processes must not outlive it."""
        live = {a.key.container for a in found if a.exit is None}
        self._orphans[uid] = live
        for container in live:
            self.runtime.kill(ContainerKey(uid, container))
        if not live:
            self._spawn(self._bury(uid))

    async def _bury(self, uid: str) -> None:
        await self.agent.release(uid)
        self._addresses.release(uid)
        self.runtime.forget(uid)
        self._orphans.pop(uid, None)

    async def _others_gone(self, uid: str) -> bool:
        """Wait for pods that were removed by force and still hold devices; False when there are none."""
        ending = [w for w in self._workers.values() if w.record.vanished and w.record.held and w.pod.uid != uid]
        for worker in ending:
            await worker.gone.wait()
        return bool(ending)


async def _within(seconds: float, ended: asyncio.Event, live: set[ContainerKey]) -> bool:
    if not live:
        return True
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        return False
    return True


def _joined(record: ContainerRecord, found: Adopted, pod: Pod) -> ContainerRecord:
    """What the API says of a container and what the machine has of it. The machine is right about its newest run."""
    last = record.last
    if found.run > record.run and found.previous is not None:
        last = containers.terminated(msgspec.structs.replace(record, started_at=0.0, exit=found.previous))
    running = msgspec.structs.replace(
        record, phase=Phase.RUNNING, run=found.run, started_at=found.started_at, exit=None, last=last, not_before=0.0
    )
    if found.exit is None:
        return running
    return containers.exited(running, found.exit, backoff_of(pod))
