"""remuda idle, and the resource form of remuda release, against a small cluster."""

from pathlib import Path

import msgspec
import pytest

from remuda.api.devices import NodeDevices, QuarantineOrder, Rejection
from remuda.api.kubernetes.core_v1 import Pod, PodSpec, PodStatus
from remuda.api.meta import ObjectMeta
from remuda.api.names import ANNOTATION_DEVICES, RESOURCE_GPU
from remuda.api.remedies import Idle, RemedyPolicy, RemedyPolicySpec
from remuda.core.foreign.withheld_resources import WITHHELD_BY
from tests.unit.cli.scenes import Cli, a_node, at, devices_of_node

HOUR = 3600.0


def a_holder(name: str, node: int, *devices: str, namespace: str = "default") -> Pod:
    meta = ObjectMeta(
        name=name, namespace=namespace, uid=f"uid-{name}", annotations={ANNOTATION_DEVICES: ",".join(devices)}
    )
    return Pod(metadata=meta, spec=PodSpec(node_name=f"node-0{node}"), status=PodStatus(phase="Running"))


def resting(node: NodeDevices, since: float, *devices: str) -> NodeDevices:
    rows = [
        msgspec.structs.replace(row, idle_since=at(since), idle_utilisation=0.02) if row.id in devices else row
        for row in node.observed.devices
    ]
    return msgspec.structs.replace(node, observed=msgspec.structs.replace(node.observed, devices=rows))


def a_policy(action: str = "Reclaim") -> RemedyPolicy:
    rule = Idle(after_seconds=3 * HOUR, action=action, gpu_hour_price=2.5)
    return RemedyPolicy(metadata=ObjectMeta(name="default"), spec=RemedyPolicySpec(idle=rule))


@pytest.fixture
def idling(tmp_path: Path) -> Cli:
    """One pod wholly idle for two hours, one partly for four, one in another namespace at work."""
    return Cli(
        tmp_path,
        [
            a_node(1),
            a_node(2),
            resting(devices_of_node(1), -2 * HOUR, "gpu-0", "gpu-1"),
            resting(devices_of_node(2), -4 * HOUR, "gpu-0"),
            a_holder("notebook", 1, "gpu-0", "gpu-1"),
            a_holder("server", 2, "gpu-0", "gpu-1"),
            a_holder("trainer", 2, "gpu-5"),
            a_policy(),
        ],
    )


def test_the_table_says_who_since_when_what_it_cost_and_what_comes(idling: Cli) -> None:
    lines = idling.run("idle").out.splitlines()
    assert lines[0].split() == ["POD", "NODE", "IDLE", "BUSY", "SINCE", "GPU-HOURS", "COST", "POLICY", "NEXT"]
    notebook = next(line for line in lines if "notebook" in line)
    assert all(word in notebook for word in ("node-01", "2/2", "2%", "4.0", "10.00", "default", "Warn in 1h"))
    server = next(line for line in lines if "server" in line)
    assert all(word in server for word in ("1/2", "nothing (partly used)"))
    assert not any("trainer" in line for line in lines)
    assert lines[-1] == "3 devices held but not used, 8.0 GPU-hours so far, 20.00 at the policies' price."


def test_as_a_document(idling: Cli) -> None:
    found = {each["pod"]: each for each in idling.run("idle", "-o", "json").document["idle"]}
    assert found["notebook"] | {"since": "", "nextAt": ""} == {
        "namespace": "default",
        "pod": "notebook",
        "node": "node-01",
        "devices": ["gpu-0", "gpu-1"],
        "held": 2,
        "utilisation": 0.02,
        "since": "",
        "gpuHours": 4.0,
        "cost": 10.0,
        "policy": "default",
        "exempt": None,
        "next": "Warn",
        "nextAt": "",
    }
    assert found["server"]["exempt"] == "partly used"


def test_a_namespace_may_be_named(idling: Cli) -> None:
    assert idling.run("idle", "-n", "elsewhere", "-o", "json").document == {"idle": []}


def test_nothing_is_idle(cli: Cli) -> None:
    assert cli.run("idle").out == "No idle devices: every device that is held is in use.\n"


@pytest.fixture
def hole(tmp_path: Path) -> Cli:
    order = QuarantineOrder("BlackHole", "5 pods were refused here.", WITHHELD_BY, at(-60))
    entries = {RESOURCE_GPU: [Rejection("default/p", "uid-p", "no", at(-60))]}
    node = msgspec.structs.replace(devices_of_node(1), withheld={RESOURCE_GPU: order}, rejections=entries)
    return Cli(tmp_path, [a_node(1), node])


def test_a_withheld_resource_is_shown_and_given_back(hole: Cli) -> None:
    assert f"remuda release node-01 --resource {RESOURCE_GPU}" in hole.run("devices").out
    result = hole.run("release", "node-01", "--resource", RESOURCE_GPU)
    assert (result.code, result.err) == (0, "")
    node = hole.objects(NodeDevices)[0]
    assert (node.withheld, node.rejections) == ({}, {})
    again = hole.run("release", "node-01", "--resource", RESOURCE_GPU)
    assert again.code == 2
    assert "NotWithheld" in again.err


@pytest.mark.parametrize("said", [(), ("gpu-0", "--resource", RESOURCE_GPU)])
def test_release_wants_one_of_the_two(hole: Cli, said: tuple[str, ...]) -> None:
    result = hole.run("release", "node-01", *said)
    assert result.code == 2
    assert "NothingToRelease" in result.err
