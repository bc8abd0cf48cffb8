"""What `kubectl get` shows."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.api.training import TrainingJob
from remuda.embedded.apiserver.kinds_served import BUILTIN, KindRegistry, ServedKind
from remuda.embedded.apiserver.wire.table_cells import duration_cell_text, pod_status_cell
from remuda.embedded.apiserver.wire.tables import table_columns

NOW = 1_700_000_600.0
MADE = {"creationTimestamp": "2023-11-14T22:13:20Z"}  # 600 s before


def row(served: ServedKind, body: JsonObject) -> dict[str, Any]:
    return {column.definition["name"]: column.cell(body, NOW) for column in table_columns(served)}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (10_860, "3h1m"),
        (86_400, "24h"),
        (172_800, "2d"),
        (180_000, "2d2h"),
        (86_400 * 30, "30d"),
        (86_400 * 800, "2y70d"),
        (86_400 * 3000, "8y"),
    ],
)
def test_ages_get_coarser_as_they_grow(seconds: float, text: str) -> None:
    assert duration_cell_text(seconds) == text


def container(**state: Any) -> JsonObject:
    return {"name": "c", "state": state, "ready": "running" in state}


@pytest.mark.parametrize(
    ("status", "meta", "text"),
    [
        ({"phase": "Pending"}, {}, "Pending"),
        ({"phase": "Running", "containerStatuses": [container(running={})]}, {}, "Running"),
        (
            {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "ErrImagePull"})]},
            {},
            "ErrImagePull",
        ),
        ({"phase": "Succeeded", "containerStatuses": [container(terminated={"reason": "Completed"})]}, {}, "Completed"),
        ({"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 3})]}, {}, "ExitCode:3"),
        ({"phase": "Failed", "containerStatuses": [container(terminated={"signal": 9})]}, {}, "Signal:9"),
        ({"phase": "Failed", "reason": "Evicted"}, {}, "Evicted"),
        ({"phase": "Running"}, {"deletionTimestamp": "2023-11-14T22:13:20Z"}, "Terminating"),
        ({"phase": "Succeeded"}, {"deletionTimestamp": "2023-11-14T22:13:20Z"}, "Succeeded"),
        ({"phase": "Pending", "initContainerStatuses": [container(running={})]}, {}, "Init:0/1"),
    ],
)
def test_the_state_of_a_pod_in_a_word(status: JsonObject, meta: JsonObject, text: str) -> None:
    body = {"metadata": meta, "spec": {"initContainers": [{"name": "c"}], "containers": [{}]}, "status": status}
    assert pod_status_cell(body, NOW) == text


def test_pods_have_the_columns_users_know() -> None:
    registry = KindRegistry()
    restarted = {
        **container(running={}),
        "restartCount": 2,
        "lastState": {"terminated": {"finishedAt": "2023-11-14T22:21:20Z"}},
    }
    body = {
        "metadata": {"name": "p", **MADE},
        "spec": {"containers": [{}], "nodeName": "n"},
        "status": {"phase": "Running", "containerStatuses": [restarted]},
    }
    shown = row(registry.of(Pod), body)
    assert shown["Restarts"] == "2 (2m ago)"
    assert {k: shown[k] for k in ("Name", "Ready", "Status", "Age", "Node")} == {
        "Name": "p",
        "Ready": "1/1",
        "Status": "Running",
        "Age": "10m",
        "Node": "n",
    }


@pytest.mark.parametrize("resource", BUILTIN, ids=lambda r: r.full_name)
def test_every_kind_can_be_shown_even_when_empty(resource: Any) -> None:
    served = ServedKind(resource)
    body: JsonObject = {
        "metadata": {"name": "x"},
        "spec": {"versions": []} if resource.kind.startswith("Custom") else {},
    }
    assert row(served, body)["Name"] == "x"


def test_a_custom_kind_has_its_printer_columns() -> None:
    body = {
        "metadata": {"name": "j", **MADE},
        "spec": {"roles": [{"replicas": 4}, {"replicas": 2}]},
        "status": {"phase": "Running", "attempt": 2, "progress": {"step": 7}, "goodput": {"ettr": 0.97}},
    }
    shown = row(KindRegistry().of(TrainingJob), body)
    assert (shown["Phase"], shown["Attempt"], shown["Ranks"], shown["Step"]) == ("Running", 2, "4 2", 7)
    assert (shown["ETTR"], shown["Age"], shown["Interruptions"]) == (0.97, "10m", None)
