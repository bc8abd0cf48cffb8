"""The patch engine against the real kube-apiserver: the same writes, the same objects and owners.

Each random sequence is made from a seed, which is in the test's name; REMUDA_PATCHING_SEEDS asks for more of them.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remuda.embedded.apiserver.patching import builtin_kind_schema, custom_kind_patch_schema
from tests.builders.patches import GADGET_SCHEMA, MANAGERS, Maker
from tests.kube.control_plane import ControlPlane
from tests.kube.patching_cases import CONFIG_MAPS, DEPLOYMENTS, EVERY_KIND, GADGETS, PODS, SERVICES
from tests.kube.patching_oracle import Oracle, Step, Target, Wire

NAMESPACE = "patching"
SEEDS = int(os.environ.get("REMUDA_PATCHING_SEEDS", "6"))
GROUP = "patching.remuda.dev"


def target(api_version: str, kind: str, plural: str, namespaced: bool = True) -> Target:
    schema = builtin_kind_schema(api_version, kind)
    assert schema is not None
    return Target(api_version, kind, plural, schema, namespaced)


CONFIG_MAP = target("v1", "ConfigMap", "configmaps")
POD = target("v1", "Pod", "pods")
SERVICE = target("v1", "Service", "services")
DEPLOYMENT = target("apps/v1", "Deployment", "deployments")
GADGET = Target(f"{GROUP}/v1", "Gadget", "gadgets", custom_kind_patch_schema(GADGET_SCHEMA, has_status=True))
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"gadgets.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "Gadget", "plural": "gadgets", "singular": "gadget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": GADGET_SCHEMA},
            }
        ],
    },
}


@pytest.fixture(scope="module")
def oracle(control_plane: ControlPlane) -> Iterator[Oracle]:
    wire = Wire(control_plane)
    try:
        assert wire("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}).status == 201
        account = wire("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
        assert account.status == 201
        assert wire("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD).status == 201
        deadline = (
            time.monotonic() + 20
        )  # the new path is served a moment later; each look is a request, so no pause is needed
        while wire("GET", GADGET.path(NAMESPACE)).status != 200:
            assert time.monotonic() < deadline
        yield (oracle := Oracle(wire, NAMESPACE))
        print(f"\n{sum(oracle.answers.values())} writes compared, by the server's answer:", dict(oracle.answers))
    finally:
        wire.close()


RANDOM: dict[str, tuple[Target, Callable[[Maker], Any]]] = {
    "configmap": (CONFIG_MAP, Maker.config_map),
    "deployment": (DEPLOYMENT, Maker.deployment),
    "service": (SERVICE, Maker.service),
    "gadget": (GADGET, Maker.gadget),
}


def typed(of: Target, name: str, body: Any) -> Any:
    return {
        "apiVersion": of.api_version,
        "kind": of.kind,
        **body,
        "metadata": {"name": name, **body.get("metadata", {})},
    }


def replaced(wanted: Any) -> Callable[[Any], Any]:
    """A writer who reads the object, sets what she wants and keeps the rest."""

    def change(live: Any) -> Any:
        kept = {**live, **{name: value for name, value in wanted.items() if name != "metadata"}}
        if live["kind"] == "Service":
            kept["spec"] = {**live["spec"], **wanted["spec"]}
        return {**kept, "metadata": {**live["metadata"], **wanted.get("metadata", {})}}

    return change


def random_step(maker: Maker, of: Target, name: str, make: Callable[[Maker], Any]) -> Step:
    manager = maker.pick(*MANAGERS)
    body = make(maker)
    how = maker.pick("apply", "apply", "apply", "merge", "strategic", "json", "replace")
    if how == "strategic" and of is GADGET:
        how = "merge"
    if how == "apply":
        some = maker.sparse(body, 0.03) if maker.some() else body
        return Step("apply", typed(of, name, some), manager, force=maker.some(0.7))
    if how == "replace":
        return Step("replace", replaced(body), manager)
    if how == "json":
        operations: list[Any] = [
            {"op": "add", "path": f"/metadata/{field}", "value": value} for field, value in body["metadata"].items()
        ]
        operations += [
            {"op": "add", "path": f"/{field}", "value": body[field]} for field in ("data", "spec") if field in body
        ]
        if of is SERVICE:
            operations = operations[:1]
        return Step("json", operations, manager)
    patch = maker.sparse(body, 0.1)
    return Step(how, maker.directed(patch) if how == "strategic" else patch, manager)


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_writes_leave_the_same_objects_and_owners(oracle: Oracle, kind: str, seed: int) -> None:
    of, make = RANDOM[kind]
    maker = Maker(seed)
    name = f"{kind}-{seed}"
    first = typed(of, name, make(maker))
    how = maker.pick("create", "apply")
    steps = [Step(how, first, maker.pick(*MANAGERS))]
    steps += [random_step(maker, of, name, make) for _ in range(8)]
    oracle.run(of, name, tuple(steps))
    if of is SERVICE:  # there are few addresses
        oracle.wire(
            "PATCH", of.path(NAMESPACE, name), {"metadata": {"finalizers": None}}, "application/merge-patch+json"
        )
        oracle.wire("DELETE", of.path(NAMESPACE, name))


CASES = [
    pytest.param(of, steps, id=f"{of.kind}: {title}")
    for of, cases in (
        (CONFIG_MAP, CONFIG_MAPS),
        (DEPLOYMENT, DEPLOYMENTS),
        (POD, PODS),
        (SERVICE, SERVICES),
        (GADGET, GADGETS),
    )
    for title, steps in cases.items()
]


@pytest.fixture
def nothing_left(oracle: Oracle) -> Iterator[None]:
    """Every case works on an object called `case`; finalizers may hold it."""
    yield
    for of in (CONFIG_MAP, DEPLOYMENT, POD, SERVICE, GADGET):
        path = of.path(NAMESPACE, "case")
        if oracle.wire("GET", path).status == 200:
            oracle.wire("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
            oracle.wire("DELETE", path, {"gracePeriodSeconds": 0})
            assert oracle.wire("GET", path).status == 404


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(("of", "steps"), CASES)
def test_the_engine_does_as_the_server(oracle: Oracle, of: Target, steps: tuple[Step, ...]) -> None:
    oracle.run(of, "case", steps)


OTHERS = [
    pytest.param(target(version, kind, plural, namespaced), body, id=f"{version} {kind}")
    for version, kind, plural, namespaced, body in EVERY_KIND
]


@pytest.mark.parametrize(("of", "body"), OTHERS)
def test_owners_of_every_kind(oracle: Oracle, of: Target, body: Any) -> None:
    """What the table says of each kind, down to the objects that the server always has."""
    for name, how in (("kind-created", "create"), ("kind-applied", "apply")):
        steps = [
            Step(how, typed(of, name, body)),
            Step("merge", {"metadata": {"labels": {"y": "2"}, "finalizers": ["example.com/a"]}}, "bert"),
            Step("apply", typed(of, name, {"metadata": {"labels": {"y": "2"}}}), "carl"),
            Step("merge", {"metadata": {"finalizers": None}}),
        ]
        oracle.run(of, name, tuple(steps))
        oracle.wire("DELETE", of.path(NAMESPACE, name))


def conditions_of(body: Any) -> list[str]:
    return [each["type"] for each in body.get("status", {}).get("conditions") or () if each["status"] == "True"]


def test_a_definition_of_a_kind_is_an_object_too(oracle: Oracle) -> None:
    of = target("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False)
    name = f"widgets.{GROUP}"
    spec = {
        **CRD["spec"],
        "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"},
    }
    body = typed(of, name, {"spec": spec})
    versions = [
        {**spec["versions"][0], "additionalPrinterColumns": [{"name": "N", "type": "string", "jsonPath": ".spec.note"}]}
    ]
    oracle.run(of, name, (Step("create", body),))
    deadline = time.monotonic() + 20  # the server goes on to write its status
    while "Established" not in conditions_of(oracle.wire("GET", of.path("", name)).body):
        assert time.monotonic() < deadline
    steps = (
        Step("apply", body, "bert"),
        Step("apply", typed(of, name, {"spec": {**spec, "versions": versions}}), "bert"),
        Step("apply", typed(of, name, {"spec": {**spec, "versions": versions}}), "bert", force=True),
        Step("strategic", {"spec": {"names": {"shortNames": ["w"]}}}, "carl"),
    )
    oracle.run(of, name, steps)
