"""What random schedules do to a world, one `Act` after another: the part that all of them share.

An act names its kind and a `pick`; whom it hits is chosen among what is there when its time has come. A control plane that was to
die at a write, and a power cut that was to come at a commit, happen while time passes, and the world starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from remuda.api.drills import DrillKind
from tests.builders.world import NAMESPACE, World

T = TypeVar("T")
Place = tuple[str, str]  # node, device


class Act(msgspec.Struct, frozen=True):
    """`wait` seconds after the act before. `pick` in [0, 1) chooses the target among what is there then."""

    wait: float
    kind: str
    pick: float
    count: int = 0  # of writes or commits, for the crashes
    code: str = ""
    heals: str = ""  # what cures the fault; "" = what the fault table says


def pick(among: Sequence[T], act: Act) -> T:
    return among[int(act.pick * len(among))]


class Actor:
    """A kind is the method of its name: `restart-at-write` is `_restart_at_write`."""

    look_s = 0.25  # between two looks for a crash, while time passes

    def __init__(self, world: World) -> None:
        self.world = world

    async def perform(self, act: Act) -> None:
        await self._pass(act.wait)
        await self._do(act)

    async def _do(self, act: Act) -> None:
        await getattr(self, f"_{act.kind.replace('-', '_')}")(act)
        await self._crashes()

    async def _pass(self, seconds: float) -> None:
        world = self.world
        until = world.now + seconds
        while True:
            await self._crashes()
            await self._give_up_lost()
            self._tick()
            if world.now >= until:
                return
            await world.sleep(min(self.look_s, until - world.now))

    async def _give_up_lost(self) -> None:
        """The operator knows which nodes have no power. When most fell silent at once, nothing else makes them lost."""
        world = self.world
        view = world.cluster.control.view
        lost = [name for name, node in world.cluster.machines.nodes.items() if node.is_lost]
        held = [name for name in lost if view.is_held(name, world.clock())]
        if held and not world.journal.is_dead:
            await world.give_up(*held)

    def _tick(self) -> None:
        """Time has passed."""

    def _power_is_back(self) -> None:
        """Everything has started again."""

    async def _crashes(self) -> None:
        world = self.world
        if world.journal.captured.is_set():
            await world.power_cut()
            self._power_is_back()
        elif world.manager.dead.is_set():
            await world.restart_control_plane()

    async def _blow(self, kind: DrillKind, **spec: object) -> None:
        await self.world.drill(kind, may_be_refused=True, **spec)

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def _hit_member(self, kind: DrillKind, act: Act) -> None:
        members = [m for job in self.world.jobs() for m in job.status.members]
        if members:
            await self._blow(kind, pod=pick(members, act).pod, namespace=NAMESPACE)

    async def _process(self, act: Act) -> None:
        await self._hit_member(DrillKind.PROCESS_KILL, act)

    async def _hang(self, act: Act) -> None:
        await self._hit_member(DrillKind.PROCESS_HANG, act)

    async def _launcher(self, act: Act) -> None:
        await self._hit_member(DrillKind.LAUNCHER_KILL, act)

    # --- devices and nodes --------------------------------------------------------------------------------------------

    def _held(self) -> list[Place]:
        return [(m.node, d) for job in self.world.jobs() for m in job.status.members for d in m.devices if m.node]

    def _all(self) -> list[Place]:
        return [(node, f"gpu-{n}") for node in sorted(self.world.rack_of) for n in range(8)]

    async def _hit_device(self, kind: DrillKind, places: Sequence[Place], act: Act, **spec: object) -> None:
        if places:
            node, device = pick(places, act)
            await self._blow(kind, node=node, device=device, **spec)

    async def _break(self, places: Sequence[Place], act: Act) -> None:
        await self._hit_device(DrillKind.DEVICE_FAIL, places, act, code=act.code, heals=act.heals)

    async def _device(self, act: Act) -> None:
        await self._break(self._held(), act)

    async def _spare_device(self, act: Act) -> None:
        spares = [s for job in self.world.jobs() for s in job.status.spares if s.node]
        await self._break([(s.node, d) for s in spares for d in s.devices], act)

    async def _hit_node(self, kind: DrillKind, act: Act, **spec: object) -> None:
        await self._blow(kind, node=pick(sorted(self.world.rack_of), act), **spec)

    async def _node(self, act: Act) -> None:
        await self._hit_node(DrillKind.NODE_LOST, act)

    # --- crashes ------------------------------------------------------------------------------------------------------

    async def _restart(self, act: Act) -> None:
        await self.world.restart_control_plane()

    async def _restart_at_write(self, act: Act) -> None:
        self.world.manager.after(act.count)

    async def _power(self, act: Act) -> None:
        await self.world.power_cut(down_s=round(act.pick * 20, 1))
        self._power_is_back()

    async def _power_at_commit(self, act: Act) -> None:
        if not self.world.journal.is_armed:
            self.world.journal.capture_after(act.count)

    def _no_more_crashes(self) -> None:
        self.world.manager.disarm()
        self.world.journal.disarm()
