"""Rows 11, 36, 39, 41-44: what is done to a device that failed, how far it goes, and what never goes by itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
import pytest

from remuda.agent.orders.node_commands import HookOutput
from remuda.api.drills import DrillKind
from remuda.api.incidents import IncidentPhase
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import JsonObject, to_seconds
from remuda.api.names import LABEL_CLIQUE, RESOURCE_GPU
from remuda.api.remedies import Action, Breaker, Hook, Ladder, Limits, Mode, Rung, Soak, Webhook
from remuda.cli.faults.policies import ask_what_if
from remuda.cli.faults.policy_screen import render_what_if
from remuda.cli.session import Session
from remuda.core.incidents.webhook_notices import breaker_incident_notices
from remuda.core.remedies.rungs import are_remedies_exhausted, is_under_remedy
from remuda.kube.cluster import Cluster
from remuda.runtime.state_dir import StateDir
from tests.builders.evidence import note
from tests.builders.foreign import bare, deploy, one_running, tell
from tests.builders.world import World, in_world
from tests.component.world_rig import (
    DEVICE,
    FAULTY,
    a_free_device,
    agent,
    assert_untouched,
    carried_out,
    counts_are,
    device_incidents,
    drain_at_once,
    fail,
    hardware,
    is_quarantined,
    machine,
    node_object,
    outcomes,
    policy,
    records,
    set_policy,
    the_incident,
    until_done,
)
from tests.unit.cli.scenes import text_of

# --- quarantine -------------------------------------------------------------------------------------------------------


@in_world(nodes=4)
async def test_row_11_a_quarantine_survives_the_control_plane(world: World) -> None:
    await world.sleep(2.0)
    await fail(world)
    await until_done(world, "probe-reset-1", 30.0)
    for _ in range(3):
        await world.restart_control_plane()
        await world.sleep(60.0)
        assert is_quarantined(world)
    assert carried_out(world) == ["probe-1", "reset-1", "probe-reset-1"], "nothing is remediated twice"
    await world.until(lambda: not is_quarantined(world), 500.0)
    note("device under quarantine over 3 restarts; probe, reset, probe carried out once each")


def test_row_36_one_failed_device_does_not_cost_the_other_seven() -> None:
    async def story(world: World) -> None:
        await bare(world, "solo", gpus=1)
        pod = await one_running(world, "solo")
        free = a_free_device(world, pod)
        await fail(world, "xid-79", pod.spec.node_name, free)
        await world.sleep(600.0)
        assert is_quarantined(world, pod.spec.node_name, free)
        assert records(world)["reboot-1"].reason == "NodeInUse"
        still = world.pod("solo")
        assert still is not None
        assert still.uid == pod.uid
        assert not node_object(world, pod.spec.node_name).spec.unschedulable
        await bare(world, "more", gpus=1)  # and the node is still placed on
        await one_running(world, "more")
        note(
            "a fault that wants a reboot, node in use: device out of use alone, reboot waits (NodeInUse), new pods land"
        )

    tell(story)


@in_world(nodes=4)
async def test_row_39_a_device_returns_after_probe_and_soak_only(world: World) -> None:
    await world.sleep(2.0)
    await fail(world)
    await until_done(world, "probe-reset-1", 30.0)
    probed = world.now
    assert outcomes(world) == {"probe-1": "Failed", "reset-1": "Succeeded", "probe-reset-1": "Succeeded"}
    await counts_are(world, 8, 7, FAULTY)
    await world.drill(DrillKind.PLUGIN_KILL, node=FAULTY, resource=RESOURCE_GPU, seconds=10.0)
    await counts_are(world, 8, 0, FAULTY)
    await counts_are(world, 8, 7, FAULTY)
    await machine(world, FAULTY).restart()
    await counts_are(world, 0, 0, FAULTY)
    await counts_are(world, 8, 7, FAULTY)
    assert is_quarantined(world), "a restart launders nothing"
    await world.sleep(590.0 - (world.now - probed))
    assert is_quarantined(world), "not before the soak has ended"
    await world.until(lambda: not is_quarantined(world), 30.0)
    back = world.now - probed
    await counts_are(world, 8, 8, FAULTY)
    await world.until(lambda: the_incident(world).status.outcome == "Cured", 60.0)  # type: ignore[union-attr]
    assert_untouched(world)
    note(
        f"allocatable 7 of 8 over a restart of the plugin and one of the kubelet; back {back:.0f} s after the probe passed"
    )


@in_world(nodes=4)
async def test_row_39_a_fault_in_the_soak_breaks_it(world: World) -> None:
    await world.sleep(2.0)
    await fail(world)
    await until_done(world, "probe-reset-1", 30.0)
    await world.sleep(300.0)
    await fail(world)
    await until_done(world, "probe-reset-2", 60.0)
    assert records(world)["probe-reset-1"].reason == "FaultDuringSoak"
    await world.sleep(400.0)
    assert is_quarantined(world), "the soak starts anew"
    await world.until(lambda: not is_quarantined(world), 300.0)
    note("a fault 300 s into the soak: FaultDuringSoak, reset-2, and a whole soak again")


# --- the ladder -------------------------------------------------------------------------------------------------------


class Pages:
    """What webhooks were told."""

    told: list[str]

    def __init__(self) -> None:
        Pages.told = []

    async def post(self, url: str, body: JsonObject) -> None:
        Pages.told.append(body["text"])

    async def close(self) -> None: ...


def test_row_41_repair_climbs_and_then_stops_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing cures it, and the first reset does not even return."""
    monkeypatch.setattr("remuda.runtime.control_plane.HttpWebhookClient", Pages)

    @in_world(nodes=3)
    async def story(world: World) -> None:
        ran: list[str] = []

        async def run(command: Sequence[str], env: Mapping[str, str]) -> HookOutput:
            ran.append(env["REMUDA_ACTION"])
            return HookOutput(0, "RMA-4711" if env["REMUDA_ACTION"] == "ticket" else "swapped")

        agent(world, FAULTY).orders._rules = agent(world, FAULTY).orders._rules.__class__((("/opt/dc", "..."),))
        agent(world, FAULTY).orders._run = run
        hook = Hook(command=["/opt/dc", "go"])
        rungs = [
            Rung(Action.PROBE, timeout_seconds=60.0),
            Rung(Action.RESET, timeout_seconds=60.0, attempts=2),
            Rung(Action.REBOOT, timeout_seconds=300.0),
            Rung(Action.REPLACE, timeout_seconds=600.0, hook=hook),
            Rung(Action.TICKET, timeout_seconds=60.0, hook=hook),
        ]
        await set_policy(
            world,
            ladders=[Ladder("ResetDevice", rungs)],
            soak=Soak(seconds=10.0),
            webhooks=[Webhook("https://pager.example/hook")],
        )
        real, times = hardware(world, FAULTY).reset, 0

        async def reset(devices: Sequence[str]) -> None:
            nonlocal times
            times += 1
            if times == 1:
                await world.sleep(10_000.0)
            await real(devices)

        hardware(world, FAULTY).reset = reset  # type: ignore[method-assign]
        await fail(world, heals="never")
        await world.until(
            lambda: "ticket-1" in outcomes(world) and are_remedies_exhausted(device_incidents(world)[0]), 3000.0
        )
        assert outcomes(world) == {
            "probe-1": "Failed",
            "reset-1": "TimedOut",
            "reset-2": "Succeeded",
            "probe-reset-2": "Failed",
            "drain-reboot-1": "Succeeded",
            "reboot-1": "Succeeded",
            "probe-reboot-1": "Failed",
            "drain-replace-1": "Succeeded",
            "replace-1": "Succeeded",
            "probe-replace-1": "Failed",
            "ticket-1": "Succeeded",
        }
        order = [key for key in records(world) if not key.startswith(("probe", "drain"))]
        assert order == ["reset-1", "reset-2", "reboot-1", "replace-1", "ticket-1"]
        first = records(world)["reset-1"]
        assert first.started_at is not None
        assert first.ended_at is not None
        took = to_seconds(first.ended_at) - to_seconds(first.started_at)
        assert 60.0 <= took <= 75.0
        await world.sleep(60.0)  # what there is to tell is told
        before, said = carried_out(world), len(Pages.told)
        await world.sleep(3600.0)
        assert carried_out(world) == before, "it has stopped"
        assert ran == ["replace", "ticket"]
        incident = device_incidents(world)[0]
        assert (incident.status.phase, incident.status.ticket) == (IncidentPhase.OPEN, "RMA-4711")
        assert is_quarantined(world)
        assert not node_object(world, FAULTY).spec.unschedulable, "the other seven are of use"
        assert any("ticket-1" in text and DEVICE in text for text in Pages.told), Pages.told
        assert "has ended without a cure" in Pages.told[-1]
        assert len(Pages.told) == said, "and tells it once"
        note(
            f"reset timed out after {took:.0f} s, reset, reboot, replace, ticket {incident.status.ticket}: webhook told "
            f"in {said} messages, then nothing for 1 h; device out of use"
        )

    story()


# --- limits -----------------------------------------------------------------------------------------------------------


@in_world(nodes=10)
async def test_row_42_a_storm_is_held_back_and_ends_by_itself(world: World) -> None:
    await world.sleep(2.0)
    await set_policy(
        world,
        limits=Limits(pool="20%"),
        soak=Soak(seconds=30.0),
        breaker=Breaker(share="40%", at_least=3, window_seconds=60.0, cooldown_seconds=120.0),
    )
    await fail(world, node="node-10")
    await until_done(world, "probe-reset-1", 30.0)
    assert is_quarantined(world, "node-10")
    most = 0
    for name in [f"node-{i:02d}" for i in range(1, 9)]:
        await fail(world, node=name)
    await world.sleep(5.0)

    def sample() -> bool:
        nonlocal most
        active = {i.spec.subject.node for i in device_incidents(world) if is_under_remedy(i)}
        most = max(most, len(active))
        return all(not i.is_open for i in device_incidents(world))

    status = policy(world).status
    assert status.breaker.open
    assert status.held_back > 0
    assert status.nodes == 10
    held = [r for i in device_incidents(world) for r in i.status.remedies if r.outcome == "HeldBack"]
    assert {r.reason for r in held} & {"BreakerOpen"}
    await world.until(lambda: sample() or not is_quarantined(world, "node-10"), 60.0, "a device is given back")
    assert policy(world).status.breaker.open, "while the breaker is open"
    await world.until(sample, 3000.0)
    assert 0 < most <= 2
    await world.sleep(130.0)
    assert not policy(world).status.breaker.open
    assert [n.text for n in breaker_incident_notices(policy(world))] == [
        "Breaker of policy default is closed. Remedies go on."
    ]
    assert policy(world).status.held_back == 0
    note(
        f"8 of 10 nodes fail at once: breaker open, {status.held_back} held back, one device given back meanwhile; never "
        f"more than {most} nodes (20%) under remedy; all cured"
    )


# --- domains ----------------------------------------------------------------------------------------------------------


@in_world(nodes=20, racks=1, model="gb200-nvl72-tray")
async def test_row_43_a_tray_is_recycled_with_its_whole_domain(world: World) -> None:
    trays = [f"node-{n:02d}" for n in range(1, 19)]

    async def join(*names: str) -> None:
        for name in names:
            await world.cluster.api.patch(Node, name, {"metadata": {"labels": {LABEL_CLIQUE: "rack-a.1"}}})

    await join(*trays[:17])
    ladder = Ladder("RebootNode", [Rung(Action.REBOOT, attempts=2)])
    await drain_at_once(world, 5.0, 60.0, limits=Limits(pool=""), ladders=[ladder])
    await fail(world, "xid-79", heals="never")
    await world.until(lambda: "reboot-2" in outcomes(world), 60.0)
    refused = records(world)["reboot-1"]
    assert (refused.outcome, refused.reason) == ("Refused", "DomainIncomplete")
    assert not any(carried_out(world, name) for name in world.rack_of), "nothing was recycled alone"

    await join(trays[17])
    other = "node-07"
    await fail(world, "xid-79", node=other)
    await world.until(lambda: _of(world, other).get("drain-reboot-1") is not None, 60.0)
    incident = next(i for i in device_incidents(world) if i.spec.subject.node == other)
    plan = next(r for r in incident.status.remedies if r.key == "drain-reboot-1")
    assert plan.target == ", ".join(trays)
    await world.until(lambda: _of(world, other).get("probe-reboot-1") == "Succeeded", 900.0)
    rebooted = [n for n in world.rack_of if any(key.startswith("reboot") for key in carried_out(world, n))]
    assert rebooted == trays
    assert not any(is_quarantined(world, name) for name in world.rack_of if name not in (FAULTY, other))
    note(
        f"NVL72: 17 of 18 trays known: {refused.reason}, nothing done; 18 known: the plan names all, {len(rebooted)} rebooted, "
        f"{len(world.rack_of) - len(rebooted)} nodes outside untouched"
    )


def _of(world: World, name: str) -> dict[str, str]:
    found = [i for i in device_incidents(world) if i.spec.subject.node == name]
    return {r.key: r.outcome.value for i in found for r in i.status.remedies}


# --- dry run ----------------------------------------------------------------------------------------------------------


def test_row_44_a_dry_run_changes_nothing_and_comes_true() -> None:
    async def story(world: World) -> None:
        await drain_at_once(world, 5.0, 60.0)
        await deploy(world, "web", gpus=2)
        pod = await one_running(world, "web")
        here, device = pod.spec.node_name, a_free_device(world, pod)

        @contextlib.asynccontextmanager
        async def connect(_: StateDir) -> AsyncIterator[Cluster]:
            yield world.cluster.api

        before = _state(world)
        answer = await ask_what_if(Session(connect=connect), "default", here, device, "xid-79")
        await world.sleep(30.0)
        assert _state(world) == before, "a dry run changed something"
        assert (answer.mode, answer.reason, answer.remedy) == (Mode.AUTO, "Xid79", "RebootNode")
        assert answer.quarantined == (device,)
        hits = {hit.key: hit for hit in answer.hits}
        assert (hits["probe-1"].devices, hits["probe-1"].pods) == ((f"{here}/{device}",), ())
        reboot = hits["reboot-1"]
        assert (reboot.nodes, len(reboot.devices), reboot.namespaces) == ((here,), 8, ("default",))
        assert reboot.pods == (f"default/{pod.name}",)
        words = text_of(render_what_if(answer, here, device, "xid-79"), 160)
        for piece in (device, here, pod.name, "default"):
            assert piece in words, words

        await fail(world, "xid-79", here, device)
        await until_done(world, "probe-reboot-1", 600.0)
        assert set(world.devices(here).quarantine) == set(answer.quarantined)
        assert world.pod(pod.name) is None
        assert {n for n in world.rack_of if carried_out(world, n)} == set(reboot.nodes)
        note(
            f"--what-if device {here} {device}: reboot would hit {len(reboot.devices)} devices, {len(reboot.pods)} pod, "
            f"namespace {reboot.namespaces[0]}; nothing was written; in earnest exactly that happened"
        )

    tell(story)


def _state(world: World) -> dict[str, object]:
    """Everything that a person or a controller decides."""
    nodes = {n.name: (n.spec, n.labels, n.annotations) for n in world._read_all(Node)}
    orders = {
        n: (world.devices(n).quarantine, world.devices(n).orders, world.devices(n).verdicts) for n in world.rack_of
    }
    pods = {p.name: (p.uid, p.spec.node_name, p.status.phase) for p in world.all_pods()}
    seen = {"nodes": nodes, "orders": orders, "pods": pods, "incidents": device_incidents(world)}
    return msgspec.to_builtins(seen)  # type: ignore[no-any-return]
