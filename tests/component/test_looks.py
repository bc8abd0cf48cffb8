"""How often controllers look: at news, and not at what they have just written themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from remuda.api.devices import DeviceState
from remuda.api.incidents import Incident
from remuda.api.remedies import Pause
from remuda.controllers.verdicts import NodeJudged, NodeObserved
from remuda.core.incidents.pods import NodeIncidentView
from tests.builders.world import World, in_world
from tests.component.test_verdicts import judged, policy, says, verdict
from tests.component.world_rig import DEVICE, FAULTY, fail, outcomes, set_policy, the_incident

CONTROLLERS = ("verdicts", "incidents", "remedies")


def counted(world: World) -> Counter[str]:
    """Looks of each controller from now on."""
    looks: Counter[str] = Counter()
    for name in CONTROLLERS:
        controller = getattr(world.cluster.control, name)

        def plan(observed: Any, now: float, name: str = name, inner: Any = controller.plan) -> Any:
            if isinstance(observed, NodeObserved | NodeIncidentView | Incident):
                looks[name] += 1
            return inner(observed, now)

        controller.plan = plan
    return looks


@in_world(nodes=4, racks=1)
async def test_a_failure_that_has_to_wait_is_looked_at_for_its_news_alone(world: World) -> None:
    await set_policy(world, pause=Pause(by="alice"))
    await world.sleep(10.0)
    looks = counted(world)
    await fail(world)
    await world.until(lambda: "HeldBack" in outcomes(world).values(), what="its remedy is held back")
    await world.sleep(8.0)
    incident = the_incident(world)
    assert incident is not None
    assert "held back" in incident.status.message
    # A verdict: the signal, and the agent's own report of it. The incident: the verdict, the report, what its remedy waits for.
    # The ladder: the incident, the report. What is told together is looked at once.
    assert looks["verdicts"] <= 2
    assert looks["incidents"] <= 3
    assert looks["remedies"] <= 2
    await _nothing_is_left(world, FAULTY)


@in_world(nodes=1, racks=1)
async def test_what_a_switch_took_is_found_however_late_it_is_searched(world: World) -> None:
    """The last of its failures comes within the pause after a search."""
    await policy(world)
    for number in range(6):
        await says(world, "node-01", f"gpu-{number}", "xid-74")
        await judged(world, "node-01", DeviceState.UNHEALTHY, device=f"gpu-{number}")
    await judged(world, "node-01", DeviceState.DEGRADED, "SwitchSuspect", "gpu-7")
    assert verdict(world, "node-01", "gpu-6").reason == "SwitchSuspect"


@in_world(nodes=4, racks=1)
async def test_an_answer_that_comes_after_the_informer_s_word_hides_nothing(world: World) -> None:
    """Somebody wrote on top of our write, and the informer brought both before our own answer arrived."""
    await set_policy(world, pause=Pause(by="alice"))
    await fail(world)
    await world.until(lambda: "HeldBack" in outcomes(world).values(), what="its remedy is held back")
    await world.sleep(8.0)
    control = world.cluster.control
    table, known = control.remedy_table, control.view.incidents
    (before,) = known.items()
    name, version = before.name, before.metadata.resource_version
    ours = msgspec.structs.replace(before, status=msgspec.structs.replace(before.status, message="ours"))
    table.wrote(ours, version, before)
    assert table.newest(name) is ours  # ahead of the informer
    table.distrust(name)
    assert table.newest(name) is before
    await world.cluster.api.patch(Incident, name, {"status": {"message": "theirs"}}, subresource="status")
    await world.until(lambda: known.get(name) is not before, what="the informer's word")
    table.wrote(ours, "a version in between", before)
    assert table.newest(name) is known.get(name)


async def _nothing_is_left(world: World, node: str) -> None:
    """Another look finds everything written: what was not looked at was not worth it."""
    control, now = world.cluster.control, world.loop.clock()
    found = control.verdicts.plan(await control.verdicts.observe(node), now)
    assert isinstance(found, NodeJudged)
    assert (found.verdicts, found.notices, found.orders, found.found.history) == (
        found.node.verdicts,
        found.node.notices,
        {},
        {},
    )
    incidents = control.incidents.plan(await control.incidents.observe(("node", node)), now)
    assert (incidents.opened, incidents.amended) == ((), ())
    incident = the_incident(world)
    assert incident is not None
    remedy = control.remedies.plan(incident, now)
    assert remedy is not None
    assert remedy.step.status == incident.status
    assert incident.spec.subject.device == DEVICE
