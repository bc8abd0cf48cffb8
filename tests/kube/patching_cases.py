"""Sequences of writes that each show one rule of patches or ownership; test_patching_oracle.py plays them."""

import json
from collections.abc import Callable
from typing import Any

from tests.kube.patching_oracle import Step

Body = dict[str, Any]


def create(body: Body, manager: str = "anna") -> Step:
    return Step("create", body, manager)


def applied(body: Body, manager: str = "anna", *, force: bool = False, subresource: str = "") -> Step:
    return Step("apply", body, manager, force, subresource)


def merge(patch: Any, manager: str = "anna", subresource: str = "") -> Step:
    return Step("merge", patch, manager, subresource=subresource)


def strategic(patch: Any, manager: str = "anna") -> Step:
    return Step("strategic", patch, manager)


def operations(*ops: Any, manager: str = "anna") -> Step:
    return Step("json", list(ops), manager)


def put(change: Callable[[Body], Body], manager: str = "anna", subresource: str = "") -> Step:
    return Step("replace", change, manager, subresource=subresource)


def op(kind: str, path: str, value: Any = None, **more: Any) -> Body:
    return {"op": kind, "path": path, "value": value, **more}


# Config maps: labels, data, finalizers.


def cm(data: Any = None, **meta: Any) -> Body:
    body: Body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "case", **meta}}
    return body if data is None else {**body, "data": data}


def edited(**meta: Any) -> Callable[[Body], Body]:
    return lambda live: {**live, "metadata": {**live["metadata"], **meta}}


def without_owners(live: Body) -> Body:
    return {**live, "metadata": {k: v for k, v in live["metadata"].items() if k != "managedFields"}}


def last_applied(body: Body) -> Body:
    """As `kubectl apply` sends it."""
    text = json.dumps(body) + "\n"
    return {
        **body,
        "metadata": {**body["metadata"], "annotations": {"kubectl.kubernetes.io/last-applied-configuration": text}},
    }


ENTRY = {"manager": "carl", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}

CONFIG_MAPS: dict[str, tuple[Step, ...]] = {
    "a creator owns what she wrote": (create(cm({"a": "1"}, labels={"x": "1"}, annotations={"e.com/y": "2"})),),
    "an empty map is owned": (create(cm({})), applied(cm({}), "bert")),
    "applying creates": (applied(cm({"a": "1"}, labels={"x": "1"}, finalizers=["e.com/f"])),),
    "applying the same again is no write": (applied(cm({"a": "1"})), applied(cm({"a": "1"}))),
    "two appliers share a value": (applied(cm({"a": "1"})), applied(cm({"a": "1"}), "bert")),
    "a shared value stays when one gives it up": (
        applied(cm({"a": "1", "b": "1"})),
        applied(cm({"a": "1"}), "bert"),
        applied(cm({"b": "1"})),
        applied(cm(), "bert"),
    ),
    "a value that all give up goes": (applied(cm({"a": "1", "b": "1"})), applied(cm({"b": "1"}))),
    "the last value takes its map along": (applied(cm({"a": "1"}, labels={"x": "1"})), applied(cm())),
    "a change of another's value conflicts": (
        applied(cm({"a": "1", "b": "1", "c": "1"})),
        applied(cm({"b": "1"}), "bert"),
        applied(cm({"a": "2", "b": "2"}), "carl"),
    ),
    "force takes over": (applied(cm({"a": "1"})), applied(cm({"a": "2"}), "bert", force=True), applied(cm({"a": "1"}))),
    "an updater takes over": (applied(cm({"a": "1"})), merge({"data": {"a": "2"}}, "bert"), applied(cm({"a": "1"}))),
    "an updater who changes nothing takes nothing": (applied(cm({"a": "1"})), merge({"data": {"a": "1"}}, "bert")),
    "what an updater removes is nobody's": (applied(cm({"a": "1", "b": "1"})), merge({"data": {"a": None}}, "bert")),
    "an applier does not remove an updater's value": (
        create(cm({"a": "1"}), "bert"),
        applied(cm({"a": "1"})),
        applied(cm()),
    ),
    "one manager by both ways is two owners": (
        create(cm({"a": "1"})),
        applied(cm({"a": "1"})),
        applied(cm({"a": "2"})),
    ),
    "a null is an empty value in a map": (
        applied(cm({"a": "1"})),
        applied(cm({"a": None, "b": None}, labels={"x": None})),
    ),
    "a null removes nothing above it": (applied(cm({"a": "1"})), applied({**cm(), "data": None})),
    "a null for an atomic place": (
        create({**cm({"a": "1"}), "immutable": False}),
        applied({**cm(), "immutable": None}),
    ),
    "a set of finalizers": (
        applied(cm(finalizers=["e.com/b", "e.com/a"])),
        applied(cm(finalizers=["e.com/c", "e.com/a"]), "bert"),
        applied(cm(finalizers=["e.com/a"])),
        applied(cm(finalizers=[]), "bert"),
    ),
    "an order of finalizers": (
        applied(cm(finalizers=["e.com/a", "e.com/b", "e.com/c"])),
        applied(cm(finalizers=["e.com/c", "e.com/x", "e.com/a"]), "bert"),
    ),
    "a set item is not conflicting": (applied(cm(finalizers=["e.com/a"])), applied(cm(finalizers=["e.com/a"]), "bert")),
    "a set item twice": (applied(cm(finalizers=["e.com/a", "e.com/a"])),),
    "an owner reference by its uid": (
        applied(cm(ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1"}])),
        applied(cm(ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "u2"}]), "bert"),
        applied(cm(), "bert"),
    ),
    "an unknown field is refused": (applied({**cm(), "bogus": 1}), create(cm()), applied({**cm(), "bogus": 1})),
    "a wrong type is refused": (create(cm()), applied(cm({"a": 1})), applied(cm([]))),
    "owners cannot be applied": (create(cm()), applied(cm(managedFields=[])), applied(cm(managedFields=[ENTRY]))),
    "owners may be null": (create(cm({"a": "1"})), applied(cm({"b": "1"}, managedFields=None))),
    "an empty list clears the owners": (create(cm({"a": "1"})), put(edited(managedFields=[]), "bert")),
    "an empty entry clears the owners": (create(cm({"a": "1"})), merge({"metadata": {"managedFields": [{}]}}, "bert")),
    "without owners an update has none": (
        create(cm({"a": "1"})),
        put(edited(managedFields=[]), "bert"),
        merge({"data": {"a": "2"}}, "bert"),
    ),
    "the first apply finds an owner for the rest": (
        create(cm({"a": "1"}, labels={"x": "1"})),
        put(edited(managedFields=[]), "bert"),
        applied(cm({"a": "1"}), "carl"),
        applied(cm({"a": "2"}), "carl"),
    ),
    "not knowing the owners does not lose them": (create(cm({"a": "1"})), put(without_owners, "bert")),
    "a writer may name other owners": (
        create(cm({"a": "1", "b": "1"})),
        put(edited(managedFields=[{**ENTRY, "fieldsV1": {"f:data": {".": {}, "f:a": {}, "f:gone": {}}}}]), "bert"),
        put(edited(managedFields=[{**ENTRY, "fieldsV1": {"f:metadata": {"f:finalizers": {'v: "x" ': {}}}}}]), "bert"),
    ),
    "malformed owners are ignored": (
        create(cm({"a": "1"})),
        put(edited(managedFields=[{**ENTRY, "operation": "Steal", "fieldsV1": {}}]), "bert"),
        put(edited(managedFields=[{**ENTRY, "fieldsV1": {"data": {}}}]), "bert"),
        put(edited(managedFields=[{**ENTRY, "fieldsV1": {"k:[]": {}}}]), "bert"),
        put(edited(managedFields=[{**ENTRY, "fieldsType": "V2"}]), "bert"),
    ),
    "many updaters are joined": (
        create(cm({"a": "1"})),
        *(merge({"data": {f"k{i}": "1"}}, f"updater-{i:02}") for i in range(13)),
    ),
    "server-side after client-side apply": (
        create(last_applied(cm({"a": "1", "b": "1"})), "kubectl-client-side-apply"),
        applied(cm({"a": "2", "b": "1"}), "kubectl"),
        merge({"data": {"b": "3"}}, "bert"),
        applied(cm({"a": "4", "b": "5"}), "kubectl"),
    ),
    "a special value is escaped": (applied(cm(finalizers=["e.com/a"], annotations={'e.com/<&">': "1"})),),
    "operations": (
        create(cm({"a": "1"})),
        operations(op("add", "/data/b", "2"), op("replace", "/data/a", "3"), op("test", "/data/b", "2")),
        operations(op("move", "/data/c", **{"from": "/data/a"}), op("copy", "/data/d", **{"from": "/data/c"})),
        operations(op("remove", "/data/b"), op("remove", "/data/c"), op("remove", "/data/d")),
    ),
    "an operation on what is not there": (
        create(cm({"a": "1"})),
        operations(op("remove", "/data/x")),
        operations(op("replace", "/data/x", "1")),
        operations(op("add", "/metadata/labels/x", "1")),
        operations(op("add", "/data/a/x", "1")),
        operations(op("move", "/data/y", **{"from": "/data/nope"})),
        operations(op("copy", "/data/y", **{"from": "/data/nope"})),
        operations(op("test", "/data/nope", "1")),
        operations(op("test", "/data/nope")),
        operations(op("test", "/data/a", 1)),
    ),
    "operations on a list": (
        create(cm(finalizers=["e.com/a", "e.com/b"])),
        operations(op("add", "/metadata/finalizers/-", "e.com/c"), op("add", "/metadata/finalizers/0", "e.com/d")),
        operations(op("replace", "/metadata/finalizers/-1", "e.com/e"), op("remove", "/metadata/finalizers/+1")),
        operations(op("add", "/metadata/finalizers/-1", "e.com/f")),
        operations(op("add", "/metadata/finalizers/9", "e.com/g")),
        operations(op("add", "/metadata/finalizers/x", "e.com/g")),
        operations(op("remove", "/metadata/finalizers/-")),
        operations(op("replace", "/metadata/finalizers/-9", "e.com/g")),
    ),
    "escaped names": (
        create(cm({"a": "1"}, labels={"e.com/x": "1"})),
        operations(
            op("replace", "/metadata/labels/e.com~1x", "2"), op("add", "/metadata/annotations", {"e.com/~": "1"})
        ),
        operations(op("test", "/metadata/annotations/e.com~1~0", "1")),
    ),
    "malformed operations": (
        create(cm({"a": "1"})),
        Step("json", {"op": "add"}),
        Step("json", ["add"]),
        Step("json", "add"),
        operations(op("bogus", "/data/a")),
        operations({"path": "/data/a"}),
        operations({"op": "add", "value": "1"}),
        operations({"op": "add", "path": 1, "value": "1"}),
        operations({"op": 1, "path": "/a"}),
        operations({"op": "copy", "path": "/a"}),
        operations(op("add", "", {})),
        operations(op("remove", "")),
        operations(op("add", "data", {})),
        operations({"op": "add", "path": "/data/n"}),
        operations(),
        operations(*[op("test", "/data/a", "1")] * 10_001),
    ),
    "a patch bomb": (
        create(cm({"a": "x" * 1000})),
        operations(*[op("copy", "/data/b", **{"from": "/data"})] * 40),
    ),
    "malformed merge patches": (
        create(cm({"a": "1"})),
        merge([1]),
        merge("x"),
        merge({"data": []}),
        merge({"data": {"a": 1}}),
        merge({"metadata": {"labels": {"x": None}}}),
        merge({"data": {"b": {"c": None}}}),
        merge({"data": None, "metadata": {"labels": None}}),
    ),
    "directives": (
        create(cm({"a": "1", "b": "2"}, labels={"x": "1"})),
        strategic({"data": {"$patch": "replace", "c": "3"}}),
        strategic({"metadata": {"labels": {"$patch": "delete"}}}),
        strategic({"data": {"$retainKeys": ["d"], "d": "4"}}),
        strategic({"data": {"$patch": "bogus"}}),
        strategic({"data": {"$patch": "merge"}}),
        strategic({"data": {"$retainKeys": ["d"], "e": "4"}}),
        strategic({"data": {"$retainKeys": "d"}}),
        strategic({"metadata": {"annotations": {"$patch": "replace", "e.com/a": "1"}}}),
        strategic({"binaryData": {"$patch": "delete"}}),
    ),
    "a primitive list": (
        create(cm(finalizers=["e.com/a", "e.com/b"])),
        strategic({"metadata": {"finalizers": ["e.com/c", "e.com/a"]}}),
        strategic({"metadata": {"$deleteFromPrimitiveList/finalizers": ["e.com/b", "e.com/x"]}}),
        strategic({"metadata": {"finalizers": ["e.com/d"], "$deleteFromPrimitiveList/finalizers": ["e.com/a"]}}),
        strategic({"metadata": {"$setElementOrder/finalizers": ["e.com/d", "e.com/c"]}}),
        strategic(
            {"metadata": {"finalizers": ["e.com/e"], "$setElementOrder/finalizers": ["e.com/e", "e.com/c", "e.com/d"]}}
        ),
        strategic({"metadata": {"finalizers": ["e.com/x"], "$setElementOrder/finalizers": ["e.com/c"]}}),
        strategic({"metadata": {"$setElementOrder/bogus": ["e.com/c"]}}),
        strategic({"metadata": {"$setElementOrder": ["e.com/c"]}}),
        strategic({"metadata": {"$deleteFromPrimitiveList": ["e.com/c"]}}),
        strategic({"metadata": {"$setElementOrder/finalizers": "e.com/c"}}),
        strategic({"metadata": {"finalizers": [{"a": 1}]}}),
        strategic({"metadata": {"finalizers": [["a"]]}}),
        strategic({"metadata": {"finalizers": None}}),
    ),
    "malformed strategic patches": (
        create(cm({"a": "1"})),
        strategic([1]),
        strategic("x"),
        strategic({"data": {"a": 5}}),
    ),
}

# Deployments: containers, ports, environment, strategy.


def container(name: str, **more: Any) -> Body:
    return {"name": name, "image": "one", **more}


def deployment(*containers: Body, **more: Any) -> Body:
    pod = {"containers": list(containers), **more.pop("pod", {})}
    spec = {
        "selector": {"matchLabels": {"app": "x"}},
        "template": {"metadata": {"labels": {"app": "x"}}, "spec": pod},
        **more,
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "case"}, "spec": spec}


def pod_patch(**spec: Any) -> Body:
    return {"spec": {"template": {"spec": spec}}}


def only(spec: Body) -> Body:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "case"}, "spec": spec}


TWO = deployment(container("a", env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]), container("b"))
PORTS = deployment(container("a", ports=[{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]))

DEPLOYMENTS: dict[str, tuple[Step, ...]] = {
    "a creator owns the defaults too": (create(TWO),),
    "an applier owns what she names": (applied(TWO), applied(TWO, "bert")),
    "a container is added and given up": (
        applied(deployment(container("a"))),
        applied(deployment(container("b")), "bert"),
        applied(deployment(container("c"), container("a")), "carl"),
        applied(deployment(container("a")), "bert"),
        applied(deployment(container("a"))),
    ),
    "a part of a container is shared": (
        applied(deployment(container("a", env=[{"name": "A", "value": "1"}]))),
        applied(
            pod_patch(containers=[{"name": "a", "args": ["x"]}]) | only({}) | pod_patch(containers=[{"name": "a"}]),
            "bert",
        ),
        applied(deployment(container("a", env=[{"name": "B", "value": "1"}]))),
    ),
    "replicas go to the autoscaler": (
        applied({**TWO, "spec": {**TWO["spec"], "replicas": 3}}),
        merge({"spec": {"replicas": 5}}, "autoscaler"),
        applied({**TWO, "spec": {**TWO["spec"], "replicas": 3}}),
        applied(TWO),
    ),
    "ports are named by number and protocol": (
        applied(PORTS),
        applied(deployment(container("a", ports=[{"containerPort": 81}])), "bert"),
        applied(deployment(container("a", ports=[{"containerPort": 80, "protocol": "UDP", "name": "x"}])), "carl"),
        applied(deployment(container("a"))),
    ),
    "an item without its key": (
        create(TWO),
        applied(only({"template": {"spec": {"containers": [{"image": "two"}]}}}), "bert"),
        strategic(pod_patch(containers=[{"image": "two"}])),
    ),
    "an item twice": (applied(deployment(container("a"), container("a"))),),
    "duplicates that an updater left": (
        create(deployment(container("a", env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]))),
        merge({"metadata": {"labels": {"x": "1"}}}, "bert"),
        applied(
            only({"template": {"spec": {"containers": [{"name": "a", "env": [{"name": "A", "value": "3"}]}]}}}), "carl"
        ),
        applied(
            only({"template": {"spec": {"containers": [{"name": "a", "env": [{"name": "A", "value": "3"}]}]}}}),
            "carl",
            force=True,
        ),
    ),
    "an atomic map": (
        applied(deployment(container("a"), pod={"nodeSelector": {"a": "1", "b": "1"}})),
        applied(deployment(container("a"), pod={"nodeSelector": {"a": "1"}}), "bert"),
        applied(deployment(container("a"), pod={"nodeSelector": {"a": "1"}}), "bert", force=True),
        applied(deployment(container("a"))),
    ),
    "an atomic list": (
        applied(deployment(container("a", args=["1", "2"]))),
        applied(deployment(container("a", args=["1"])), "bert"),
        applied(deployment(container("a", args=["1"])), "bert", force=True),
    ),
    "an empty object is a leaf": (
        applied(deployment(container("a"), pod={"securityContext": {}, "volumes": [{"name": "v", "emptyDir": {}}]})),
        applied(deployment(container("a"))),
    ),
    "containers by name": (
        create(TWO),
        strategic(pod_patch(containers=[{"name": "b", "image": "two"}, {"name": "c", "image": "two"}])),
        strategic(pod_patch(containers=[{"name": "a", "$patch": "delete"}])),
        strategic(pod_patch(containers=[{"$patch": "replace"}, {"name": "d", "image": "one"}])),
        strategic(pod_patch(containers=[{"name": "d", "$patch": "bogus"}])),
        strategic(pod_patch(containers=[{"name": "d", "$patch": "merge"}])),
        strategic(pod_patch(containers=[{"$patch": "delete"}])),
    ),
    "environment by name": (
        create(TWO),
        strategic(
            pod_patch(containers=[{"name": "a", "env": [{"name": "C", "value": "3"}, {"name": "A", "value": "9"}]}])
        ),
        strategic(pod_patch(containers=[{"name": "a", "env": [{"name": "A", "$patch": "delete"}]}])),
        strategic(pod_patch(containers=[{"name": "a", "env": None}])),
        strategic(pod_patch(containers=[{"name": "a", "env": [{"name": "Z", "value": None}]}])),
    ),
    "an order of containers": (
        create(deployment(container("a"), container("b"), container("c"))),
        strategic(
            pod_patch(
                **{
                    "$setElementOrder/containers": [{"name": "c"}, {"name": "n"}, {"name": "a"}],
                    "containers": [{"name": "n", "image": "one"}],
                }
            )
        ),
        strategic(
            pod_patch(
                **{
                    "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
                    "containers": [{"name": "b", "image": "two"}, {"name": "c", "$patch": "delete"}],
                }
            )
        ),
        strategic(
            pod_patch(
                **{
                    "$setElementOrder/containers": [{"name": "a"}],
                    "containers": [{"name": "zz", "image": "two"}],
                }
            )
        ),
    ),
    "ports of one number": (
        create(PORTS),
        strategic(pod_patch(containers=[{"name": "a", "ports": [{"containerPort": 80, "name": "x"}]}])),
    ),
    "tolerations are replaced": (
        create(deployment(container("a"), pod={"tolerations": [{"key": "a", "operator": "Exists"}]})),
        strategic(pod_patch(tolerations=[{"key": "b", "operator": "Exists"}])),
    ),
    "keys to retain": (
        create(deployment(container("a"), pod={"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]})),
        strategic({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
        strategic(pod_patch(volumes=[{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}])),
    ),
    "operations in depth": (
        create(TWO),
        operations(op("replace", "/spec/template/spec/containers/0/image", "two"), manager="bert"),
        operations(op("add", "/spec/template/spec/containers/1/env", [{"name": "Q", "value": "1"}]), manager="bert"),
        operations(op("remove", "/spec/template/spec/containers/0/env/0"), manager="bert"),
        operations(op("add", "/spec/template/spec/containers/0/ports/-", {"containerPort": 1})),
    ),
    "status has owners of its own": (
        create(TWO),
        merge({"status": {"replicas": 2, "conditions": [{"type": "Available", "status": "True"}]}}, "bert", "status"),
        merge({"spec": {"replicas": 9}, "status": {"replicas": 3}}, "carl", "status"),
        applied(
            {**only({}), "status": {"conditions": [{"type": "Progressing", "status": "True"}]}},
            "anna",
            subresource="status",
        ),
        merge({"status": {"replicas": 7}}, "anna"),
    ),
}

# Pods, of which little may change; services, whose ports have another key in a patch than in an apply.


def pod(*containers: Body, **meta: Any) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "case", **meta},
        "spec": {"automountServiceAccountToken": False, "containers": list(containers)},
    }


def pod_apply(**spec: Any) -> Body:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "case"}, "spec": spec}


PODS: dict[str, tuple[Step, ...]] = {
    "a pod's life": (
        create(
            pod(container("a", env=[{"name": "A", "value": "1"}], ports=[{"containerPort": 80}]), labels={"x": "1"})
        ),
        merge({"metadata": {"annotations": {"e.com/a": "1"}}}, "bert"),
        strategic(pod_patch()["spec"]["template"] | {"spec": {"containers": [{"name": "a", "image": "two"}]}}, "bert"),
        merge(
            {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}, "kubelet", "status"
        ),
        Step(
            "strategic",
            {
                "status": {
                    "conditions": [{"type": "Ready", "status": "False"}, {"type": "Initialized", "status": "True"}]
                }
            },
            "kubelet",
            subresource="status",
        ),
        applied(pod_apply(containers=[{"name": "a", "image": "three"}]), "carl"),
        applied(pod_apply(containers=[{"name": "a", "image": "three"}]), "carl", force=True),
        applied(pod_apply(tolerations=[{"key": "q", "operator": "Exists"}]), "carl"),
        applied(pod_apply(activeDeadlineSeconds=60), "carl"),
        merge({"spec": {"hostname": "other"}}),
    ),
    "a pod is applied": (
        applied(pod(container("a", resources={"limits": {"cpu": "1"}}), labels={"x": "1", "y": "1"})),
        applied(pod(container("a", resources={"limits": {"cpu": "1"}}), labels={"x": "2"})),
    ),
    "an init container": (
        create(
            {
                **pod(container("a")),
                "spec": {
                    "automountServiceAccountToken": False,
                    "containers": [container("a")],
                    "initContainers": [container("i")],
                },
            }
        ),
    ),
}


def service(*ports: Body, **spec: Any) -> Body:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "case"}, "spec": {"ports": list(ports), **spec}}


def port(number: int, protocol: str = "TCP", **more: Any) -> Body:
    return {"name": f"p{number}{protocol.lower()}", "port": number, "protocol": protocol, **more}


SERVICES: dict[str, tuple[Step, ...]] = {
    "ports by number and protocol when applied": (
        applied(service(port(80), port(80, "UDP"))),
        applied(service(port(81)), "bert"),
        applied(service(port(80), port(81, targetPort=1)), force=True),
        applied(service(port(80))),
    ),
    "ports by number when patched": (
        create(service(port(80), port(80, "UDP"), port(81))),
        strategic({"spec": {"ports": [{"port": 80, "targetPort": 9}, port(82)]}}),
        strategic({"spec": {"ports": [{"port": 80, "$patch": "delete"}]}}),
    ),
    "an order of ports": (
        create(service(port(80), port(81))),
        strategic({"spec": {"$setElementOrder/ports": [{"port": 82}, {"port": 80}], "ports": [port(82)]}}),
    ),
    "a selector is replaced when applied and merged when patched": (
        applied(service(port(80), selector={"a": "1", "b": "1"})),
        strategic({"spec": {"selector": {"c": "1"}}}, "bert"),
        applied(service(port(80), selector={"a": "2"}), force=True),
    ),
}

# A custom kind with every sort of list and map.


def gadget(**spec: Any) -> Body:
    body: Body = {"apiVersion": "patching.remuda.dev/v1", "kind": "Gadget", "metadata": {"name": "case"}}
    return {**body, "spec": spec} if spec else body


GADGETS: dict[str, tuple[Step, ...]] = {
    "a creator owns the objects too": (create(gadget(nested={"deep": {"x": "1"}}, free={"a": {"b": 1}}, tags=["a"])),),
    "a list that is a map": (
        applied(gadget(ports=[{"port": 80, "name": "x"}, {"port": 80, "protocol": "UDP"}])),
        applied(gadget(ports=[{"port": 80, "protocol": "TCP", "name": "y"}]), "bert"),
        applied(gadget(ports=[{"port": 81}]), "bert"),
        applied(gadget(ports=[{"port": 80, "name": "x"}])),
    ),
    "a list that is a set": (
        applied(gadget(tags=["a", "b"], numbers=[1, 2])),
        applied(gadget(tags=["c", "b"], numbers=[2, 3]), "bert"),
        applied(gadget(tags=["a"])),
    ),
    "atomic places": (
        applied(gadget(args=["a"], selector={"a": "1"})),
        applied(gadget(args=["a", "b"], selector={"a": "1", "b": "1"}), "bert"),
        applied(gadget(args=["a", "b"], selector={"b": "1"}), "bert", force=True),
    ),
    "free form": (
        applied(gadget(free={"a": {"b": 1, "l": [1, {"x": 1}]}, "c": True})),
        applied(gadget(free={"a": {"b": 2, "d": None}}), "bert", force=True),
        applied(gadget(free={"a": "text"}), "carl", force=True),
        applied(gadget(free={"a": {"z": 1}}), "carl"),
    ),
    "nulls": (
        applied(gadget(note=None, nested={"a": "1"})),
        applied(gadget(note="x", nested={"a": None})),
        applied(gadget(tags=None, limits=None, nested=None)),
        merge({"spec": {"note": None, "limits": {"a": None}}}),
        operations(op("add", "/spec/nested/a", None)),
    ),
    "a list loses its last item but not its owner": (
        create(gadget(numbers=[]), "bert"),
        applied(gadget(numbers=[1])),
        applied(gadget(note="x")),
    ),
    "an unknown field is refused": (
        create(gadget(note="x")),
        applied(gadget(bogus=1)),
        applied(gadget(nested={"q": 1})),
    ),
    "a wrong type is refused": (create(gadget(note="x")), applied(gadget(note=1)), applied(gadget(ports={}))),
    "a number or a text": (applied(gadget(size=1)), applied(gadget(size="1"), "bert"), applied(gadget(size=1), "bert")),
    "no strategic patch": (create(gadget(note="x")), strategic({"spec": {"note": "y"}})),
    "a merge patch replaces lists": (
        applied(gadget(ports=[{"port": 80}, {"port": 81}], tags=["a"])),
        merge({"spec": {"ports": [{"port": 81, "protocol": "TCP", "name": "n"}], "tags": ["a", "b"]}}, "bert"),
    ),
    "status has owners of its own": (
        create(gadget(note="x")),
        merge({"status": {"phase": "On"}, "metadata": {"labels": {"a": "1"}}}, "bert", "status"),
        applied({**gadget(), "status": {"phase": "On", "conditions": [{"type": "R"}]}}, "carl", subresource="status"),
        applied({**gadget(note="x"), "status": {"phase": "Off"}}, "carl"),
    ),
    "resets": (create(gadget(note="x")), put(edited(managedFields=[]), "bert"), applied(gadget(note="x"), "carl")),
}

# One body of every other kind in the table: what its creator owns, and what an applier does.

POD_SPEC = {"restartPolicy": "Never", "containers": [container("a")]}
TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container("a")]}}
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
JOB_SPEC = {
    "completions": 2,
    "suspend": True,
    "manualSelector": True,  # the server's own names the job's uid, which a dry run has another one of
    "selector": {"matchLabels": {"app": "x"}},
    "template": {"metadata": {"labels": {"app": "x"}}, "spec": POD_SPEC},
}
REGARDING = {"kind": "Pod", "name": "p", "namespace": "patching"}
EVENT = {
    "eventTime": "2024-01-01T00:00:00.000000Z",
    "reportingInstance": "i",
    "action": "Act",
    "reason": "R",
    "type": "Normal",
}
EVERY_KIND: tuple[tuple[str, str, str, bool, Body], ...] = (
    ("v1", "Namespace", "namespaces", False, {"metadata": {"labels": {"x": "1"}}}),
    (
        "v1",
        "Node",
        "nodes",
        False,
        {
            "spec": {
                "taints": [{"key": "a", "effect": "NoSchedule"}],
                "unschedulable": True,
                "podCIDRs": ["10.9.0.0/24"],
            }
        },
    ),
    ("v1", "Secret", "secrets", True, {"data": {"a": "MQ=="}, "type": "Opaque"}),
    (
        "v1",
        "ServiceAccount",
        "serviceaccounts",
        True,
        {"imagePullSecrets": [{"name": "a"}], "secrets": [{"name": "b"}]},
    ),
    (
        "v1",
        "Event",
        "events",
        True,
        {**EVENT, "involvedObject": REGARDING, "count": 1, "reportingComponent": "e.com/c"},
    ),
    (
        "v1",
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        True,
        {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
    ),
    (
        "v1",
        "ResourceQuota",
        "resourcequotas",
        True,
        {"spec": {"hard": {"count/leases": "1k"}, "scopes": ["NotBestEffort"]}},
    ),
    ("v1", "LimitRange", "limitranges", True, {"spec": {"limits": [{"type": "Pod", "max": {"cpu": "4"}}]}}),
    (
        "apps/v1",
        "ReplicaSet",
        "replicasets",
        True,
        {"spec": {"selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}},
    ),
    ("batch/v1", "Job", "jobs", True, {"spec": JOB_SPEC}),
    ("coordination.k8s.io/v1", "Lease", "leases", True, {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 5}}),
    ("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", False, {"value": 7, "description": "d"}),
    (
        "policy/v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        True,
        {"spec": {"minAvailable": "50%", "selector": {"matchLabels": {"app": "x"}}}},
    ),
    (
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        True,
        {
            "spec": {
                "maxReplicas": 3,
                "metrics": [CPU],
                "scaleTargetRef": {"kind": "D", "name": "d", "apiVersion": "apps/v1"},
            }
        },
    ),
    (
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "endpointslices",
        True,
        {"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}], "ports": [{"name": "a", "port": 80}]},
    ),
    (
        "events.k8s.io/v1",
        "Event",
        "events",
        True,
        {**EVENT, "regarding": REGARDING, "reportingController": "e.com/c"},
    ),
)
