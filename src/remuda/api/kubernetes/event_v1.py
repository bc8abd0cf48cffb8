"""Projection of Event: what happened to an object, in a sentence, for `kubectl describe` and `kubectl get events`."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec

from remuda.api.meta import KObject, Resource

NORMAL, WARNING = "Normal", "Warning"


class ObjectReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""


class EventSource(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    component: str = ""
    host: str = ""


class Event(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """`count` times the same, from `firstTimestamp` to `lastTimestamp`."""

    resource: ClassVar[Resource] = Resource("", "v1", "Event", "events", short=("ev",))

    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    source: EventSource = EventSource()
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    count: int = 0


def event_v1_object_reference(obj: KObject) -> ObjectReference:
    resource = obj.resource
    return ObjectReference(resource.kind, obj.namespace, obj.name, obj.uid, resource.api_version)
