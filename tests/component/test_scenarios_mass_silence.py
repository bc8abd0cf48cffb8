"""Most nodes cut off at once: nobody is replaced, it is an incident, and only an operator or the rule gives them up."""

from __future__ import annotations

from remuda.api.incidents import Incident
from remuda.core.health.mass_silence import MassSilenceRule
from tests.builders.world import World, in_world, play


async def cut_off_most(world: World) -> list[str]:
    """All nodes of the gang and enough others, at once; those of the gang."""
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job")
    mine = sorted({seat.node for seat in world.gang().values()})
    others = [node for node in sorted(world.rack_of) if node not in mine]
    world.machines.cut_off.update([*mine, *others[:4]])
    return mine


def open_silences(world: World) -> list[Incident]:
    found = world._read_all(Incident)
    return [i for i in found if i.is_open and i.status.verdict.reason == "MassSilence"]


def uids(world: World) -> set[str]:
    return {pod.uid for pod in world.pods("job")}


@in_world()
async def test_nobody_is_replaced_when_most_nodes_fall_silent_at_once(world: World) -> None:
    await cut_off_most(world)
    before, pods = world.gang(), uids(world)
    await world.until(lambda: bool(open_silences(world)), 30.0)
    (incident,) = open_silences(world)
    assert "8 of 12 nodes of the cluster fell silent at once" in incident.status.message
    assert "remuda give-up" in incident.status.message
    await world.sleep(200.0)
    assert uids(world) == pods, world.describe()
    world.machines.cut_off.clear()
    await world.running("job", attempt=2)
    await world.sleep(20.0)
    assert world.gang() == before, "fenced meanwhile, so it starts again where it was"
    assert uids(world) == pods
    assert all(r.reason != "NodeLost" for r in world.job().status.recoveries)
    assert open_silences(world) == []


@in_world()
async def test_an_operator_gives_nodes_up(world: World) -> None:
    mine = await cut_off_most(world)
    await world.until(lambda: bool(open_silences(world)), 30.0)
    await world.sleep(30.0)
    assert world.job().status.attempt == 1
    await world.give_up(*mine)
    await world.until(lambda: world.job().status.attempt >= 2, 30.0)
    assert world.recovery().reason == "NodeLost"


@in_world(mass_silence=MassSilenceRule(hold_s=60.0, then="replace"))
async def test_by_the_rule_they_are_replaced_after_the_hold(world: World) -> None:
    await cut_off_most(world)
    at = world.now
    await world.until(lambda: world.job().status.attempt >= 2, 120.0)
    assert world.now - at > 60.0
    assert world.recovery().reason == "NodeLost"


def test_without_the_guard_they_are_replaced_at_once() -> None:
    async def story(world: World) -> None:
        await cut_off_most(world)
        at = world.now
        await world.until(lambda: world.job().status.attempt >= 2, 60.0)
        assert world.recovery().reason == "NodeLost"
        assert world.now - at < 15.0

    play(story, mass_silence=MassSilenceRule(is_on=False))


@in_world()
async def test_a_manager_that_starts_amid_it_holds_as_well(world: World) -> None:
    await cut_off_most(world)
    pods = uids(world)
    await world.sleep(20.0)
    await world.restart_control_plane()
    await world.sleep(60.0)
    assert uids(world) == pods
    assert world.job().status.attempt == 1
