"""Checklist row 24: a driver roll-out stops after a failed canary; the rest of the pool is untouched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remuda.agent.orders.node_commands import HookOutput
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.names import LABEL_CLIQUE
from remuda.api.rollouts import NodeRollout, NodeRolloutStatus, RolloutPhase
from tests.builders.evidence import note
from tests.builders.world import World, play
from tests.component.world_rig import agent, gpus, hardware, is_up, node_object, run_pods, the_pod

NAMES = ("node-01", "node-02", "node-03")
WANT = "570.124.06"
LABEL = "nvidia.com/cuda.driver-version.full"


class Installer:
    """The hook of every node: puts the driver there, and does what it was told to on some."""

    def __init__(self, world: World, bad: Mapping[str, str] | None = None) -> None:
        self.ran: list[str] = []
        self._bad = bad or {}
        for name in NAMES:
            agent(world, name).orders._rules = agent(world, name).orders._rules.__class__((("/opt/install", "..."),))
            agent(world, name).orders._run = self._for(world, name)
            hardware(world, name).set_driver("550.54")

    def _for(self, world: World, name: str):  # type: ignore[no-untyped-def]
        async def run(command: Sequence[str], env: Mapping[str, str]) -> HookOutput:
            self.ran.append(name)
            fault = self._bad.get(name, "")
            if fault == "exit":
                return HookOutput(3, "no space left on device")
            hardware(world, name).set_driver(WANT if fault != "old" else "550.54")
            if fault == "breaks":
                hardware(world, name).inject("gpu-5", "xid-79")
            return HookOutput(0, "installed")

        return run


async def begin(world: World, **more: object) -> None:
    hook = {"command": ["/opt/install", WANT]}
    spec = {"hook": hook, "expect": {LABEL: WANT}, "verifySeconds": 60, **more}
    await world.cluster.api.create(NodeRollout, {"metadata": {"name": "driver"}, "spec": spec})


def status(world: World) -> NodeRolloutStatus:
    found = world._read(NodeRollout, "driver")
    assert found is not None
    return found.status


async def ends(world: World, phase: RolloutPhase) -> NodeRolloutStatus:
    await world.until(lambda: status(world).phase is phase, 900.0, f"the roll-out is {phase}")
    return status(world)


def cordoned(world: World) -> list[str]:
    return [name for name in NAMES if node_object(world, name).spec.unschedulable]


async def all_nodes_one_by_one(world: World) -> None:
    installer = Installer(world)
    await begin(world)
    found = await ends(world, RolloutPhase.SUCCEEDED)
    assert (found.total, found.done, found.failed) == (3, 3, 0)
    assert sorted(installer.ran) == list(NAMES)
    assert [step.is_canary for step in found.steps] == [True, False, False]
    await world.until(lambda: not cordoned(world), 30.0, "every node is open again")
    assert all(node_object(world, name).labels[LABEL] == WANT for name in NAMES)
    await world.until(lambda: not any(world.devices(name).orders for name in NAMES), 30.0, "no order is left")
    note("3 nodes, the canary first: all 3 have the driver, none cordoned")


async def a_failed_canary(world: World, bad: str, reason: str) -> None:
    running = await run_pods(world, *(gpus(f"p{n}", select={"kubernetes.io/hostname": NAMES[n]}) for n in (1, 2)))
    installer = Installer(world, {"node-01": bad})
    await world.sleep(5.0)  # the nodes' labels settle
    before = {name: (node_object(world, name).labels, node_object(world, name).annotations) for name in NAMES[1:]}
    await begin(world, maxUnavailable="3")
    found = await ends(world, RolloutPhase.STOPPED)
    assert [(step.node, step.reason) for step in found.steps] == [("node-01", reason)]
    assert "node-01" in found.stopped_because
    assert installer.ran == ["node-01"]
    await world.sleep(600.0)
    assert status(world).phase is RolloutPhase.STOPPED
    assert installer.ran == ["node-01"]
    assert cordoned(world) == ["node-01"]
    assert {n: (node_object(world, n).labels, node_object(world, n).annotations) for n in NAMES[1:]} == before
    assert all(is_up(world, pod.name) and the_pod(world, pod.name).uid == pod.uid for pod in running)
    note(
        f"canary {reason}: Stopped, installer ran on 1 of 3 nodes, labels, annotations and pods of the others as before"
    )


def test_row_24_canary_then_the_rest() -> None:
    play(all_nodes_one_by_one, nodes=3, racks=1)


def test_row_24_an_installer_that_fails_stops_it() -> None:
    play(lambda world: a_failed_canary(world, "exit", "CommandFailed"), nodes=3, racks=1)


def test_row_24_a_driver_that_is_not_the_expected_one_stops_it() -> None:
    play(lambda world: a_failed_canary(world, "old", "NotVerified"), nodes=3, racks=1)


def test_row_24_a_device_that_fails_its_probe_stops_it() -> None:
    play(lambda world: a_failed_canary(world, "breaks", "ProbeFailed"), nodes=3, racks=1)


async def busy_nodes_are_emptied(world: World) -> None:
    Installer(world)
    await run_pods(world, *(gpus(f"p{n}", select={"kubernetes.io/hostname": NAMES[n]}) for n in range(3)))
    await begin(world, drain={"checkpointSeconds": 1, "deadlineSeconds": 30}, maxUnavailable="2")
    most = 0

    def watch() -> bool:
        nonlocal most
        most = max(most, len(cordoned(world)))
        return status(world).phase is RolloutPhase.SUCCEEDED

    await world.until(watch, 900.0, "the roll-out is over")
    assert 1 <= most <= 2
    assert world.pod("p0") is None


def test_nodes_in_use_are_emptied_first_so_many_at_a_time() -> None:
    play(busy_nodes_are_emptied, nodes=3, racks=1)


async def a_domain_is_one_step(world: World) -> None:
    for name in NAMES[:2]:
        await world.cluster.api.patch(Node, name, {"metadata": {"labels": {LABEL_CLIQUE: "rack-7.1"}}})
    await run_pods(world, gpus("p1", select={"kubernetes.io/hostname": NAMES[1]}))
    installer = Installer(world)
    await begin(world, drain={"checkpointSeconds": 1, "deadlineSeconds": 30}, selector={LABEL_CLIQUE: "rack-7.1"})
    seen = set()

    def watch() -> bool:
        steps = status(world).steps
        seen.add(tuple(sorted(step.phase for step in steps)))
        assert not installer.ran or world.pod("p1") is None, "nothing is done to either before both are empty"
        return status(world).phase is RolloutPhase.SUCCEEDED

    await world.until(watch, 900.0, "the roll-out is over")
    assert sorted(installer.ran) == list(NAMES[:2])
    assert all(len(set(phases)) <= 1 for phases in seen)
    await world.until(lambda: not cordoned(world), 30.0, "both are open again")


def test_a_domain_of_several_nodes_is_one_step() -> None:
    play(a_domain_is_one_step, nodes=3, racks=1)


async def half_a_domain_is_refused(world: World) -> None:
    for name in NAMES[:2]:
        await world.cluster.api.patch(Node, name, {"metadata": {"labels": {LABEL_CLIQUE: "rack-7.1"}}})
    installer = Installer(world)
    await begin(world, selector={"kubernetes.io/hostname": NAMES[0]})
    await world.until(lambda: bool(status(world).waiting_for), 30.0, "it says why")
    await world.sleep(120.0)
    assert f"{NAMES[1]} of it is not in this roll-out" in status(world).waiting_for
    assert (installer.ran, cordoned(world), status(world).steps) == ([], [], [])


def test_half_a_domain_is_not_rolled_out() -> None:
    play(half_a_domain_is_refused, nodes=3, racks=1)


async def deleting_gives_back(world: World) -> None:
    Installer(world, {"node-01": "exit"})
    await begin(world)
    await ends(world, RolloutPhase.STOPPED)
    assert cordoned(world) == ["node-01"]
    await world.cluster.api.delete(NodeRollout, "driver")
    await world.until(lambda: not cordoned(world), 30.0, "the node is given back")
    assert not [a for a in node_object(world, "node-01").annotations if a.startswith("remuda.dev/remedy")]
    assert (await world.cluster.api.get(Node, "node-01")).spec.unschedulable is False


def test_a_deleted_rollout_gives_its_nodes_back() -> None:
    play(deleting_gives_back, nodes=3, racks=1)


async def deleted_while_no_manager_runs(world: World) -> None:
    Installer(world, {"node-01": "exit"})
    await begin(world)
    await ends(world, RolloutPhase.STOPPED)
    await world.cluster.stop_control_plane()
    await world.cluster.api.delete(NodeRollout, "driver")
    await world.cluster.restart_control_plane()
    await world.until(lambda: not cordoned(world), 30.0, "the new manager gives the node back")
    assert not [a for a in node_object(world, "node-01").annotations if a.startswith("remuda.dev/")]


def test_a_rollout_deleted_while_no_manager_ran_gives_its_nodes_back_to_the_next() -> None:
    play(deleted_while_no_manager_runs, nodes=3, racks=1)


async def survives_the_manager(world: World) -> None:
    installer = Installer(world)
    await begin(world)
    for _ in range(6):
        await world.sleep(1.5)
        await world.cluster.restart_control_plane()
    await ends(world, RolloutPhase.SUCCEEDED)
    assert sorted(installer.ran) == list(NAMES)  # each once, whoever asked


def test_a_manager_that_dies_again_and_again_does_nothing_twice() -> None:
    play(survives_the_manager, nodes=3, racks=1)
