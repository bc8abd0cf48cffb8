"""The plug-ins that look at other objects: namespaces, priority classes, limit ranges, quotas, addresses."""

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from remuda.api.errors import ApiError, NotFound
from remuda.api.meta import JsonObject, Resource
from remuda.embedded.apiserver.admission import CREATE, DELETE, UPDATE, AdmissionChain, AdmissionRequest, Forbidden
from remuda.embedded.apiserver.admission.resource_quotas import MAX_QUOTAS
from remuda.embedded.builtin.planners import quotas
from remuda.embedded.builtin.planners.pod_resources import pod_resources_counted_by_quota
from tests.unit.embedded.apiserver.admission.cases import RESOURCES, pod_spec

PODS = RESOURCES["pods"]
NAMESPACES = RESOURCES["namespaces"]


class Shelf:
    """What is stored, by (group, plural)."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], list[JsonObject]] = {("", "namespaces"): [named("n")]}
        self.admission = AdmissionChain(self)

    def get(self, group: str, plural: str, name: str, namespace: str = "") -> JsonObject | None:
        return next((o for o in self.list(group, plural, namespace) if o["metadata"]["name"] == name), None)

    def list(self, group: str, plural: str, namespace: str = "") -> Iterable[JsonObject]:
        found = self.objects.get((group, plural), [])
        return [o for o in found if not namespace or o["metadata"].get("namespace", namespace) == namespace]

    def put(self, resource: Resource, body: JsonObject) -> None:
        self.objects.setdefault((resource.group, resource.plural), []).append(body)

    def create(self, resource: Resource, body: JsonObject, namespace: str = "n") -> JsonObject:
        name = body["metadata"]["name"]
        if resource.namespaced:
            body = {**body, "metadata": {**body["metadata"], "namespace": namespace, "uid": f"uid-{name}"}}
        stored = self.admission.admit(AdmissionRequest(CREATE, resource, namespace, name, body))
        self.put(resource, stored)
        return stored


def named(name: str, **fields: Any) -> JsonObject:
    return {"metadata": {"name": name}, **fields}


def pod(name: str, requests: JsonObject | None = None, limits: JsonObject | None = None, **spec: Any) -> JsonObject:
    resources = {"requests": requests or {}, "limits": limits or {}}
    return named(name, spec={**pod_spec(), "containers": [{"name": "a", "image": "x", "resources": resources}], **spec})


def quota(name: str = "q", scopes: list[str] | None = None, **hard: Any) -> JsonObject:
    spec = {"hard": {key.replace("_", "."): value for key, value in hard.items()}}
    return named(name, spec={**spec, **({"scopes": scopes} if scopes else {})})


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


# NamespaceLifecycle


def test_nothing_is_created_in_a_namespace_that_is_not_there(shelf: Shelf) -> None:
    with pytest.raises(NotFound, match='namespaces "other" not found'):
        shelf.create(PODS, pod("p"), "other")


def test_nothing_is_created_in_a_namespace_that_goes(shelf: Shelf) -> None:
    shelf.objects["", "namespaces"] = [{"metadata": {"name": "n", "deletionTimestamp": "2027-01-01T00:00:00Z"}}]
    with pytest.raises(Forbidden) as refused:
        shelf.create(PODS, pod("p"))
    details = refused.value.as_status().details
    assert details is not None
    assert [cause.reason for cause in details.causes] == ["NamespaceTerminating"]


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public", "kube-node-lease"])
def test_the_clusters_own_namespaces_stay(shelf: Shelf, name: str) -> None:
    with pytest.raises(Forbidden, match="may not be deleted"):
        shelf.admission.admit(AdmissionRequest(DELETE, NAMESPACES, "", name, None, named(name)))
    shelf.admission.admit(AdmissionRequest(DELETE, NAMESPACES, "", "mine", None, named("mine")))


# Priority


def test_a_class_gives_the_pod_its_priority(shelf: Shelf) -> None:
    shelf.create(RESOURCES["priorityclasses"], named("high", value=1000, preemptionPolicy="Never"))
    spec = shelf.create(PODS, pod("p", priorityClassName="high"))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")


def test_the_default_class_is_for_pods_that_name_none_and_there_is_one(shelf: Shelf) -> None:
    classes = RESOURCES["priorityclasses"]
    shelf.create(classes, named("usual", value=5, globalDefault=True))
    spec = shelf.create(PODS, pod("p"))["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("usual", 5)
    with pytest.raises(Forbidden, match="already marked as default"):
        shelf.create(classes, named("another", value=6, globalDefault=True))


# LimitRange


LIMITS = {
    "type": "Container",
    "max": {"cpu": "2", "memory": "1Gi"},
    "min": {"cpu": "100m"},
    "default": {"cpu": "1"},
    "defaultRequest": {"cpu": "500m"},
    "maxLimitRequestRatio": {"cpu": "4"},
}


def test_a_limit_range_fills_what_a_container_leaves_out(shelf: Shelf) -> None:
    shelf.create(RESOURCES["limitranges"], named("l", spec={"limits": [LIMITS]}))
    resources = shelf.create(PODS, pod("p"))["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}}


@pytest.mark.parametrize(
    ("requests", "limits", "why"),
    [
        ({"cpu": "50m"}, {"cpu": "100m"}, "minimum cpu"),
        ({"cpu": "1"}, {"cpu": "3"}, "maximum cpu"),
        ({"cpu": "200m"}, {"cpu": "2"}, "ratio"),
        ({"memory": "2Gi"}, {"memory": "2Gi"}, "maximum memory"),
    ],
)
def test_a_limit_range_bounds_what_a_container_asks(
    shelf: Shelf, requests: JsonObject, limits: JsonObject, why: str
) -> None:
    shelf.create(RESOURCES["limitranges"], named("l", spec={"limits": [LIMITS]}))
    with pytest.raises(Forbidden, match=why):
        shelf.create(PODS, pod("p", requests, limits))


def test_a_limit_range_of_pods_counts_all_containers(shelf: Shelf) -> None:
    shelf.create(RESOURCES["limitranges"], named("l", spec={"limits": [{"type": "Pod", "max": {"cpu": "2"}}]}))
    one = {"image": "x", "resources": {"limits": {"cpu": "1500m"}}}
    with pytest.raises(Forbidden, match="maximum cpu usage per Pod"):
        shelf.create(PODS, named("p", spec={"containers": [{"name": "a", **one}, {"name": "b", **one}]}))
    shelf.create(PODS, named("q", spec={"containers": [{"name": "a", **one}]}))


# ResourceQuota


def test_a_quota_counts_what_pods_ask_for(shelf: Shelf) -> None:
    shelf.create(RESOURCES["resourcequotas"], quota(cpu="3", limits_memory="4Gi"))
    asks: JsonObject = {"cpu": "1500m"}
    limits: JsonObject = {"cpu": "2", "memory": "1Gi"}
    shelf.create(PODS, pod("a", asks, limits))
    shelf.create(PODS, pod("b", asks, limits))
    with pytest.raises(Forbidden, match=r"exceeded quota: q, requested: cpu=1500m, used: cpu=3, limited: cpu=3"):
        shelf.create(PODS, pod("c", asks, limits))


def test_devices_are_counted_by_their_requests(shelf: Shelf) -> None:
    shelf.create(RESOURCES["resourcequotas"], named("q", spec={"hard": {"requests.nvidia.com/gpu": "4"}}))
    shelf.create(PODS, pod("a", limits={"nvidia.com/gpu": 3}))
    with pytest.raises(Forbidden, match="exceeded quota"):
        shelf.create(PODS, pod("b", limits={"nvidia.com/gpu": 2}))
    shelf.create(PODS, pod("c", limits={"nvidia.com/gpu": 1}))


def test_finished_pods_use_nothing(shelf: Shelf) -> None:
    shelf.create(RESOURCES["resourcequotas"], quota(pods="1"))
    first = shelf.create(PODS, pod("a"))
    with pytest.raises(Forbidden):
        shelf.create(PODS, pod("b"))
    first["status"]["phase"] = "Succeeded"
    shelf.create(PODS, pod("b"))


def test_a_pod_that_does_not_say_what_it_needs_cannot_be_counted(shelf: Shelf) -> None:
    shelf.create(RESOURCES["resourcequotas"], quota(cpu="3"))
    with pytest.raises(Forbidden, match="failed quota: q: must specify cpu"):
        shelf.create(PODS, pod("a"))


def test_objects_are_counted_by_kind(shelf: Shelf) -> None:
    shelf.create(RESOURCES["resourcequotas"], named("q", spec={"hard": {"count/jobs.batch": "1", "configmaps": "1"}}))
    shelf.create(RESOURCES["configmaps"], named("a"))
    with pytest.raises(Forbidden, match="configmaps=1"):
        shelf.create(RESOURCES["configmaps"], named("b"))
    job = {"spec": {"template": {"spec": pod_spec(restartPolicy="Never")}}}
    shelf.create(RESOURCES["jobs"], named("a", **job))
    with pytest.raises(Forbidden, match=r"count/jobs\.batch=1"):
        shelf.create(RESOURCES["jobs"], named("b", **job))


def test_scopes_narrow_what_a_quota_counts(shelf: Shelf) -> None:
    shelf.create(RESOURCES["resourcequotas"], quota(scopes=["BestEffort"], pods="0"))
    with pytest.raises(Forbidden):
        shelf.create(PODS, pod("a"))
    shelf.create(PODS, pod("b", {"cpu": "1"}))


def work_of_one_create(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How often pods are listed, and how many of them are looked at."""
    listed, looked, real_list, real_sum = 0, 0, shelf.list, pod_resources_counted_by_quota

    def counted_list(group: str, plural: str, namespace: str = "") -> Iterable[JsonObject]:
        nonlocal listed
        listed += plural == "pods"
        return real_list(group, plural, namespace)

    def counted_sum(spec: JsonObject, which: str) -> Any:
        nonlocal looked
        looked += which == "requests"
        return real_sum(spec, which)

    monkeypatch.setattr(shelf, "list", counted_list)
    monkeypatch.setattr(quotas, "pod_resources_counted_by_quota", counted_sum)
    shelf.create(PODS, pod("new", {"cpu": "1"}))
    return listed, looked


def test_many_quotas_look_at_each_pod_once(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 quotas over 200 pods looked at 12,000 of them for every pod that was made."""
    for number in range(60):
        scopes = [["NotBestEffort"], ["NotTerminating"], ["NotBestEffort", "NotTerminating"]][number % 3]
        shelf.create(RESOURCES["resourcequotas"], quota(f"q{number}", scopes, pods="300", cpu="300"))
    for number in range(200):
        shelf.objects.setdefault(("", "pods"), []).append({**pod(f"p{number}", {"cpu": "1"}), "status": {}})
    assert work_of_one_create(shelf, monkeypatch) == (1, 201)


def test_a_namespace_has_only_so_many_quotas(shelf: Shelf) -> None:
    for number in range(MAX_QUOTAS):
        shelf.create(RESOURCES["resourcequotas"], quota(f"q{number}", pods="10"))
    with pytest.raises(Forbidden, match=r"namespace n has 100 quotas.* delete one first") as refused:
        shelf.create(RESOURCES["resourcequotas"], quota("more", pods="10"))
    details = refused.value.as_status().details
    assert details is not None
    assert [cause.reason for cause in details.causes] == ["TooManyQuotas"]
    shelf.create(PODS, pod("a"))


def test_a_quota_has_only_so_many_scopes_and_names_only_so_many_classes(shelf: Shelf) -> None:
    term = {"scopeName": "PriorityClass", "operator": "In", "values": [f"c{n}" for n in range(100)]}
    fits = named("q", spec={"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [term] * 20}})
    stored = shelf.create(RESOURCES["resourcequotas"], fits)
    for terms in ([term] * 21, [{**term, "values": [f"c{n}" for n in range(101)]}]):
        too_many = named("r", spec={"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": terms}})
        with pytest.raises(ApiError, match="must have at most"):
            shelf.create(RESOURCES["resourcequotas"], too_many)
        old = {**stored, "spec": too_many["spec"]}  # from before there was a bound
        new = {**old, "metadata": {**stored["metadata"], "labels": {"a": "b"}}}
        shelf.admission.admit(AdmissionRequest(UPDATE, RESOURCES["resourcequotas"], "n", "q", new, old))


# Addresses


def test_every_service_has_an_address_of_its_own_and_keeps_it(shelf: Shelf) -> None:
    services = RESOURCES["services"]
    made = [shelf.create(services, named(f"s{n}", spec={"ports": [{"port": 80}]})) for n in range(3)]
    assert len({service["spec"]["clusterIP"] for service in made}) == 3
    changed = {**made[0], "spec": {**made[0]["spec"], "clusterIP": "", "clusterIPs": []}}
    again = shelf.admission.admit(AdmissionRequest(UPDATE, services, "n", "s0", changed, made[0]))
    assert again["spec"]["clusterIP"] == made[0]["spec"]["clusterIP"]


def test_bodies_are_never_mutated(shelf: Shelf) -> None:
    body = pod("p", limits={"cpu": "0.5"})
    body["metadata"] |= {"namespace": "n", "uid": "u"}
    before = copy.deepcopy(body)
    shelf.admission.admit(AdmissionRequest(CREATE, PODS, "n", "p", body))
    assert body == before


def test_a_status_write_is_not_judged_by_its_spec(shelf: Shelf) -> None:
    broken = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": []}}
    admitted = shelf.admission.admit(AdmissionRequest(UPDATE, PODS, "n", "p", broken, broken, "status"))
    assert admitted == broken
    with pytest.raises(ApiError):
        shelf.admission.admit(AdmissionRequest(UPDATE, PODS, "n", "p", broken, None))
