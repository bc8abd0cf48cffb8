"""Tells on each pod what of it is not honoured here: one event `FieldsNotHonoured` when it gets a node.

A pod's own projection leaves most of its fields out, so the body is read once, whole. Nothing depends on events: what
cannot be read is passed over.
"""

from __future__ import annotations

import asyncio
from typing import Final

from remuda.api.errors import ApiError
from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.builtin.namespaces import structless_kind_for_builtin
from remuda.embedded.pod_fields.judge_pod import PodHost, judge_pod_spec
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.events import EventSink
from remuda.kube.runtime.informer import Informer

FIELDS_NOT_HONOURED: Final = "FieldsNotHonoured"
_WAITING: Final = 4096  # pods to look at; beyond them the newest are not told of
_LONGEST: Final = 990


class PodFieldEvents:
    def __init__(self, cluster: Cluster, pods: Informer[Pod], events: EventSink, host: PodHost) -> None:
        self._cluster, self._events, self._host = cluster, events, host
        self._new: asyncio.Queue[Pod] = asyncio.Queue(_WAITING)
        pods.subscribe(self._on_pod)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or not new.spec.node_name or (old is not None and old.spec.node_name):
            return
        # One that has begun was told of before this process began.
        if new.status.start_time is None and not new.is_terminal and not self._new.full():
            self._new.put_nowait(new)

    async def run(self) -> None:
        """Until cancelled."""
        whole = structless_kind_for_builtin(Pod.resource)
        while True:
            pod = await self._new.get()
            try:
                body = await self._cluster.get(whole, pod.name, pod.namespace)
            except ApiError:
                continue
            if body.uid == pod.uid and (
                said := builtin_pod_field_event_message(getattr(body, "spec", None), self._host)
            ):
                self._events.warning(pod, FIELDS_NOT_HONOURED, said)


def builtin_pod_field_event_message(spec: object, host: PodHost) -> str:
    """All of them in one sentence each, "" when there is none; within what an event may say."""
    said = ". ".join(finding.warning for finding in judge_pod_spec(spec, host))
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}... See docs/compatibility.md"
