"""Random bodies and writes for the kinds that the patch engine is tried on, from a seeded generator.

Small alphabets on purpose: names and values must collide often for owners to conflict, share and give up fields.
"""

import random
from typing import Any

MANAGERS = ("anna", "bert", "carl")
NAMES = ("a", "b", "c")
# What a strategic merge patch tells the items of a list apart by; "" for plain values.
MERGE_KEYS = {"containers": "name", "env": "name", "ports": "containerPort", "finalizers": ""}
KEYS = ("name", "containerPort", "port", "protocol", "key", "operator", "metadata", "spec", "template")

GADGET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "ports": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["port", "protocol"],
                    "items": {
                        "type": "object",
                        "required": ["port", "protocol"],
                        "properties": {
                            "port": {"type": "integer"},
                            "protocol": {"type": "string", "default": "TCP"},
                            "name": {"type": "string"},
                            "tags": {
                                "type": "array",
                                "x-kubernetes-list-type": "set",
                                "items": {"type": "string"},
                            },
                        },
                    },
                },
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "numbers": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}},
                "args": {"type": "array", "items": {"type": "string"}},
                "selector": {
                    "type": "object",
                    "x-kubernetes-map-type": "atomic",
                    "additionalProperties": {"type": "string"},
                },
                "limits": {"type": "object", "additionalProperties": {"type": "string"}},
                "nested": {
                    "type": "object",
                    "properties": {
                        "a": {"type": "string"},
                        "b": {"type": "integer"},
                        "deep": {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "string"}}},
                    },
                },
                "note": {"type": "string", "nullable": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "size": {"x-kubernetes-int-or-string": True},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "phase": {"type": "string"},
                "conditions": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["type"],
                    "items": {
                        "type": "object",
                        "required": ["type"],
                        "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                    },
                },
            },
        },
    },
}


class Maker:
    """Bodies of one kind; `sparse` ones name few fields, as an applied configuration does."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def some(self, chance: float = 0.5) -> bool:
        return self.random.random() < chance

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def names(self, pool: tuple[str, ...] = NAMES) -> list[str]:
        return self.random.sample(pool, self.random.randint(0, len(pool)))

    def texts(self, prefix: str = "") -> dict[str, str]:
        return {prefix + name: self.pick("1", "2") for name in self.names()}

    def metadata(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.some():
            out["labels"] = self.texts()
        if self.some(0.3):
            out["annotations"] = self.texts("example.com/")
        if self.some(0.3):
            out["finalizers"] = [f"example.com/{name}" for name in self.names()]
        return out

    def config_map(self) -> dict[str, Any]:
        body: dict[str, Any] = {"metadata": self.metadata()}
        if self.some(0.8):
            body["data"] = self.texts()
        return body

    def container(self, name: str) -> dict[str, Any]:
        out: dict[str, Any] = {"name": name, "image": self.pick("one", "two")}
        if self.some():
            out["env"] = [{"name": each.upper(), "value": self.pick("1", "2")} for each in self.names()]
        if self.some():
            out["ports"] = [
                {"containerPort": port, **({"name": f"p{port}"} if self.some(0.3) else {})}
                for port in self.random.sample((80, 81, 82), self.random.randint(0, 3))
            ]
        if self.some(0.3):
            out["args"] = self.names()
        if self.some(0.4):
            out["resources"] = {"limits": {"cpu": self.pick("1", "2")}, "requests": {"cpu": "1"}}
        return out

    def deployment(self) -> dict[str, Any]:
        containers = [self.container(name) for name in self.names() or ["a"]]
        spec: dict[str, Any] = {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {
                "metadata": {"labels": {"app": "x", **self.texts()}},
                "spec": {"containers": containers},
            },
        }
        if self.some():
            spec["replicas"] = self.pick(1, 2, 3)
        if self.some(0.3):
            spec["template"]["spec"]["nodeSelector"] = self.texts()
        if self.some(0.3):
            spec["template"]["spec"]["tolerations"] = [{"key": name, "operator": "Exists"} for name in self.names()]
        return {"metadata": self.metadata(), "spec": spec}

    def service(self) -> dict[str, Any]:
        ports = [
            {
                "name": f"p{port}{protocol.lower()}",
                "port": port,
                "protocol": protocol,
                "targetPort": self.pick(80, 8080),
            }
            for port in self.random.sample((80, 81, 82), self.random.randint(1, 3))
            for protocol in (("TCP", "UDP") if self.some(0.3) else ("TCP",))
        ]
        return {"metadata": self.metadata(), "spec": {"selector": self.texts(), "ports": ports}}

    def gadget(self) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        if self.some():
            spec["ports"] = [
                {
                    "port": port,
                    **({"protocol": self.pick("TCP", "UDP")} if self.some() else {}),
                    **({"name": self.pick("x", "y")} if self.some() else {}),
                    **({"tags": self.names()} if self.some(0.3) else {}),
                }
                for port in self.random.sample((80, 81, 82), self.random.randint(0, 3))
            ]
        if self.some():
            spec["tags"] = self.names()
        if self.some(0.3):
            spec["numbers"] = self.random.sample((1, 2, 3), self.random.randint(0, 3))
        if self.some(0.3):
            spec["args"] = self.names()
        if self.some(0.3):
            spec["selector"] = self.texts()
        if self.some():
            spec["limits"] = self.texts()
        if self.some():
            spec["nested"] = self.nested()
        if self.some(0.3):
            spec["note"] = self.pick("n", None)
        if self.some(0.4):
            spec["free"] = self.free()
        if self.some(0.3):
            spec["size"] = self.pick(1, "10%")
        return {"metadata": self.metadata(), "spec": spec} if self.some(0.9) else {"metadata": self.metadata()}

    def nested(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.some():
            out["a"] = self.pick("1", "2")
        if self.some():
            out["b"] = self.pick(1, 2)
        if self.some():
            out["deep"] = {name: self.pick("1", "2") for name in self.names(("x", "y"))}
        return out

    def free(self, depth: int = 0) -> dict[str, Any]:
        values: tuple[Any, ...] = (1, True, "x", [1, 2], {}, [])
        return {
            name: self.free(depth + 1) if depth < 2 and self.some(0.4) else self.pick(*values) for name in self.names()
        }

    def sparse(self, value: Any, nulls: float = 0.0) -> Any:
        """Only some of a body's fields, as an applied configuration or a patch names them; some of them null."""
        if isinstance(value, list):
            return [self.sparse(item, nulls) for item in value]
        if not isinstance(value, dict):
            return value
        kept = {name: below for name, below in value.items() if name in KEYS or self.some(0.8)}
        return {
            name: None if name not in KEYS and self.some(nulls) else self.sparse(below, nulls)
            for name, below in kept.items()
        }

    def directed(self, value: Any) -> Any:
        """A strategic merge patch with directives strewn in, most of them sensible."""
        if isinstance(value, list):
            return [self.directed(item) for item in value]
        if not isinstance(value, dict):
            return value
        out = {name: self.directed(below) for name, below in value.items()}
        for name, key in MERGE_KEYS.items():
            items = out.get(name)
            key = "port" if items and key == "containerPort" and "port" in items[0] else key  # of a service
            if items and self.some(0.6):  # to order nothing is an error of its own
                self._direct_list(out, name, key)
        if self.some(0.03):
            out["$patch"] = self.pick("replace", "delete", "merge")
        elif "image" in out and self.some(0.1):
            out["$retainKeys"] = [name for name in out if self.some(0.95)]
        return out

    def _direct_list(self, out: dict[str, Any], name: str, key: str) -> None:
        items = out[name]
        if key and self.some(0.5):
            items = [{**item, "$patch": "delete"} if self.some(0.3) else item for item in items]
        if not key and self.some(0.4):
            # What the patch both adds and deletes depends on the order in which the server happens to look at it.
            gone = [f"example.com/{each}" for each in self.names()]
            out[f"$deleteFromPrimitiveList/{name}"] = [each for each in gone if each not in items]
        if key and self.some(0.1):
            items = [*items, {"$patch": "replace"}]
        elif self.some(0.5):
            order = [{key: item[key]} if key else item for item in items]
            more = [{key: each} if key else each for each in ((80, 81, 82) if "ort" in key else self.names())]
            for each in more:
                if each not in order and self.some():
                    order.insert(self.random.randint(0, len(order)), each)
            if self.some(0.1):
                self.random.shuffle(order)
            out[f"$setElementOrder/{name}"] = order
        if self.some(0.2):
            del out[name]
        else:
            out[name] = items
