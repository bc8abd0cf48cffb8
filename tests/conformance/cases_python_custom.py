"""Cases of custom kinds: definitions, validation, defaulting, pruning, columns, subresources."""

from __future__ import annotations

from typing import Any

from tests.conformance.bodies import custom, definition
from tests.conformance.catalogue import case
from tests.conformance.places import APPLY, DEFINITIONS, MERGE
from tests.conformance.run import Run
from tests.conformance.servers import wait_for

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def define(run: Run, body: dict[str, Any]) -> str:
    """The path of the new kind's objects, once they are served: kube-apiserver takes a moment."""
    run.server.must("POST", DEFINITIONS, body)
    path = f"/apis/suite.example/v1/namespaces/{run.ns}/{body['spec']['names']['plural']}"
    wait_for(lambda: run.server.request("GET", path)[0] == 200)
    name = body["metadata"]["name"]

    def is_established() -> bool:
        conditions = run.server.must("GET", f"{DEFINITIONS}/{name}").get("status", {}).get("conditions", [])
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    wait_for(is_established)
    return path


@case("py", "custom-definition")
def definitions(run: Run) -> None:
    define(run, definition("apples", "Apple"))
    run.http("GET", f"{DEFINITIONS}/apples.suite.example")
    run.http("PATCH", f"{DEFINITIONS}/apples.suite.example", {"metadata": {"labels": {"a": "b"}}}, media=MERGE)
    run.http("POST", DEFINITIONS, definition("apples", "Apple"))


@case("py", "custom-definitions-refused")
def refused(run: Run) -> None:
    body = definition("bad", "Bad")
    body["metadata"]["name"] = "wrong.suite.example"
    run.http("POST", DEFINITIONS, body)
    body = definition("bad", "Bad")
    body["spec"]["versions"] = []
    run.http("POST", DEFINITIONS, body)
    body = definition("bad", "Bad")
    body["spec"]["scope"] = "Everywhere"
    run.http("POST", DEFINITIONS, body)
    body = definition("bad", "Bad")
    del body["spec"]["versions"][0]["schema"]
    run.http("POST", DEFINITIONS, body)
    body = definition(
        "bad", "Bad", {"type": "object", "properties": {"spec": {"properties": {"a": {"type": "integer"}}}}}
    )
    run.http("POST", DEFINITIONS, body)
    body = definition("bad", "Bad")
    body["spec"]["versions"][0]["storage"] = False
    run.http("POST", DEFINITIONS, body)


@case("py", "custom-crud")
def crud(run: Run) -> None:
    path = define(run, definition("beans", "Bean"))
    run.http("POST", path, custom("Bean", size=3))
    run.http("POST", path, custom("Bean", size=3))
    run.http("GET", f"{path}/one")
    run.http("GET", path)
    found = run.http("PATCH", f"{path}/one", {"spec": {"size": 4}}, media=MERGE)
    run.http("PUT", f"{path}/one", {**custom("Bean", size=5)})
    if found:
        found["spec"]["size"] = 6
        run.http("PUT", f"{path}/one", found)
    run.http("PATCH", f"{path}/one", custom("Bean", size=6), media=APPLY, fieldManager="first")
    run.http("DELETE", f"{path}/one")
    run.http("GET", f"{path}/one")


@case("py", "custom-validation")
def validation(run: Run) -> None:
    path = define(run, definition("corns", "Corn"))
    specs: list[dict[str, Any]] = [
        {"size": 0},
        {"size": 10},
        {"size": "big"},
        {"size": 1.5},
        {"colour": "red"},
        {"size": 1, "colour": "blue"},
        {"size": 1, "name": "NO"},
        {"size": 1, "name": "muchtoolong"},
        {"size": 1, "parts": ["a", "b", "c", "d"]},
        {"size": 1, "parts": [1]},
        {"size": 1, "port": "http"},
        {"size": 1, "port": True},
        {"size": 1, "free": {"any": ["thing"]}},
        {"size": None},
    ]
    for number, spec in enumerate(specs):
        run.http("POST", path, custom("Corn", f"n{number}", **spec))
    run.http("POST", path, {"apiVersion": "suite.example/v1", "kind": "Corn", "metadata": {"name": "bare"}})


@case("py", "custom-defaults-and-pruning")
def pruning(run: Run) -> None:
    path = define(run, definition("dates", "Date"))
    run.http("POST", path, {**custom("Date", size=1, surprise={"x": 1}), "top": "gone"})
    run.http("POST", path, custom("Date", "null", size=1, colour=None))
    run.http("POST", path, custom("Date", "strict", size=1, surprise=1), fieldValidation="Strict")
    run.http("PATCH", f"{path}/one", {"spec": {"other": 1, "free": {"kept": 1}}}, media=MERGE)


@case("py", "custom-status-and-scale")
def subresources(run: Run) -> None:
    path = define(run, definition("eggs", "Egg"))
    run.http("POST", path, {**custom("Egg", size=1, replicas=2), "status": {"phase": "ignored"}})
    run.http(
        "PATCH", f"{path}/one/status", {"status": {"phase": "Good", "replicas": 2}, "spec": {"size": 9}}, media=MERGE
    )
    run.http("GET", f"{path}/one/status")
    run.http("GET", f"{path}/one/scale")
    run.http("PATCH", f"{path}/one/scale", {"spec": {"replicas": 7}}, media=MERGE)
    run.http("GET", f"{path}/one")
    run.http("PATCH", f"{path}/one", {"status": {"phase": "Bad"}}, media=MERGE)


@case("py", "custom-columns")
def columns(run: Run) -> None:
    path = define(run, definition("figs", "Fig"))
    run.http("POST", path, custom("Fig", size=2))
    run.http("GET", path, accept=TABLE)


@case("py", "custom-deleted-with-its-definition")
def deleted(run: Run) -> None:
    path = define(run, definition("grapes", "Grape"))
    run.http("POST", path, custom("Grape", size=2))
    run.http("DELETE", f"{DEFINITIONS}/grapes.suite.example")
    wait_for(lambda: run.server.request("GET", f"{DEFINITIONS}/grapes.suite.example")[0] == 404)
    wait_for(lambda: run.server.request("GET", path)[0] == 404)
    run.http("GET", path)


@case("py", "custom-without-a-group-name-clash")
def clash(run: Run) -> None:
    define(run, definition("limes", "Lime"))
    other = definition("limetrees", "Lime")
    run.server.must("POST", DEFINITIONS, other)

    def is_decided() -> bool:
        return "conditions" in run.server.must("GET", f"{DEFINITIONS}/limetrees.suite.example").get("status", {})

    wait_for(is_decided)
    run.http("GET", f"{DEFINITIONS}/limetrees.suite.example")
