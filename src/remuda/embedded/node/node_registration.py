"""The node's face in the API: its Node object and its lease.

The lease is renewed four times per length, each node at a moment of its own: nodes that came up together would else all renew
at once for ever after. When it could not be renewed for two thirds of it, `fence` is called once: the manager declares the
node dead at the full length and hands its ranks on, so by then nothing of them may run here any more. `unfence` follows with
the first renewal that gets through. A manager that hears the node beside the API may promise to hand nothing on; while it does,
the node is not fenced (`core.health.fence_bounds`). What is renewed or promised is passed on to the launchers, which stop by
themselves when a node that stands still does not.

Every renewal says how long the lease is: a node that was started with a longer `--lease` than before fences later, and must be
handed on later, too. A shorter one counts once the old one has run out: until then launchers that have not met this process
yet may go by the word of the one before.

With every renewal the Node object is looked at and put right when it does not say what is true: the manager may have called
the node dead meanwhile, somebody may have removed the object, an image may have arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import zlib
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.conditions import is_condition_true, with_condition
from remuda.api.errors import AlreadyExists, ApiError, NotFound
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Node, NodeAddress, NodeStatus, NodeSystemInfo
from remuda.api.meta import JsonObject, ObjectMeta, to_time
from remuda.api.names import LABEL_NODE, RESOURCE_GPU
from remuda.core.health.fence_bounds import FenceCountdown, fence_after_s, launcher_fence_bound_s
from remuda.embedded.node.images import ImageStore
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.backoff import Backoff
from remuda.kube.runtime.leader import lease_micro_time

log = structlog.get_logger(__name__)

_TICK_S = 0.001  # a timer may fire a rounding error early: without a least wait the loop would spin
_PHASES = 16  # moments within a period at which nodes renew
Vouch = Callable[[], Awaitable[float]]  # for how many seconds, counted from the question; 0 = not at all
_REGISTER = Backoff(base_s=0.2, max_s=7.0)


def _node_lease_phase(node: str) -> float:
    """The node's place within a period, 0 to 1: spread evenly over many names, the same for a name each time. In steps, since
    those of one step share commits: a thousand nodes in one process would else make hundreds of them a second."""
    return (zlib.crc32(node.encode()) % _PHASES) / _PHASES


class NodeConfig(msgspec.Struct, frozen=True):
    """`lease_s`: the manager calls the node dead when it has not renewed for that long. `is_manager_apart`: the manager is
    another process, and goes on when this one stands still."""

    name: str
    labels: dict[str, str] = {}
    devices: tuple[str, ...] = ()
    lease_s: float = 8.0
    info: NodeSystemInfo | None = None
    addresses: tuple[NodeAddress, ...] = ()
    host: dict[str, int | str] = {}  # cpu, memory, pods: what the node has beside devices
    is_manager_apart: bool = False


class NodeRegistration:
    def __init__(
        self,
        config: NodeConfig,
        cluster: Cluster,
        images: ImageStore,
        clock: Callable[[], float],
        fence: Callable[[], None],
        unfence: Callable[[], None] = lambda: None,
        amounts: Callable[[NodeStatus], tuple[dict[str, int | str], dict[str, int | str]]] | None = None,
        vouch: Vouch | None = None,
        vouched: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`amounts`: capacity and allocatable, from those the status has now; without it, all devices of the config. `vouch`:
        asks the manager beside the API. `vouched`: told for how long launchers may run on without another word."""
        self._vouch = vouch
        self._tell_launchers = vouched
        self._config = config
        self._cluster = cluster
        self._images = images
        self._clock = clock
        self._fence = fence
        self._unfence = unfence
        self._amounts = amounts or self._all_devices
        self._hurry = asyncio.Event()
        self._countdown = FenceCountdown()  # on the loop's clock
        self._longer = 0, -math.inf  # the length of the lease before, and until when it stands
        self._is_fenced = False

    def refresh(self) -> None:
        """Something to tell: do not wait for the next renewal."""
        self._hurry.set()

    async def register(self) -> None:
        """Returns when the API has the node and its lease, however long it is out of reach: a machine often comes up first."""
        failures = 0
        while True:
            try:
                await self._register()
                return
            except ApiError as error:
                failures += 1
                log.warning("node.not_registered", node=self._config.name, reason=error.reason, error=str(error))
            await asyncio.sleep(_REGISTER.delay(failures))

    async def again(self) -> None:
        """One try. A kubelet that restarts while the API is out of reach runs on, and its lease runs out like anybody's."""
        try:
            await self._register()
        except ApiError as error:
            log.warning("node.not_registered", node=self._config.name, reason=error.reason, error=str(error))

    async def _register(self) -> None:
        try:
            await self._cluster.create(Node, self._wire(self._node()))
        except AlreadyExists:
            await self._publish()
        begun = asyncio.get_running_loop().time()
        with contextlib.suppress(NotFound):
            before = await self._cluster.get(Lease, self._config.name, NODE_LEASE_NAMESPACE)
            self._longer = before.spec.lease_duration_seconds, begun + before.spec.lease_duration_seconds
        await self._renew()
        self._reached(begun)

    def _reached(self, begun: float) -> None:
        # Counts from when it was sent: the manager may never have seen a later moment.
        self._vouched(begun, fence_after_s(self._config.lease_s))
        if self._is_fenced:
            self._is_fenced = False
            self._unfence()

    def _vouched(self, asked_at: float, seconds: float) -> None:
        before = self._countdown.runs_until
        self._countdown.vouched(asked_at, seconds)
        if self._countdown.runs_until <= before:
            return
        left = self._countdown.runs_until - asyncio.get_running_loop().time()
        self._tell_launchers(
            launcher_fence_bound_s(left, self._config.lease_s) if self._config.is_manager_apart else math.inf
        )

    async def keep(self) -> None:
        """Until cancelled. Kept again after a restart, it goes on from the last renewal: the manager counts from there, too."""
        loop, countdown = asyncio.get_running_loop(), self._countdown
        period, patience = self._config.lease_s / 4, fence_after_s(self._config.lease_s)
        if countdown.runs_until == -math.inf:
            countdown.vouched(loop.time(), patience)
        next_try = loop.time() + period * _node_lease_phase(self._config.name)
        while True:
            due = next_try if self._is_fenced else min(next_try, countdown.runs_until)
            await self._pause(due - loop.time())
            if not self._is_fenced and countdown.is_over(loop.time()):
                # Its time is over, or was while this process stood still: only the manager can say that nothing was handed on.
                await self._ask_manager(period)
                self._fence_if_due()
            begun = loop.time()
            if begun >= next_try or self._hurry.is_set():
                self._hurry.clear()
                if begun >= next_try:  # by whole periods: whoever is late or in a hurry keeps its moment
                    next_try += period * (1 + (begun - next_try) // period)
                # A fence waits for no answer.
                if await self._try(period if self._is_fenced else min(period, countdown.runs_until - begun)):
                    self._reached(begun)
                elif not self._is_fenced:
                    await self._ask_manager(min(period, countdown.runs_until - loop.time()))
                    self._fence_if_due()

    def _fence_if_due(self) -> None:
        if self._countdown.is_over(asyncio.get_running_loop().time()):
            log.warning("node.fence", node=self._config.name, unreachable_s=fence_after_s(self._config.lease_s))
            self._is_fenced = True
            self._fence()

    async def _ask_manager(self, timeout: float) -> None:
        if self._vouch is None:
            return
        asked = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(_TICK_S, timeout)):
                self._vouched(asked, await self._vouch())
        except (OSError, TimeoutError) as error:
            log.debug("node.not_vouched_for", node=self._config.name, error=str(error) or "no answer in time")

    async def _try(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(max(_TICK_S, timeout)):
                await self._renew()
        except (ApiError, TimeoutError) as error:
            log.warning("node.lease_not_renewed", node=self._config.name, error=str(error) or "no answer in time")
            return False
        # Whoever can renew is not cut off. What else there is to say may be refused (a full disk), and is said again.
        try:
            async with asyncio.timeout(timeout):
                await self._publish()
        except (ApiError, TimeoutError) as error:
            log.warning("node.status_not_written", node=self._config.name, error=str(error) or "no answer in time")
        return True

    async def _pause(self, delay: float) -> None:
        try:
            async with asyncio.timeout(max(_TICK_S, delay)):
                await self._hurry.wait()
        except TimeoutError:
            pass

    def _labels(self) -> dict[str, str]:
        return {LABEL_NODE: self._config.name, **self._config.labels}

    def _node(self) -> Node:
        meta = ObjectMeta(name=self._config.name, labels=self._labels())
        return Node(metadata=meta, status=self._status(NodeStatus()))

    def _status(self, old: NodeStatus) -> NodeStatus:
        capacity, allocatable = ({**counts, **self._config.host} for counts in self._amounts(old))
        conditions = old.conditions
        if not is_condition_true(conditions, "Ready"):
            at = to_time(self._clock())
            conditions = with_condition(conditions, "Ready", True, "KubeletReady", "The embedded node is up.", at)
        return msgspec.structs.replace(
            old,
            capacity=capacity,
            allocatable=allocatable,
            conditions=conditions,
            images=[{"names": [image]} for image in sorted(self._images.present)],
            node_info=self._config.info or old.node_info,
            addresses=list(self._config.addresses) or old.addresses,
        )

    def _all_devices(self, old: NodeStatus) -> tuple[dict[str, int | str], dict[str, int | str]]:
        count: dict[str, int | str] = {RESOURCE_GPU: str(len(self._config.devices))}
        return {**old.capacity, **count}, {**old.allocatable, **count}

    def _wire(self, node: Node) -> JsonObject:
        """A kubelet also says when it last looked; here that is when it last had something to say."""
        body = to_wire(node)
        for condition in body["status"]["conditions"]:
            condition["lastHeartbeatTime"] = to_time(self._clock()).strftime("%Y-%m-%dT%H:%M:%SZ")
        return body

    async def _publish(self) -> None:
        name = self._config.name
        try:
            old = await self._cluster.get(Node, name)
        except NotFound:
            await self._cluster.create(Node, self._wire(self._node()))
            return
        missing = {k: v for k, v in self._labels().items() if old.labels.get(k) != v}
        if missing:
            old = await self._cluster.patch(Node, name, {"metadata": {"labels": missing}})
        new = self._status(old.status)
        if new != old.status:
            body = self._wire(msgspec.structs.replace(old, status=new))
            await self._cluster.patch(Node, name, {"status": body["status"]}, subresource="status")

    async def _renew(self) -> None:
        # As text: a real API server refuses lease times without exactly six digits of microseconds.
        name, now = self._config.name, lease_micro_time(to_time(self._clock()))
        spec: JsonObject = {"renewTime": now, "holderIdentity": name, "leaseDurationSeconds": self._lease_length_s()}
        try:
            await self._cluster.patch(Lease, name, {"spec": spec}, NODE_LEASE_NAMESPACE)
        except NotFound:
            meta = {"name": name, "namespace": NODE_LEASE_NAMESPACE}
            await self._cluster.create(Lease, {"metadata": meta, "spec": {**spec, "acquireTime": now}})

    def _lease_length_s(self) -> int:
        own, (before, until) = max(1, math.ceil(self._config.lease_s)), self._longer
        return max(own, before) if asyncio.get_running_loop().time() < until else own
