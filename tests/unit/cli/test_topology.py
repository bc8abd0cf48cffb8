"""`remuda topology`: the matrix and the tree, at every width, of nodes known and unknown."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from remuda.api.devices import NodeDevices, Observed, ObservedDevice, ObservedLink
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import ObjectMeta
from remuda.cli.devices.topology import node_place_for_topology_screen
from remuda.cli.devices.topology_screen import MatrixView, NodePlace, render_topology_tree, topology_screen_link_matrix
from remuda.core.devices.machine_models import (
    MachineModel,
    known_machine_models,
    load_built_in_machine_model,
    parse_machine_model,
)
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import ClusterConfig
from tests.unit.cli.scenes import NOW, Cli, a_full_node, a_node, a_pod, a_sliced_node, holding, text_of

PAIR = "two-socket-4x-pcie"


def labelled(node: Node, **labels: str) -> Node:
    meta = msgspec.structs.replace(
        node.metadata, labels={**node.labels, **{k.replace("__", "/"): v for k, v in labels.items()}}
    )
    return msgspec.structs.replace(node, metadata=meta)


def test_the_matrix_as_users_know_it() -> None:
    screen = text_of(MatrixView(NodePlace(machine=load_built_in_machine_model(PAIR))), 80)
    assert screen == (
        "      gpu-0 gpu-1 gpu-2 gpu-3 nic-0 nic-1 NUMA\n"
        "gpu-0 X     PHB   SYS   SYS   PHB   SYS      0\n"
        "gpu-1 PHB   X     SYS   SYS   PHB   SYS      0\n"
        "gpu-2 SYS   SYS   X     PHB   SYS   PHB      1\n"
        "gpu-3 SYS   SYS   PHB   X     SYS   PHB      1\n"
        "\n"
        "PHB  one PCIe host bridge\n"
        "SYS  across NUMA nodes"
    )


def test_a_wide_matrix_is_split_where_the_terminal_is_narrow() -> None:
    view = MatrixView(NodePlace(machine=load_built_in_machine_model("dgx-h100")))
    narrow, wide = (text_of(view, width).splitlines() for width in (80, 160))
    assert wide[0].split()[-4:] == ["nic-7", "CPU", "affinity", "NUMA"]
    assert wide[1].split() == ["gpu-0", "X", *["NV18"] * 7, "PXB", *["NODE"] * 3, *["SYS"] * 4, "0-55,112-167", "0"]
    assert narrow[0].split() == [*(f"gpu-{i}" for i in range(8)), "CPU", "affinity", "NUMA"]
    assert narrow[10].split() == [f"nic-{i}" for i in range(8)]
    assert "NV18  18 NVLinks, bonded: 900 GB/s a pair, both ways together" in narrow
    assert all(len(line) <= 80 for line in narrow)


@pytest.mark.parametrize("width", [80, 120, 500])
@pytest.mark.parametrize("name", known_machine_models())
def test_every_model_fits_the_screen_whole(name: str, width: int) -> None:
    place = NodePlace(machine=load_built_in_machine_model(name))
    lines = [
        *text_of(MatrixView(place), width).splitlines(),
        *text_of(render_topology_tree(place, NOW), width).splitlines(),
    ]
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)
    text = "\n".join(lines)
    assert all(d.id in text for d in place.machine.devices)
    assert all(n.name in text for n in place.machine.nics)


def test_the_matrix_mirrors_itself() -> None:
    for name in known_machine_models():
        cells = topology_screen_link_matrix(load_built_in_machine_model(name))
        assert all(cells[a][b] == cells[b][a] for a in cells for b in cells)
        assert all(cells[a][a] == "X" for a in cells)


def test_the_tree_marks_health_holders_and_slices() -> None:
    node = labelled(a_node(2), topology__x="", **{"topology.kubernetes.io__zone": "eu-1a"})
    pod = a_pod(1, metadata=holding("gpu-0", "gpu-1-3g.40gb-4"))
    place = node_place_for_topology_screen(a_sliced_node(), node, [pod], [])
    lines = text_of(render_topology_tree(place, NOW), 100).splitlines()
    assert lines[0] == "zone eu-1a"
    assert lines[1] == "└── rack rack-1"
    assert lines[2] == "    └── node-02  dgx-h100: 8 x NVIDIA-H100-80GB-HBM3  Ready"
    assert lines[3].endswith("NUMA 0  CPUs 0-55,112-167")
    assert lines[4].endswith("PCIe root-0, sw-0")
    assert lines[5].endswith("● gpu-0  79.6 GiB  default/hello-worker-1")
    assert lines[6].endswith("  nic-0  ConnectX-7  400 Gb/s")
    assert lines[8].endswith("▤ gpu-1  79.6 GiB  sliced")
    assert lines[9].endswith("○ gpu-1-3g.40gb-0  39.8 GiB  free")
    assert lines[10].endswith("● gpu-1-3g.40gb-4  39.8 GiB  default/hello-worker-1")
    assert lines[13].endswith("✗ gpu-2  79.6 GiB  Unhealthy Xid79 for 1m00s")
    assert "X gpu-2" in text_of(render_topology_tree(place, NOW, plain=True), 100)


def test_a_device_that_is_not_there_is_missed() -> None:
    full = a_full_node()
    kept = [d for d in full.observed.devices if d.id != "gpu-5"]
    shown = msgspec.structs.replace(full, observed=msgspec.structs.replace(full.observed, devices=kept))
    assert "? gpu-5  missing" in text_of(
        render_topology_tree(node_place_for_topology_screen(shown, None, [], []), NOW), 100
    )


def test_a_tray_is_shown_in_its_nvlink_domain() -> None:
    node = labelled(a_node(2), **{"nvidia.com__gpu.clique": "7f.1"})
    place = node_place_for_topology_screen(a_full_node(model="gb200-nvl72-tray"), node, [], [])
    lines = text_of(render_topology_tree(place, NOW), 100).splitlines()
    assert lines[1].endswith("NVLink domain of 18 nodes, 72 devices: 7f.1")
    alone = text_of(render_topology_tree(NodePlace(machine=load_built_in_machine_model("gb200-nvl72-tray")), NOW), 100)
    assert alone.startswith("NVLink domain of 18 nodes, 72 devices: label nvidia.com/gpu.clique\n")


def homemade() -> NodeDevices:
    rows = [ObservedDevice(id=f"gpu-{i}", type="X", index=i, numa=i // 2) for i in range(4)]
    links = [ObservedLink("NV4", ["gpu-0", "gpu-1"])]
    return NodeDevices(
        metadata=ObjectMeta(name="node-02"), observed=Observed(model="homemade", devices=rows, links=links)
    )


def test_a_node_of_unknown_make_is_drawn_from_what_it_shows() -> None:
    screen = text_of(MatrixView(node_place_for_topology_screen(homemade(), a_node(2), [], [])), 80)
    assert screen.splitlines()[1].split() == ["gpu-0", "X", "NV4", "SYS", "SYS", "0"]


def own_model(**changes: object) -> MachineModel:
    devices = [{"index": i, "type": "X", "memoryBytes": 1, "root": "r"} for i in range(4)]
    return parse_machine_model({"name": "homemade", "devices": devices, **changes})


def test_a_model_of_ones_own_is_used() -> None:
    cells = topology_screen_link_matrix(node_place_for_topology_screen(homemade(), None, [], [own_model()]).machine)
    assert cells["gpu-0"]["gpu-3"] == "PHB"


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        node_place_for_topology_screen(a_full_node(), None, [], [], load_built_in_machine_model(PAIR))
    assert caught.value.reason == "ModelDoesNotFit"
    assert "gpu-4, gpu-5, gpu-6, gpu-7" in caught.value.message


def test_a_node_without_devices_is_refused() -> None:
    with pytest.raises(Refusal, match="NoDevices"):
        node_place_for_topology_screen(NodeDevices(metadata=ObjectMeta(name="node-02")), None, [], [])


# --- the command --------------------------------------------------------------------------------------------------------


def test_the_command_shows_tree_and_matrix(busy: Cli) -> None:
    result = busy.run("topology", "node-02")
    assert result.code == 0
    assert "node-02  dgx-h100: 8 x" in result.out
    assert "✗ gpu-2" in result.out
    assert "CPU affinity" in result.out
    assert "Source:" not in result.out
    wide = busy.run("topology", "node-02", "-o", "wide").out
    assert "Source: NVIDIA DGX" in wide
    assert "Slices of h100-80gb: 1g.10gb (7), 1g.10gb+me (1), 1g.20gb (4), 2g.20gb (3), 3g.40gb (2)," in wide


def test_as_a_document(busy: Cli) -> None:
    document = busy.run("topology", "node-02", "-o", "json").document
    assert (document["node"], document["model"], document["domains"]) == ("node-02", "dgx-h100", {"rack": "rack-1"})
    assert document["links"]["gpu-0"]["gpu-7"] == "NV18"
    assert document["links"]["gpu-0"]["nic-0"] == "PXB"
    assert document["devices"][2]["state"] == "Unhealthy"
    assert document["fabric"] is None


def test_a_model_alone_needs_no_cluster(cli: Cli, tmp_path: Path) -> None:
    mi300x = cli.run("topology", "--model", "mi300x-8x").out
    assert "XGMI" in mi300x
    assert "These devices cannot be sliced." in mi300x
    file = tmp_path / "mine.json"
    file.write_bytes(msgspec.json.encode(own_model()))
    assert "homemade  4 x X" in cli.run("topology", "--model", str(file)).out
    yaml_file = tmp_path / "mine.yaml"
    yaml_file.write_text("name: y\ndevices: [{index: 0, type: Z, memoryBytes: 1}]\n")
    assert "y  1 x Z" in cli.run("topology", "--model", str(yaml_file)).out


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        (None, "absent.json", "MachineModelUnreadable"),
        ("{", "m.json", "InvalidMachineModel"),
        ("a: [", "m.yaml", "InvalidMachineModel"),
        ("just words", "m.yml", "InvalidMachineModel"),
        ("[1]", "m.json", "InvalidMachineModel"),
        ("x" * ((1 << 20) + 1), "m.json", "InvalidMachineModel"),
        ('{"name": "mine", "devices": []}', "m.json", "InvalidMachineModel"),
        (
            '{"name": "dgx-h100", "devices": [{"index": 0, "type": "H100", "memoryBytes": 1}]}',
            "m.json",
            "MachineModelNameTaken",
        ),
    ],
)
def test_files_that_are_no_models(cli: Cli, tmp_path: Path, text: str | None, name: str, reason: str) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    result = cli.run("topology", "--model", str(file))
    assert result.code == 2
    assert result.err.startswith(f"error: {reason}: ")
    assert result.out == ""


def test_what_cannot_be_shown(busy: Cli) -> None:
    assert busy.run("topology").err.startswith("error: NoNode: ")
    assert busy.run("topology", "node-20").err.startswith("error: NodeNotFound: ")
    assert busy.run("topology", "--model", "toaster").err.startswith("error: UnknownMachineModel: ")
    assert busy.run("topology", "node-02", "--model", PAIR).err.startswith("error: ModelDoesNotFit: ")


def test_a_cluster_remembers_its_model_file_by_its_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from remuda.runtime.up_config import check_cluster_config

    (tmp_path / "mine.json").write_text(json.dumps(msgspec.to_builtins(own_model())))
    monkeypatch.chdir(tmp_path)
    config = check_cluster_config(ClusterConfig(model="mine.json"))
    assert config.model == str(tmp_path / "mine.json")
    StateDir(tmp_path).remember(config)
    assert StateDir(tmp_path).remembered() == config
