"""Notice controller: incidents and breakers told to the webhooks of their policy, beside the work and never in its way.

Each look asks the core which notices are due (`due_notices`) and puts them into the *lane* of their address: a bounded queue and
one task, so that an address which does not answer holds up nobody else's. A lane posts what has gathered as one message, retries
with back-off, and remembers in the object what was taken. A lane that is full takes nothing more for now: what it did not take
is still due at the next look. After a restart the same follows from the objects, so every notice arrives at least once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from remuda.api.errors import ApiError, Conflict, NotFound
from remuda.api.incidents import Incident
from remuda.api.meta import KObject, to_seconds
from remuda.api.remedies import RemedyPolicy
from remuda.controllers.cluster_view import ClusterView
from remuda.core.incidents.webhook_notices import (
    MAX_AGE_S,
    DueNotice,
    WebhookNotice,
    breaker_incident_notices,
    due_notices,
    incident_notices,
    taken_incident_notices_patch,
    webhook_body,
)
from remuda.core.remedies.policies import remedy_policy_for
from remuda.kube.client.webhooks import WebhookClient, WebhookFailed
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.backoff import Backoff, Jitter, no_jitter
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

log = structlog.get_logger(__name__)

Key = tuple[str, str]  # ("incident" | "policy", name)

GATHER_S = 0.5  # what comes together is told together
AT_ONCE = 50
LANE = 512  # notices that wait for one address
TAKEN = 4096
FULL_S = 30.0
IDLE_S = 600.0  # a lane nobody needs any more ends
BACKOFF = Backoff(base_s=1.0, max_s=300.0)


class WaitingNotice(msgspec.Struct, frozen=True):
    key: Key
    notice: WebhookNotice


class DueNotices(msgspec.Struct, frozen=True):
    key: Key
    due: tuple[DueNotice, ...] = ()


class WebhookNoticeController:
    """A `Reconciler` keyed by object. `run` has the lanes' tasks."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        queue: WorkQueue[Key],
        clock: Callable[[], float],
        poster: WebhookClient,
        *,
        jitter: Jitter = no_jitter,
        events: EventSink = SILENCE,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._queue = queue
        self._clock = clock
        self._poster = poster
        self._jitter = jitter
        self._events = events
        self._lanes: dict[str, dict[tuple[Key, str], WaitingNotice]] = {}  # by address, in the order they came
        self._ringing: dict[str, asyncio.Event] = {}
        self._taken: dict[tuple[str, Key, str], None] = {}  # of late: the informer may not show yet that they were
        self._new_lanes: asyncio.Queue[str] = asyncio.Queue()
        self._is_anyone_told = False  # by any policy: else there is nothing to look for
        view.incidents.subscribe(self._on_incident)
        view.policies.subscribe(self._on_policy)

    def _on_incident(self, old: Incident | None, new: Incident | None) -> None:
        if new is None or not self._is_anyone_told:
            return
        if old is None or incident_notices(old) != incident_notices(new):
            self._queue.add(("incident", new.name))

    def _on_policy(self, old: RemedyPolicy | None, new: RemedyPolicy | None) -> None:
        self._is_anyone_told = any(policy.spec.webhooks for policy in self._view.policies_in_force)
        if new is None:
            return
        if old is None or breaker_incident_notices(old) != breaker_incident_notices(new):
            self._queue.add(("policy", new.name))
        if new.spec.webhooks if old is None else old.spec.webhooks != new.spec.webhooks:
            for incident in self._view.incidents.items():
                self._queue.add(("incident", incident.name))

    # -- observe, plan, apply ---------------------------------------------------------------------------------------

    async def observe(self, key: Key) -> tuple[Key, KObject | None]:
        return key, self._object(key)

    def plan(self, observed: tuple[Key, KObject | None], now: float) -> DueNotices:
        key, obj = observed
        if isinstance(obj, Incident):
            return DueNotices(key, due_notices(obj, incident_notices(obj), self._policy(obj).spec.webhooks, now))
        if isinstance(obj, RemedyPolicy):
            return DueNotices(key, due_notices(obj, breaker_incident_notices(obj), obj.spec.webhooks, now))
        return DueNotices(key)

    async def apply(self, planned: DueNotices) -> float | None:
        is_full = False
        for due in planned.due:
            lane = self._lanes.get(due.url)
            if lane is None:
                lane = self._lanes[due.url] = {}
                self._ringing[due.url] = asyncio.Event()
                self._new_lanes.put_nowait(due.url)
            place = planned.key, due.notice.id
            if place in lane or (due.url, *place) in self._taken:
                continue
            if len(lane) >= LANE:
                is_full = True
                continue
            lane[place] = WaitingNotice(planned.key, due.notice)
            self._ringing[due.url].set()
        return FULL_S if is_full else None

    def _object(self, key: Key) -> KObject | None:
        return self._view.incidents.get(key[1]) if key[0] == "incident" else self._view.policy_in_force(key[1])

    def _policy(self, incident: Incident) -> RemedyPolicy:
        """Of the device, or of the node where it happened; what has neither is the default policy's."""
        subject, hit = incident.spec.subject, incident.status.affected
        name = subject.node or (hit[0].node if hit else "")
        node, ledger = self._view.nodes.get(name), self._view.devices.get(name)
        rows = ledger.observed.devices if ledger is not None else []
        found = next((d for d in rows if d.id == subject.device), rows[0] if rows else None)
        labels = node.labels if node is not None else {}
        return remedy_policy_for(found.type if found is not None else "", labels, self._view.policies_in_force)

    # -- lanes ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    url = await self._new_lanes.get()
                    group.create_task(self._serve_lane(url), name="webhook")
        finally:
            await self._poster.close()

    async def _serve_lane(self, url: str) -> None:
        lane, ringing = self._lanes[url], self._ringing[url]
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    await ringing.wait()
            except TimeoutError:
                if not lane:
                    del self._lanes[url], self._ringing[url]
                    return
            ringing.clear()
            await asyncio.sleep(GATHER_S)
            while lane:
                try:
                    await self._post_lane(url, lane)
                except Exception:  # whatever it is, other lanes and the next notice go on
                    log.exception("webhook.failed")
                    await asyncio.sleep(BACKOFF.max_s)

    async def _post_lane(self, url: str, lane: dict[tuple[Key, str], WaitingNotice]) -> None:
        """The next message, until it is taken or too old."""
        failures = 0
        while True:
            batch = self._still_due(lane)
            if not batch:
                return
            try:
                await self._poster.post(url, webhook_body([(obj, waiting.notice) for waiting, obj in batch]))
                break
            except WebhookFailed as error:
                failures += 1
                if failures == 3:
                    self._complain_of_webhook(batch[0][1], str(error))
                log.warning("webhook.retry", failures=failures, error=str(error), waiting=len(lane))
                await asyncio.sleep(error.retry_after_s or BACKOFF.delay(failures, self._jitter))
        for key in dict.fromkeys(waiting.key for waiting, _ in batch):
            await self._remember(url, key, [w.notice.id for w, _ in batch if w.key == key])
        for waiting, _ in batch:
            self._taken[url, waiting.key, waiting.notice.id] = None
            lane.pop((waiting.key, waiting.notice.id), None)
        while len(self._taken) > TAKEN:
            del self._taken[next(iter(self._taken))]

    def _still_due(self, lane: dict[tuple[Key, str], WaitingNotice]) -> list[tuple[WaitingNotice, KObject]]:
        """What to post now, of objects as they are now. What is too old or about nothing is dropped."""
        now = self._clock()
        batch: list[tuple[WaitingNotice, KObject]] = []
        for place, waiting in list(lane.items()):
            obj = self._object(waiting.key)
            at = waiting.notice.at
            if obj is None or (at is not None and now - to_seconds(at) > MAX_AGE_S):
                del lane[place]
            elif len(batch) < AT_ONCE:
                batch.append((waiting, obj))
        return batch

    async def _remember(self, url: str, key: Key, ids: list[str]) -> None:
        """In the object, guarded by its version. When the API refuses, the notice may come twice."""
        kind: type[Incident] | type[RemedyPolicy] = Incident if key[0] == "incident" else RemedyPolicy
        for _ in range(5):
            try:
                obj = await self._cluster.get(kind, key[1])
                when = Preconditions(uid=obj.uid, resource_version=obj.metadata.resource_version)
                await self._cluster.patch(kind, key[1], taken_incident_notices_patch(obj, url, ids), when=when)
                return
            except Conflict:
                continue
            except NotFound:
                return
            except ApiError as error:
                log.warning("webhook.not_remembered", reason=error.reason, message=error.message)
                await asyncio.sleep(BACKOFF.delay(1, self._jitter))

    def _complain_of_webhook(self, about: KObject, why: str) -> None:
        """Once per message, after a few tries; without the address, which is a secret."""
        self._events.warning(
            about, "WebhookFailed", f"A webhook does not accept notices: {why}. They are tried again for an hour."
        )
