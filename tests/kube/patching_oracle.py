"""Does one request on a real kube-apiserver and on the patch engine, and says where the answers differ.

The engine decides about bodies only; the server around it fills in defaults. So its result is put to the real server as a dry
run first: what comes back is the engine's result as that server would store it, and must be what the real request leaves.
Owners are compared with the real ones, entry by entry; times only by whether there is one.

The server has no good answer to some malformed patches and says 500. There the engine must refuse as well, with 400 or 422.
"""

import difflib
import http.client
import json
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from remuda.api.errors import ApiError, Invalid
from remuda.embedded.apiserver import patching
from remuda.embedded.apiserver.patching import ApplyConflict, KindSchema
from tests.kube.control_plane import ControlPlane, Response

CONTENT_TYPES = {
    "create": "application/json",
    "replace": "application/json",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
# Filled in by admission or while storing, after the owners were settled; or printed though empty.
LATE = {
    "Pod": (
        "spec.tolerations",
        "spec.priority",
        "spec.preemptionPolicy",
        "spec.serviceAccountName",
        "spec.serviceAccount",
    ),
    "Service": ("spec.clusterIP", "spec.clusterIPs", "spec.ipFamilies", "spec.ipFamilyPolicy"),
    "Namespace": ("spec.finalizers",),
    "PersistentVolumeClaim": ("metadata.finalizers",),
    "Event": ("firstTimestamp", "lastTimestamp", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"),
}
VOLATILE = ("resourceVersion", "generation", "managedFields", "uid", "creationTimestamp")


@dataclass(frozen=True)
class Target:
    """A kind on both sides."""

    api_version: str
    kind: str
    plural: str
    schema: KindSchema
    namespaced: bool = True

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        root += f"/namespaces/{namespace}" if self.namespaced else ""
        return "/".join(part for part in (root, self.plural, name, subresource) if part)


@dataclass(frozen=True)
class Step:
    """One write. A `replace` has a function from the live object to the new one."""

    how: str
    body: Any
    manager: str = "anna"
    force: bool = False
    subresource: str = ""


class Wire:
    """One connection that stays open: a comparison takes hundreds of requests."""

    def __init__(self, plane: ControlPlane) -> None:
        address = urlsplit(plane.url)
        context = ssl.create_default_context(cafile=str(plane.ca_file))
        self._token = plane.token
        self._connection = http.client.HTTPSConnection(str(address.hostname), address.port, context=context, timeout=10)

    def __call__(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Response:
        self._connection.request(
            method,
            path,
            body=None if body is None else json.dumps(body),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": content_type},
        )
        answer = self._connection.getresponse()
        data = answer.read()
        return Response(answer.status, json.loads(data) if data.startswith(b"{") else data.decode())

    def close(self) -> None:
        self._connection.close()


class Oracle:
    def __init__(self, wire: Wire, namespace: str, clock: Callable[[], float] = time.time) -> None:
        self.wire = wire
        self.namespace = namespace
        self.clock = clock
        self.answers: Counter[tuple[str, int]] = Counter()

    def run(self, target: Target, name: str, steps: tuple[Step, ...]) -> None:
        __tracebackhide__ = True
        for number, step in enumerate(steps):
            try:
                self.step(target, name, step)
            except AssertionError as error:
                done = "\n".join(f"{i}: {each}" for i, each in enumerate(steps[: number + 1]))
                raise AssertionError(f"step {number} differs\n{error}\nafter these steps:\n{done}") from None

    def step(self, target: Target, name: str, step: Step) -> None:
        found = self.wire("GET", target.path(self.namespace, name))
        live = found.body if found.status == 200 else None
        if step.how == "replace":
            step = Step(step.how, step.body(live), step.manager, step.force, step.subresource)
        ours, refusal = self._engine(target, live, step)
        probe = self._probe(target, name, live, ours, step) if ours is not None else None
        real = self._real(target, name, step)
        self.answers[step.how, real.status] += 1
        if real.status >= 400:
            self._same_refusal(real, refusal, probe, step)
            return
        assert refusal is None, f"the server did it, the engine refused: {refusal}\nthe server's: {real.body}"
        assert ours is not None
        assert probe is not None
        assert probe.status < 300, f"the server did it, but not what the engine made of it: {probe.body}\n{ours}"
        _same("object", _object(real.body), _object(probe.body))
        if step.how != "apply":
            new = probe.body
            for path in LATE.get(target.kind, ()) if live is None else ():
                new = _without(new, path.split("."))
            owners = (ours.get("metadata") or {}).get("managedFields")
            new = {**new, "metadata": {**new["metadata"], "managedFields": owners}}
            ours = patching.track_field_owners(live, new, step.manager, target.schema, self.clock(), step.subresource)
        _same("owners", _owners(real.body), _owners(ours))

    def _engine(self, target: Target, live: Any, step: Step) -> tuple[Any, ApiError | None]:
        before = json.dumps([live, step.body])
        try:
            match step.how:
                case "create" | "replace":
                    ours = step.body
                case "merge":
                    ours = patching.merge_patch(live, step.body)
                case "json":
                    ours = patching.json_patch(live, step.body)
                case "strategic":
                    ours = patching.strategic_merge(live, step.body, target.schema)
                case "apply":
                    now = self.clock()
                    ours = patching.server_side_apply(
                        live, step.body, step.manager, step.force, target.schema, now, step.subresource
                    )
                case _:
                    raise AssertionError(step.how)
            if step.how != "apply":
                if wrong := [
                    each for each in patching.find_patch_schema_faults(ours, target.schema.root) if each.kind == "type"
                ]:
                    raise Invalid(str(wrong))
                ours = patching.settle_body_by_patch_schema(ours, target.schema)
            elif patching.settle_body_by_patch_schema(ours, target.schema) != ours:
                raise Invalid("a null that the schema of a custom kind does not allow")
        except ApiError as error:
            return None, error
        finally:
            assert json.dumps([live, step.body]) == before, "the engine changed its arguments"
        return ours, None

    def _probe(self, target: Target, name: str, live: Any, ours: Any, step: Step) -> Response:
        meta = {field: value for field, value in (ours.get("metadata") or {}).items() if field != "managedFields"}
        body = {"apiVersion": target.api_version, "kind": target.kind, **ours, "metadata": meta}
        if live is None:
            meta["name"] = name
            return self.wire("POST", target.path(self.namespace) + "?dryRun=All", body)
        return self.wire("PUT", target.path(self.namespace, name, step.subresource) + "?dryRun=All", body)

    def _real(self, target: Target, name: str, step: Step) -> Response:
        query = f"?fieldManager={step.manager}" + ("&force=true" if step.force else "")
        kind = CONTENT_TYPES[step.how]
        if step.how == "create":
            return self.wire("POST", target.path(self.namespace) + query, step.body, kind)
        method = "PUT" if step.how == "replace" else "PATCH"
        return self.wire(method, target.path(self.namespace, name, step.subresource) + query, step.body, kind)

    def _same_refusal(self, real: Response, refusal: ApiError | None, probe: Response | None, step: Step) -> None:
        if refusal is None:
            assert probe is not None
            assert probe.status == real.status, f"the server refused, the engine made this: {probe.body}\n{real.body}"
        elif real.status == 500:
            assert refusal.code in (400, 422), refusal
        else:
            assert (refusal.code, refusal.reason) == (real.status, real.body["reason"]), (refusal, real.body)
        if isinstance(refusal, ApplyConflict):
            theirs = [(cause["reason"], cause["message"], cause["field"]) for cause in real.body["details"]["causes"]]
            mine = [(cause.reason, cause.message, cause.field) for cause in refusal.causes]
            _same("causes", sorted(theirs), sorted(mine))


def _without(body: Any, path: list[str]) -> Any:
    name, *below = path
    if name not in body:
        return body
    if below:
        return {**body, name: _without(body[name], below)}
    return {field: value for field, value in body.items() if field != name}


def _object(body: Any) -> Any:
    meta = {field: value for field, value in body["metadata"].items() if field not in VOLATILE}
    out = {**body, "metadata": meta}
    if body["kind"] == "Service":  # a dry run gets an address of its own
        out["spec"] = {
            field: value for field, value in body["spec"].items() if field not in ("clusterIP", "clusterIPs")
        }
    return out


def _owners(body: Any) -> Any:
    entries = body["metadata"].get("managedFields", [])
    return sorted(
        ({**entry, "time": "time" in entry} for entry in entries), key=lambda e: json.dumps(e, sort_keys=True)
    )


def _same(what: str, theirs: Any, ours: Any) -> None:
    if theirs != ours:
        left, right = (json.dumps(each, indent=1, sort_keys=True).splitlines() for each in (theirs, ours))
        shown = difflib.unified_diff(left, right, "the server's", "the engine's", n=6, lineterm="")
        raise AssertionError(f"{what}:\n" + "\n".join(shown))
