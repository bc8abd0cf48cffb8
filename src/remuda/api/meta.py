"""The envelope every API object shares, and the description of a resource.

Model: an object is a frozen msgspec Struct whose wire form is Kubernetes JSON (camelCase, empty fields omitted). Built-in
kinds are *projections*: they carry the fields Remuda reads and ignore the rest, so a projection is never sent back whole
(write with a patch). Our own kinds are complete and may be replaced.

Invariants: objects are values. Nobody mutates one after it was made; dict and list fields are read-only by convention, so
the in-process transport may hand the same object to every reader.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from remuda.api.untrusted_times import EARLIEST, EARLIEST_S, LATEST, LATEST_S

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Resource(msgspec.Struct, frozen=True):
    """Where a kind lives in the API: group, version, plural, its subresources, and what clients may call it.

    `selectable`: dotted paths that field selectors may name besides metadata.name and metadata.namespace.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    singular: str = ""  # when it is not the kind in lower case
    list_kind: str = ""  # when it is not the kind with "List" behind
    categories: tuple[str, ...] = ()
    selectable: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS

    @property
    def list_of(self) -> str:
        return self.list_kind or f"{self.kind}List"

    @property
    def full_name(self) -> str:
        """`deployments.apps`: how messages and custom resource definitions name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def key(self, name: str, namespace: str = "") -> str:
        """The store's key of one object: sorts by kind, then namespace, then name."""
        return f"{self.prefix}{namespace}/{name}" if self.namespaced else f"{self.prefix}{name}"

    @property
    def prefix(self) -> str:
        return f"/{self.group}/{self.plural}/"


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    generate_name: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []


class KObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Root of every kind. Subclasses set `resource`; `apiVersion` and `kind` on the wire come from it."""

    resource: ClassVar[Resource]

    metadata: ObjectMeta = ObjectMeta()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations

    @property
    def is_deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    def owner(self, kind: str) -> OwnerReference | None:
        """The controlling owner of that kind, if there is one."""
        return next((o for o in self.metadata.owner_references if o.kind == kind and o.controller), None)


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    type: str
    status: str
    # Written also when empty: metav1.Condition requires both, and so do the client libraries.
    reason: str = msgspec.field(default_factory=str)
    message: str = msgspec.field(default_factory=str)
    last_transition_time: datetime | None = None
    observed_generation: int = 0


JsonObject = dict[str, Any]


def to_time(seconds: float) -> datetime:
    """Unix seconds -> the API's time. The core computes in seconds, the API speaks RFC 3339. Every number has one: beyond all
    reason it is the edge of it, and what is no number (NaN) lies far ahead, where nothing is overdue."""
    if seconds < EARLIEST_S:
        return EARLIEST
    return datetime.fromtimestamp(seconds, UTC) if seconds < LATEST_S else LATEST


def to_seconds(moment: datetime) -> float:
    """A time without a zone is UTC: the machine's own zone has no say in what an object means."""
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def to_seconds_or(moment: datetime | None, default: float) -> float:
    return default if moment is None else to_seconds(moment)


# --- wire values of which nobody has checked the types yet ------------------------------------------------------------
# A wrong type reads as empty. Defaults and plug-ins run before the validators, who then refuse the value by its path.


def wire_map_or_empty(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def wire_list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def json_objects_in_api_list(value: Any) -> list[JsonObject]:
    """The objects in a list of them."""
    return [item for item in wire_list_or_empty(value) if isinstance(item, dict)]
