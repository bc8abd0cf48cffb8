"""Notices to webhooks in virtual time: at least once, across restarts, never a storm, and nobody waits for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from remuda.api.incidents import Incident, IncidentSpec
from remuda.api.meta import JsonObject, ObjectMeta, to_time
from remuda.api.remedies import RemedyPolicy, RemedyPolicySpec, Webhook
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.webhook_notices import WebhookNoticeController
from remuda.core.incidents.names import device_subject
from remuda.core.incidents.webhook_notices import ANNOTATION
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.client.webhooks import HttpWebhookClient, WebhookFailed
from remuda.kube.runtime.controller import run_controller
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.http_server import HttpServer, Reply
from tests.builders.waiting import PATIENCE_S

GOOD, BAD = "http://good", "http://bad"


class FakePoster:
    def __init__(self) -> None:
        self.posted: list[tuple[str, JsonObject]] = []
        self.tries = 0
        self.is_down: set[str] = set()

    async def post(self, url: str, body: JsonObject) -> None:
        self.tries += 1
        if url in self.is_down:
            raise WebhookFailed("it answered 503")
        self.posted.append((url, body))

    async def close(self) -> None:
        pass

    def events(self, url: str = GOOD) -> list[str]:
        """What that address was told, one entry for each notice."""
        told: list[str] = []
        for to, body in self.posted:
            if to == url:
                told += [f"{n['event']} {n['incident']['name']}" for n in body.get("notices", [body])]
        return told


class Stage:
    def __init__(self, clock: Callable[[], float], poster: Any) -> None:
        self.clock, self.poster = clock, poster
        self.uids = 0
        self.cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=clock, new_uid=self._uid)
        self._tasks: list[asyncio.Task[None]] = []

    def _uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids}"

    async def start(self) -> None:
        """A manager, as far as notices go."""
        view = ClusterView(self.cluster, jitter=lambda: 0.0)
        queue: WorkQueue[tuple[str, str]] = WorkQueue()
        controller = WebhookNoticeController(self.cluster, view, queue, self.clock, self.poster)
        kept = (view.incidents, view.policies, view.nodes, view.devices)
        self._tasks = [asyncio.create_task(informer.run()) for informer in kept]
        for informer in kept:
            await informer.synced()
        self._tasks.append(asyncio.create_task(run_controller("notices", queue, controller, self.clock)))
        self._tasks.append(asyncio.create_task(controller.run()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def policy(self, *webhooks: Webhook) -> None:
        body = RemedyPolicy(metadata=ObjectMeta(name="default"), spec=RemedyPolicySpec(webhooks=list(webhooks)))
        await self.cluster.create(RemedyPolicy, body)

    async def open(self, name: str = "i", **status: Any) -> None:
        spec = IncidentSpec(device_subject("node-1", "gpu-0"))
        await self.cluster.create(Incident, Incident(metadata=ObjectMeta(name=name), spec=spec))
        body = {"openedAt": to_time(self.clock()).isoformat(), "verdict": {"reason": "Xid79"}, **status}
        await self.cluster.patch(Incident, name, {"status": body}, subresource="status")

    async def close(self, name: str = "i") -> None:
        body = {"phase": "Closed", "outcome": "Cured", "closedAt": to_time(self.clock()).isoformat()}
        await self.cluster.patch(Incident, name, {"status": body}, subresource="status")


def on_stage(story: Callable[[Stage, FakePoster], Any]) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        poster = FakePoster()
        stage = Stage(loop.clock, poster)
        await stage.start()
        try:
            await story(stage, poster)
        finally:
            await stage.stop()

    run_virtual(main(), loop)


def test_an_incident_is_told_when_it_opens_and_when_it_closes() -> None:
    async def story(stage: Stage, poster: FakePoster) -> None:
        await stage.policy(Webhook(GOOD), Webhook("http://ends", ["Closed"]))
        await stage.open()
        await asyncio.sleep(5)
        await stage.close()
        await asyncio.sleep(5)
        assert poster.events() == ["Opened i", "Closed i"]
        assert poster.events("http://ends") == ["Closed i"]
        assert poster.posted[0][1]["text"].startswith("gpu-0 on node-1: Xid79.")
        await asyncio.sleep(7200)
        assert len(poster.posted) == 3

    on_stage(story)


def test_a_new_manager_goes_on_where_the_last_one_stopped() -> None:
    async def story(stage: Stage, poster: FakePoster) -> None:
        await stage.policy(Webhook(GOOD))
        await stage.open("told")
        await asyncio.sleep(5)
        await stage.stop()
        await stage.open("untold")
        await stage.close("told")
        await stage.start()
        await asyncio.sleep(5)
        assert sorted(poster.events()) == ["Closed told", "Opened told", "Opened untold"]
        found = await stage.cluster.get(Incident, "told")
        assert sorted(*json.loads(found.annotations[ANNOTATION]).values()) == ["Closed", "Opened"]

    on_stage(story)


def test_what_was_not_taken_is_tried_again_and_not_hammered() -> None:
    async def story(stage: Stage, poster: FakePoster) -> None:
        poster.is_down.add(GOOD)
        await stage.policy(Webhook(GOOD))
        await stage.open()
        await asyncio.sleep(600)
        assert 5 <= poster.tries <= 12
        poster.is_down.clear()
        await asyncio.sleep(400)
        assert poster.events() == ["Opened i"]

    on_stage(story)


def test_a_manager_that_stops_in_between_loses_nothing() -> None:
    async def story(stage: Stage, poster: FakePoster) -> None:
        poster.is_down.add(GOOD)
        await stage.policy(Webhook(GOOD))
        await stage.open()
        await asyncio.sleep(60)
        await stage.stop()
        poster.is_down.clear()
        await stage.start()
        await asyncio.sleep(5)
        assert poster.events() == ["Opened i"]

    on_stage(story)


def test_an_address_that_is_down_holds_up_nobody_else() -> None:
    async def story(stage: Stage, poster: FakePoster) -> None:
        poster.is_down.add(BAD)
        await stage.policy(Webhook(BAD), Webhook(GOOD))
        for n in range(20):
            await stage.open(f"i-{n}")
            await asyncio.sleep(5)
        assert len(poster.events()) == 20

    on_stage(story)


def test_many_at_once_are_few_messages() -> None:
    async def story(stage: Stage, poster: FakePoster) -> None:
        await stage.policy(Webhook(GOOD))
        for n in range(600):
            await stage.open(f"i-{n}")
        await asyncio.sleep(120)
        assert len(set(poster.events())) == 600
        assert len(poster.posted) <= 20
        assert len(poster.events()) == 600, "each once"

    on_stage(story)


def test_a_webhook_that_is_added_later_is_not_told_the_past() -> None:
    async def story(stage: Stage, poster: FakePoster) -> None:
        await stage.open("old")
        await asyncio.sleep(4000)
        await stage.open("new")
        await stage.policy(Webhook(GOOD))
        await asyncio.sleep(5)
        await stage.cluster.patch(RemedyPolicy, "default", {"spec": {"webhooks": [{"url": GOOD, "on": ["Opened"]}]}})
        await asyncio.sleep(5)
        assert poster.events() == ["Opened new"]

    on_stage(story)


def test_too_old_is_given_up() -> None:
    async def story(stage: Stage, poster: FakePoster) -> None:
        poster.is_down.add(GOOD)
        await stage.policy(Webhook(GOOD))
        await stage.open()
        await asyncio.sleep(4500)
        tries = poster.tries
        await asyncio.sleep(4500)
        assert poster.tries == tries

    on_stage(story)


def test_a_breaker_is_told() -> None:
    async def story(stage: Stage, poster: FakePoster) -> None:
        await stage.policy(Webhook(GOOD))
        since = to_time(stage.clock()).isoformat()
        status = {"breaker": {"open": True, "since": since, "message": "5 of 8 nodes failed."}}
        await stage.cluster.patch(RemedyPolicy, "default", {"status": status}, subresource="status")
        await asyncio.sleep(5)
        [(_, body)] = poster.posted
        assert (body["event"], body["policy"]["name"]) == ("Breaker", "default")
        assert "5 of 8 nodes failed." in body["text"]

    on_stage(story)


@pytest.mark.asyncio
async def test_a_real_server_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused once, then taken: nothing between the incident and the socket is a model."""
    import time

    monkeypatch.setattr("remuda.controllers.webhook_notices.GATHER_S", 0.01)
    async with HttpServer(Reply(503), Reply(200)) as server:
        stage = Stage(time.time, HttpWebhookClient())
        await stage.start()
        await stage.policy(Webhook(f"http://127.0.0.1:{server.port}/hook"))
        await stage.open()
        async with asyncio.timeout(PATIENCE_S), aclosing(stage.cluster.watch(Incident, "0")) as stream:
            async for event in stream:
                if event.obj is not None and ANNOTATION in event.obj.annotations:
                    break
        await stage.stop()
    assert [a.path for a in server.asked] == ["/hook", "/hook"]
    body = json.loads(server.asked[1].body)
    assert body["text"].startswith("gpu-0 on node-1: Xid79.")
    assert body["incident"]["name"] == "i"
