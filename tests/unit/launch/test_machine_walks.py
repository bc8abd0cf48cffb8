"""Random walks: messages late, repeated and out of order, an agent that comes and goes, trees that die slowly.

Whatever happens: no child starts while anything of an older one is alive, attempts only grow, Ready is only said with
nothing alive, nothing is sent to an agent that is not there; and when the world behaves again, so does the launcher.
"""

import random

import pytest

from remuda.launch.actions import (
    Action,
    Connect,
    Exit,
    KillChild,
    ScanCheckpoints,
    Send,
    SetTimer,
    SpawnChild,
)
from remuda.launch.launcher_machine import LauncherIdentity, LaunchMachine
from remuda.launch.protocol import (
    Checkpoint,
    Exited,
    Fence,
    Hello,
    Message,
    Progress,
    Ready,
    Running,
    Start,
    Stop,
    Vouch,
)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = LaunchMachine(LauncherIdentity("p", "u", 1))
        self.now = 1000.0
        self.is_connected = False
        self.main: int | None = None
        self.last_main = 0
        self.has_tree = False
        self.scans: list[ScanCheckpoints] = []
        self.timer: float | None = None
        self.sent: list[Message] = []
        self.exit: int | None = None
        self.top = 0
        self.do(self.machine.begin(self.now))

    def do(self, actions: list[Action]) -> None:
        assert self.exit is None or not actions
        for action in actions:
            if isinstance(action, SpawnChild):
                assert self.main is None
                assert not self.has_tree
                assert action.attempt > self.last_main
                self.main = self.last_main = action.attempt
                self.has_tree = True
            elif isinstance(action, Send):
                self.check_send(action.message)
            elif isinstance(action, ScanCheckpoints):
                assert not self.has_tree
                self.scans.append(action)
            elif isinstance(action, SetTimer):
                self.timer = action.at
            elif isinstance(action, KillChild):
                assert self.has_tree
            elif isinstance(action, Connect):
                assert not self.is_connected
            elif isinstance(action, Exit):
                self.exit = action.code

    def check_send(self, message: Message) -> None:
        assert self.is_connected
        if isinstance(message, Ready):
            assert self.main is None
            assert not self.has_tree
        if isinstance(message, Running):
            assert message.attempt == self.last_main
        if isinstance(message, Hello):
            assert message.attempt == self.machine.attempt
        self.sent.append(message)

    def message(self) -> Message:
        attempt = max(0, self.top + self.random.choice((-2, -1, 0, 0, 1)))
        self.top = max(self.top, attempt)
        kind = self.random.randrange(12)
        if kind < 4:
            return Stop(attempt, "TERM", self.random.choice((0.0, 0.5, 5.0)), self.random.choice((0, 0, 1)), "/c")
        if kind < 8:
            return Start(attempt, {})
        if kind < 10:
            return Fence() if kind == 8 else Checkpoint(self.now + 5)
        return Vouch(self.random.choice((None, 0.0, 0.5, 5.0)))

    def step(self) -> None:
        self.now += self.random.choice((0.0, 0.01, 0.3, 3.0))
        machine, now = self.machine, self.now
        choice = self.random.randrange(12)
        if choice < 4 and self.is_connected:
            self.do(machine.received(now, self.message()))
        elif choice == 4:
            self.is_connected = not self.is_connected
            self.do(machine.connected(now) if self.is_connected else machine.disconnected(now))
        elif choice == 5:
            self.end_main(self.random.choice((0, 1, 137)))
        elif choice == 6 and self.main is None:
            self.has_tree = False
            self.do(machine.tree_gone(now))
        elif choice == 7 and self.scans:
            self.do(machine.scanned(now, self.random.choice(self.scans), (3, 2, 1)))
        elif choice == 8:
            self.do(machine.child_started(now, self.random.choice((self.main or 0, self.last_main - 1)), 500))
        elif choice == 9:
            report = Progress(self.random.randrange(100), checkpoint=self.random.choice((None, 1, 2)))
            self.do(machine.progress(now, report))
        elif choice == 10 and self.main is not None and self.random.random() < 0.2:
            attempt, self.main, self.has_tree = self.main, None, False
            self.do(machine.child_failed(now, attempt, 127, "command not found"))
        elif self.timer is not None and self.timer <= now:
            self.do(machine.timer(now))

    def end_main(self, code: int) -> None:
        if self.main is not None:
            attempt, self.main = self.main, None
            self.do(self.machine.child_exited(self.now, attempt, code, None))


@pytest.mark.parametrize("seed", range(300))
def test_random_walk(seed: int) -> None:
    world = World(seed)
    for _ in range(120):
        world.step()
    # Now the world behaves: a launcher that was not fenced for good must come to a new attempt.
    if not world.is_connected:
        world.is_connected = True
        world.do(world.machine.connected(world.now))
    goal = world.top + 1
    world.do(world.machine.received(world.now, Vouch(60.0)))
    world.do(world.machine.received(world.now, Stop(goal, rank=0, checkpoint_dir="/c")))
    world.end_main(143)
    world.has_tree = False
    world.do(world.machine.tree_gone(world.now))
    for scan in list(world.scans):
        world.do(world.machine.scanned(world.now, scan, (7,)))
    assert world.sent[-1] == Ready(goal, (7,))
    world.do(world.machine.received(world.now, Start(goal, {})))
    world.do(world.machine.child_started(world.now, goal, 500))
    assert world.sent[-1] == Running(goal, 500, world.now)
    world.end_main(0)
    assert world.sent[-1] == Exited(goal, 0, None, world.now, "")


@pytest.mark.parametrize("seed", range(100))
def test_sigterm_at_any_moment_leads_to_an_exit(seed: int) -> None:
    world = World(seed)
    for _ in range(world.random.randrange(80)):
        world.step()
    world.do(world.machine.terminate(world.now))
    for _ in range(50):  # a tree that never dies, and nobody but the timer
        if world.exit is None:
            assert world.timer is not None
            world.now = max(world.now, world.timer)
            world.do(world.machine.timer(world.now))
    assert world.exit is not None
