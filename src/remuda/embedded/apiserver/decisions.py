"""What the decision about a write may read, and decisions that are made off the loop.

On the loop nothing can come between a decision and the staging of its write. Off the loop the world moves on meanwhile. So a
decision made there remembers the version it was asked about and all that it read (the definition of a custom kind is part of
that), and stands only while every bit of it is still the newest; otherwise it is made again where it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from remuda.api.errors import ApiError
from remuda.api.meta import JsonObject, Resource
from remuda.embedded.apiserver.admission.request import AdmissionRequest
from remuda.embedded.apiserver.store import ObjectStore, StoredObject
from remuda.embedded.apiserver.write_rules import WriteChange


class AdmissionPort(Protocol):
    def admit(self, request: AdmissionRequest) -> JsonObject: ...

    def warnings(self, resource: Resource, body: JsonObject, old: JsonObject | None) -> list[str]: ...


_Records: TypeAlias = list[StoredObject]
_Answer: TypeAlias = list[StoredObject | None]
Decide = Callable[[StoredObject | None, AdmissionPort | None], WriteChange | None]


class NewestStoredObjects:
    """`ReadObjects` for admission: the newest accepted state. Any thread may ask."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, group: str, plural: str, name: str, namespace: str = "") -> JsonObject | None:
        key = f"/{group}/{plural}/{namespace}/{name}" if namespace else f"/{group}/{plural}/{name}"
        record = self._head(key)
        return None if record is None else record.body

    def list(self, group: str, plural: str, namespace: str = "") -> list[JsonObject]:
        prefix = f"/{group}/{plural}/{namespace}/" if namespace else f"/{group}/{plural}/"
        return [record.body for record in self._heads(prefix)]

    def _head(self, key: str) -> StoredObject | None:
        return self._store.head(key)

    def _heads(self, prefix: str) -> _Records:
        return self._store.heads(prefix)


class NotedReads(NewestStoredObjects):
    """It knows what it answered, and whether it would answer the same now."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._noted: list[tuple[Callable[[str], Any], str, _Answer]] = []

    def are_current(self) -> bool:
        return all(_are_same(_as_list(read(key)), answer) for read, key, answer in self._noted)

    def _head(self, key: str) -> StoredObject | None:
        return self._note(self._store.head, key)[0]

    def _heads(self, prefix: str) -> _Records:
        return [record for record in self._note(self._store.heads, prefix) if record is not None]

    def _note(self, read: Callable[[str], Any], key: str) -> _Answer:
        answer = _as_list(read(key))
        self._noted.append((read, key, answer))
        return answer


def _as_list(answer: Any) -> _Answer:
    return answer if isinstance(answer, list) else [answer]


def _are_same(now: _Answer, then: _Answer) -> bool:
    return len(now) == len(then) and all(a is b for a, b in zip(now, then, strict=True))


class MadeDecision:
    """What was decided about one version of an object, or why it was refused."""

    def __init__(self, decide: Decide, head: StoredObject | None, admission: AdmissionPort | None, reads: NotedReads):
        self._decide = decide
        self._head = head
        self._reads = reads
        self._change: WriteChange | None = None
        self._error: ApiError | None = None
        try:
            self._change = decide(head, admission)
        except ApiError as error:
            self._error = error

    def is_current(self, head: StoredObject | None) -> bool:
        return head is self._head and self._reads.are_current()

    def __call__(self, head: StoredObject | None, admission: AdmissionPort | None) -> WriteChange | None:
        if not self.is_current(head):
            return self._decide(head, admission)
        if self._error is not None:
            raise self._error
        return self._change
