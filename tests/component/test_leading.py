"""`remuda manager`: one leads, the others wait; the next one goes on where it was; pods are written for kubelets."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace, Pod
from remuda.api.meta import ObjectMeta
from remuda.api.training import TrainingJob
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.leader import LeaderTerm
from remuda.kube.runtime.leader_lease import LeaseTiming
from remuda.runtime.manager_process import LEASE, ManagerConfig, run_manager
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.gangs import JobBuilder, a_job

CONFIG = ManagerConfig(timing=LeaseTiming(15, 10, 2), agent_root="/agents")


class Ear:
    """What one manager said, in order."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.leads = asyncio.Event()

    def waiting(self) -> None:
        self.heard.append("waiting")

    def leading(self, term: LeaderTerm) -> None:
        self.heard.append(f"leading {term.token}")
        self.leads.set()


class World:
    def __init__(self, loop: VirtualLoop) -> None:
        uids = itertools.count(1)
        self.loop = loop
        self.cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: f"uid-{next(uids)}")

    def start(self, name: str, ear: Ear, config: ManagerConfig = CONFIG) -> asyncio.Task[None]:
        work = run_manager(
            config,
            self.cluster,
            self.cluster,
            identity=name,
            said=ear,
            clock=self.loop.clock,
            elapsed=self.loop.time,
        )
        return asyncio.create_task(work, name=name)

    async def holder(self) -> str:
        return (await self.cluster.get(Lease, LEASE, CONFIG.lease_namespace)).spec.holder_identity or ""

    async def submit(self, job: JobBuilder) -> None:
        made = job.build()
        new = ObjectMeta(name=made.name, namespace=made.namespace)
        await self.cluster.create(TrainingJob, msgspec.structs.replace(made, metadata=new))

    async def pods(self, count: int) -> list[Pod]:
        async with asyncio.timeout(60):
            while len(found := (await self.cluster.list(Pod)).items) < count:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
        return found


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_one_leads_and_the_next_takes_over_at_once_when_it_ends() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        world, one, two = World(loop), Ear(), Ear()
        await world.cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})
        first = world.start("one", one)
        await one.leads.wait()
        second = world.start("two", two)
        await world.submit(a_job("train").replicas(2).gpus(1))
        await world.pods(2)
        await asyncio.sleep(60)
        assert two.heard == ["waiting"]
        assert await world.holder() == "one"

        before = loop.time()
        await end(first)
        async with asyncio.timeout(CONFIG.timing.lease_s):
            await two.leads.wait()
        assert loop.time() - before < CONFIG.timing.lease_s, "the lease was given back, not waited out"
        assert two.heard == ["waiting", "leading 1"]
        await world.cluster.delete(Pod, "train-worker-0", "default", grace_s=0)
        names = {pod.name for pod in await world.pods(2)}
        assert "train-worker-1" in names, "what the first one made is known to the second"
        await end(second)
        assert await world.holder() == ""

    run_virtual(main(), loop)


def test_pods_are_written_for_kubelets() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        world, ear = World(loop), Ear()
        await world.cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})
        manager = world.start("one", ear)
        await world.submit(a_job("train").replicas(1).gpus(1))
        (pod,) = await world.pods(1)
        command = pod.spec.containers[0].command
        assert command[0] == "python3"
        assert command[-4:] == ["/run/remuda/launch/remuda-launch.pyz", "--", "python", "train.py"]
        assert pod.annotations["remuda.dev/launch"] == "container"
        await end(manager)

    run_virtual(main(), loop)


def test_a_cluster_without_what_we_stand_on_is_refused() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        ear = Ear()
        with pytest.raises(Refusal) as refused:
            await World(loop).start("one", ear)
        assert refused.value.reason == "NamespaceNotFound"
        assert ear.heard == []

    run_virtual(main(), loop)


@pytest.mark.parametrize("on_demand", [True, False])
def test_a_gang_larger_than_the_cluster_makes_its_pods_only_where_nodes_come_for_them(on_demand: bool) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        world, ear = World(loop), Ear()
        await world.cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})
        manager = world.start("one", ear, msgspec.structs.replace(CONFIG, nodes_on_demand=on_demand))
        await world.submit(a_job("train").replicas(100).gpus(1))
        if on_demand:
            await world.pods(100)
        else:
            await asyncio.sleep(30)
            assert (await world.cluster.get(TrainingJob, "train", "default")).status.reason == "GangTooLarge"
            assert not await world.pods(0)
        await end(manager)

    run_virtual(main(), loop)
