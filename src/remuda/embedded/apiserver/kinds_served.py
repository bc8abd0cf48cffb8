"""Everything this server serves: a table of built-in kinds, and the custom kinds that were defined at run time.

`ServedKind` is one row: a `Resource`, the Struct our own code reads it with (if any), the schema that patches and checks go by,
and for a custom kind its definition. Most built-in kinds are stored only: their bodies are wire dicts and nothing here knows
more about them than this table and the facts in `patching.patch_schema`.

Rows never change. A definition that changes puts new rows in place of its old ones; requests under way keep the old ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from remuda.api.crds import CRDS
from remuda.api.kinds import KINDS
from remuda.api.meta import ALL_VERBS, JsonObject, KObject, Resource
from remuda.embedded.apiserver.crd.definition import CustomVersion, custom_versions
from remuda.embedded.apiserver.patching import KindSchema, builtin_kind_schema, custom_kind_patch_schema

_ALL = ("all",)
_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)
_CREATE = ("create",)
CRD_GROUP = "apiextensions.k8s.io"


def _served_resource(
    group: str, version: str, kind: str, plural: str, short: str = "", subs: str = "", **more: object
) -> Resource:
    return Resource(
        group,
        version,
        kind,
        plural,
        subresources=tuple(subs.split()),
        short=tuple(short.split()),
        **more,  # type: ignore[arg-type]
    )


CRD = _served_resource(
    CRD_GROUP,
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "crd crds",
    "status",
    namespaced=False,
    categories=("api-extensions",),
)
# In the order of discovery: a client that is asked for a name without a group takes the first that fits.
BUILTIN: tuple[Resource, ...] = (
    _served_resource("", "v1", "Binding", "bindings", verbs=_CREATE),
    _served_resource("", "v1", "ConfigMap", "configmaps", "cm"),
    _served_resource("", "v1", "Event", "events", "ev", selectable=_EVENT_FIELDS),
    _served_resource("", "v1", "LimitRange", "limitranges", "limits"),
    _served_resource(
        "",
        "v1",
        "Namespace",
        "namespaces",
        "ns",
        "finalize status",
        namespaced=False,
        selectable=("status.phase",),
        verbs=tuple(verb for verb in ALL_VERBS if verb != "deletecollection"),
    ),
    _served_resource("", "v1", "Node", "nodes", "no", "status", namespaced=False, selectable=("spec.unschedulable",)),
    _served_resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", "status"),
    _served_resource(
        "",
        "v1",
        "Pod",
        "pods",
        "po",
        "binding eviction exec log status",
        categories=_ALL,
        selectable=_POD_FIELDS,
    ),
    _served_resource("", "v1", "ResourceQuota", "resourcequotas", "quota", "status"),
    _served_resource("", "v1", "Secret", "secrets", selectable=("type",)),
    _served_resource("", "v1", "ServiceAccount", "serviceaccounts", "sa"),
    _served_resource(
        "",
        "v1",
        "Service",
        "services",
        "svc",
        "status",
        categories=_ALL,
        selectable=("spec.clusterIP", "spec.type"),
    ),
    CRD,
    _served_resource("apps", "v1", "Deployment", "deployments", "deploy", "scale status", categories=_ALL),
    _served_resource(
        "apps",
        "v1",
        "ReplicaSet",
        "replicasets",
        "rs",
        "scale status",
        categories=_ALL,
        selectable=("status.replicas",),
    ),
    _served_resource("events.k8s.io", "v1", "Event", "events", "ev"),
    _served_resource(
        "authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False, verbs=_CREATE
    ),
    _served_resource(
        "authorization.k8s.io",
        "v1",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        namespaced=False,
        verbs=_CREATE,
    ),
    _served_resource(
        "authorization.k8s.io",
        "v1",
        "SelfSubjectRulesReview",
        "selfsubjectrulesreviews",
        namespaced=False,
        verbs=_CREATE,
    ),
    _served_resource(
        "autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", "status", categories=_ALL
    ),
    _served_resource("batch", "v1", "Job", "jobs", subs="status", categories=_ALL, selectable=("status.successful",)),
    _served_resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", "status"),
    _served_resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "pc", namespaced=False),
    _served_resource("coordination.k8s.io", "v1", "Lease", "leases"),
    _served_resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
)


class ServedKind:
    """One resource in one version. `store`: where its objects are kept, and the version they are kept in."""

    __slots__ = ("_schema", "custom", "kind", "resource", "store")

    def __init__(
        self,
        resource: Resource,
        kind: type[KObject] | None = None,
        custom: CustomVersion | None = None,
        store: Resource | None = None,
    ) -> None:
        self.resource = resource
        self.kind = kind
        self.custom = custom
        self.store = store or resource
        self._schema: KindSchema | None = None

    @property
    def schema(self) -> KindSchema:
        found = self._schema
        if found is None:
            found = self._schema = self._load()
        return found

    def _load(self) -> KindSchema:
        resource = self.resource
        if self.custom is None:
            known = builtin_kind_schema(resource.api_version, resource.kind)
            if known is not None:
                return known
        structural = None if self.custom is None else self.custom.schema
        return custom_kind_patch_schema(structural, has_status="status" in resource.subresources)

    @property
    def is_virtual(self) -> bool:
        """Answered, never stored."""
        return self.resource.verbs == _CREATE


class KindRegistry:
    """What is served now. `of` is on the path of every in-process call and does one dictionary look-up."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], ServedKind] = {}
        self._by_type: dict[type[KObject], ServedKind] = {}
        self._by_kind: dict[tuple[str, str], ServedKind] = {}
        self._custom: dict[str, list[ServedKind]] = {}  # by the definition's name
        self._own: set[str] = {f"{crd['metadata']['name']}" for crd in CRDS}
        typed = {(k.resource.group, k.resource.version, k.resource.plural): k for k in KINDS}
        for resource in BUILTIN:
            address = (resource.group, resource.version, resource.plural)
            self._add(ServedKind(resource, typed.pop(address, None)))
        core_events = self._rows["", "v1", "events"].resource
        self._rows["events.k8s.io", "v1", "events"].store = core_events
        for definition in CRDS:
            for custom in custom_versions(definition):
                kind = typed.pop((custom.resource.group, custom.resource.version, custom.resource.plural))
                self._add(ServedKind(custom.resource, kind, custom))

    def _add(self, served: ServedKind) -> None:
        resource = served.resource
        self._rows[resource.group, resource.version, resource.plural] = served
        if served.kind is not None:
            self._by_type[served.kind] = served

    def of(self, kind: type[KObject]) -> ServedKind:
        found = self._by_type.get(kind)
        if found is None:
            resource = kind.resource
            row = self._rows.get((resource.group, resource.version, resource.plural))
            # A Struct made elsewhere for a kind that is served: where its objects are kept is not the Struct's business.
            found = ServedKind(resource, kind) if row is None else ServedKind(row.resource, kind, row.custom, row.store)
            self._by_type[kind] = found
        return found

    def find(self, group: str, version: str, plural: str) -> ServedKind | None:
        return self._rows.get((group, version, plural))

    def by_group_kind(self, group: str, kind: str) -> ServedKind | None:
        """Any version of it."""
        found = self._by_kind.get((group, kind))
        if found is None or self._rows.get(_served_address(found)) is not found:
            found = next((s for s in self if s.resource.kind == kind and s.resource.group == group), None)
            if found is not None:
                self._by_kind[group, kind] = found
        return found

    def by_prefix(self, key: str) -> ServedKind | None:
        """The resource whose objects have keys like this one; of several versions, any."""
        _, group, plural, _ = key.split("/", 3)
        return next((s for s in self if s.store.group == group and s.store.plural == plural), None)

    def __iter__(self) -> Iterator[ServedKind]:
        return iter(list(self._rows.values()))  # a copy: the names of a large definition are checked off the loop

    def groups(self) -> dict[str, list[str]]:
        """Every named group with its versions, the preferred one first."""
        found: dict[str, list[str]] = {}
        for served in self:
            group, version = served.resource.group, served.resource.version
            if group and version not in found.setdefault(group, []):
                found[group].append(version)
        return {group: sorted(versions, key=_version_priority, reverse=True) for group, versions in found.items()}

    def is_own(self, name: str) -> bool:
        """The definition of a kind that is built in here: it may be stored, and changes nothing."""
        return name in self._own

    def taken(self, group: str, by: str) -> tuple[set[str], set[str]]:
        """What other definitions (and built-in kinds) are called in that group: as resources, and as kinds."""
        if self.is_own(by):
            return set(), set()
        mine = {id(s) for s in self._custom.get(by, ())}
        others = [s.resource for s in self if s.resource.group == group and id(s) not in mine]
        names = {name for r in others for name in (r.plural, r.singular or r.kind.lower(), *r.short)}
        return names, {kind for r in others for kind in (r.kind, r.list_of)}

    def install(self, definition: JsonObject) -> None:
        """Serve what the definition says from now on."""
        name = definition["metadata"]["name"]
        if self.is_own(name):
            return
        self.uninstall(name)
        if not any(
            c.get("type") == "Established" and c.get("status") == "True"
            for c in (definition.get("status") or {}).get("conditions") or ()
        ):
            return
        rows = [ServedKind(custom.resource, None, custom, custom.storage) for custom in custom_versions(definition)]
        self._custom[name] = rows
        for served in rows:
            self._add(served)

    def uninstall(self, name: str) -> None:
        for served in self._custom.pop(name, ()):
            resource = served.resource
            self._rows.pop((resource.group, resource.version, resource.plural), None)


def _served_address(served: ServedKind) -> tuple[str, str, str]:
    return served.resource.group, served.resource.version, served.resource.plural


def _version_priority(version: str) -> tuple[int, int, int]:
    """Kubernetes' order of versions: v2 before v1 before v1beta2 before v1beta1 before v1alpha1."""
    match = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if match is None:
        return (0, 0, 0)
    stage = {None: 3, "beta": 2, "alpha": 1}[match[2]]
    return (stage, int(match[1]), int(match[3] or 0))
