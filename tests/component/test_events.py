"""Events of a whole cluster in virtual time: a recovery is told of, shortly and afterwards, and old events go."""

from __future__ import annotations

from remuda.api.kubernetes.core_v1 import Namespace
from remuda.api.kubernetes.event_v1 import Event
from remuda.api.kubernetes.policy_v1 import ResourceQuota
from remuda.api.meta import JsonObject, ObjectMeta, to_time
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.decisions import NewestStoredObjects
from remuda.embedded.builtin.event_expiry import EVERY_S, KEPT_S, find_expired_events
from tests.builders.world import NAMESPACE, World, in_world


async def events_of(world: World, kind: str) -> list[Event]:
    found = [e for e in (await world.cluster.api.list(Event)).items if e.involved_object.kind == kind]
    return sorted(found, key=lambda e: (str(e.first_timestamp), e.reason))


@in_world(nodes=12, racks=2)
async def test_a_gang_that_loses_a_device_and_gets_its_spare(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    await world.fail_device("job", rank=2)
    await world.until(lambda: world.job().status.attempt == 2 and world.job().status.barrier == "Open")
    assert not [e for e in await events_of(world, "TrainingJob") if e.type == "Warning"], "the recovery comes first"
    await world.sleep(10.0)
    told = await events_of(world, "TrainingJob")
    assert [e.reason for e in told] == ["Placed", "Started", "AttemptRaised", "SparePromoted", "Resumed"]
    raised = next(e for e in told if e.reason == "AttemptRaised")
    assert "PromoteSpare" in raised.message
    assert "device" in raised.message
    pods = await events_of(world, "Pod")
    assert {e.reason for e in pods} == {"Scheduled", "Started", "Killing"}
    assert len(pods) <= 3 * 6


@in_world(nodes=4, racks=2)
async def test_a_gang_that_does_not_fit(world: World) -> None:
    await world.submit("job", replicas=3)  # in one rack, and a rack has two nodes
    await world.sleep(20.0)
    refused = [e for e in await events_of(world, "Pod") if e.reason == "FailedScheduling"]
    assert len(refused) == 3
    assert all(e.type == "Warning" for e in refused)
    (waiting,) = [e for e in await events_of(world, "TrainingJob") if e.reason == "WaitingForRoom"]
    assert waiting.message.split(": ")[0] in refused[0].message


@in_world(nodes=1, racks=1)
async def test_a_gang_that_no_cluster_of_this_size_could_hold(world: World) -> None:
    await world.submit("job", replicas=9)
    await world.sleep(20.0)
    (waiting,) = [e for e in await events_of(world, "TrainingJob") if e.reason == "WaitingForRoom"]
    assert waiting.message.startswith("GangTooLarge: Role worker needs 9 pods of 8 GPUs; ")
    assert waiting.count == 1
    assert not await events_of(world, "Pod")


@in_world(nodes=4, racks=1)
async def test_a_gang_whose_pods_are_refused(world: World) -> None:
    api = world.cluster.api
    api._admission = AdmissionChain(NewestStoredObjects(world.cluster.store))
    quota: JsonObject = {"metadata": {"namespace": NAMESPACE, "name": "few"}, "spec": {"hard": {"pods": "2"}}}
    await api.create(ResourceQuota, quota)
    await world.submit("job", replicas=4)
    await world.until(lambda: world.job().status.reason == "PodsRefused")
    status = world.job().status
    assert status.phase == "Pending"
    assert status.message.startswith("exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2.")
    assert status.message.endswith(" Raise the quota or ask for fewer replicas.")
    written = world.job().metadata.resource_version
    await world.sleep(120.0)
    assert world.job().metadata.resource_version == written, (
        "refused for as long as the quota stands, and quiet about it"
    )
    told = [e for e in await events_of(world, "TrainingJob") if e.type == "Warning"]
    assert [(e.reason, e.count) for e in told] == [("FailedCreate", 1)]
    assert "exceeded quota: few" in told[0].message
    await api.patch(ResourceQuota, "few", {"spec": {"hard": {"pods": "9"}}}, NAMESPACE)
    await world.running("job")
    assert world.job().status.reason == "BarrierOpen"


@in_world(nodes=1, racks=1)
async def test_events_are_forgotten_after_an_hour(world: World) -> None:
    api = world.cluster.api
    await api.create(Namespace, Namespace(metadata=ObjectMeta(name="team")))
    at = to_time(world.cluster.api.clock()).isoformat()
    await api.create(Event, {"metadata": {"name": "old", "namespace": "team"}, "lastTimestamp": at})
    await world.sleep(KEPT_S - 2 * EVERY_S)
    assert [e.name for e in (await api.list(Event)).items] == ["old"]
    await world.sleep(4 * EVERY_S)
    assert (await api.list(Event)).items == []


def test_an_event_that_happened_again_stays() -> None:
    def event(first: float, last: float) -> Event:
        meta = ObjectMeta(name=f"e-{first}", creation_timestamp=to_time(first))
        return Event(metadata=meta, first_timestamp=to_time(first), last_timestamp=to_time(last))

    again, old = event(0.0, KEPT_S), event(1.0, 1.0)
    assert find_expired_events([again, old, Event()], KEPT_S + 2) == [old]
