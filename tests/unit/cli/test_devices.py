"""The ledger and the nodes on the screen and as a document."""

import msgspec

from remuda.api.devices import DeviceState, NodeDevices, Notice, Verdict
from remuda.api.kubernetes.core_v1 import Node, NodeSpec
from remuda.api.meta import ObjectMeta
from remuda.cli.cluster.nodes import render_nodes
from remuda.cli.devices.device_list import (
    device_list_document,
    device_list_entries,
    device_list_notices,
    device_list_resource_counts,
    render_ledger,
)
from remuda.cli.devices.device_rows import DeviceRows
from tests.unit.cli.scenes import (
    NOW,
    Cli,
    a_node,
    a_pod,
    a_sliced_node,
    at,
    devices_of_node,
    holding,
    machines,
    pods,
    text_of,
)


def sample() -> tuple[list[Node], list[NodeDevices]]:
    made = machines()
    return [m for m in made if isinstance(m, Node)], [m for m in made if isinstance(m, NodeDevices)]


def test_one_line_a_node_with_legend_and_troubles() -> None:
    nodes, devices = sample()
    screen = text_of(render_ledger(device_list_entries(nodes, devices, pods()), NOW), 80)
    assert screen == (
        "NODE     RACK    DEVICES   FREE  HOLDERS\n"
        "node-01  rack-1  ●●●●●●●●     0  hello-worker-0\n"
        "node-02  rack-1  ○○✗○○○○○     7\n"
        "node-03  rack-1  ●●●●●●●●     0  hello-worker-2\n"
        "node-04  rack-1  ●●●●●●●●     0  hello-worker-3\n"
        "node-05  rack-1  ●●●●●●●●     0  hello-worker-4\n"
        "node-06  rack-2  ○○○○○○○○     8\n"
        "\n"
        "○ 15 free   ● 32 held   ✗ 1 unhealthy   all H100\n"
        "\n"
        "NODE     DEVICE  STATE      SINCE  REASON\n"
        "node-02  gpu-2   Unhealthy  1m00s  Xid79: GPU has fallen off the bus."
    )


def test_every_state_has_a_glyph_also_without_unicode() -> None:
    states = {f"gpu-{i}": Verdict(device=f"gpu-{i}", state=s) for i, s in enumerate(DeviceState)}
    leaving = a_pod(
        1,
        metadata=ObjectMeta(
            name="leaving", namespace="default", deletion_timestamp=at(0), annotations={"remuda.dev/devices": "gpu-5"}
        ),
    )
    holding = a_pod(
        1, metadata=ObjectMeta(name="holding", namespace="other", annotations={"remuda.dev/devices": "gpu-6"})
    )
    ledger = device_list_entries([a_node(2)], [devices_of_node(2, bad=states)], [leaving, holding])
    fancy, plain = (text_of(render_ledger(ledger, NOW, plain=p), 100) for p in (False, True))
    assert "○◐✗?⊘◌●○" in fancy
    assert ".~X?Q-#." in plain
    assert plain.isascii()
    assert "leaving, other/holding" in plain


def test_wide_is_one_row_a_device() -> None:
    nodes, devices = sample()
    lines = text_of(DeviceRows(device_list_entries(nodes, devices, pods()), NOW), 120).splitlines()
    assert len(lines) == 1 + 48
    assert lines[0].split() == ["NODE", "DEVICE", "TYPE", "STATE", "REASON", "HOLDER", "SINCE", "NUMA"]
    assert lines[1].split() == ["node-01", "gpu-0", "H100", "Healthy", "-", "default/hello-worker-0", "5m00s", "0"]
    assert lines[11].split() == ["node-02", "gpu-2", "H100", "Unhealthy", "Xid79", "-", "1m00s", "0"]


SLICES = ["gpu-1-3g.40gb-0", "gpu-1-3g.40gb-4"]


def test_a_sliced_device_is_its_slices_in_brackets() -> None:
    node = a_sliced_node()
    ledger = device_list_entries([a_node(2)], [node], [a_pod(1, metadata=holding("gpu-0", SLICES[1]))])
    screen = text_of(render_ledger(ledger, NOW), 100)
    assert "●[○●]✗○○○○○" in screen
    assert "5+1" in screen
    assert "1 sliced" in screen
    assert "#[.#]X....." in text_of(render_ledger(ledger, NOW, plain=True), 100)
    nodes = text_of(render_nodes([a_node(2)], ledger, NOW), 80).splitlines()
    assert nodes[1].split()[3:6] == ["8", "5", "1"]  # GPUs, free, bad: slices are not GPUs


def test_wide_has_as_many_columns_as_there_is_room_for() -> None:
    ledger = device_list_entries([a_node(2)], [a_sliced_node()], [a_pod(1, metadata=holding("gpu-0", SLICES[1]))])
    everything = text_of(DeviceRows(ledger, NOW), 200).splitlines()
    assert everything[0].split() == ("NODE DEVICE TYPE SLICE STATE REASON HOLDER SINCE NUMA NIC PCI UUID".split())
    assert [line.split()[1] for line in everything[1:5]] == ["gpu-0", "gpu-1", *SLICES]
    assert "3g.40gb at 4" in everything[4]
    assert everything[1].endswith("GPU-3d2f8e4c-1111-2222-3333-444455556660")
    assert len(everything) == 11
    for width in (120, 80):
        screen = text_of(DeviceRows(ledger, NOW), width)
        lines = screen.splitlines()
        assert all(len(line) <= width for line in lines)
        assert "all NVIDIA-H100-80GB-HBM3" in screen
        assert "(sliced)" in lines[2]
        assert lines[4].split()[:5] == ["node-02", SLICES[1], "Healthy", "-", "default/hello-worker-1"]
        hidden = {120: "too narrow: SLICE.", 80: "too narrow: SLICE, UUID, PCI, NIC."}[width]
        assert hidden in screen
    assert "GPU-3d2f8e4c.." in text_of(DeviceRows(ledger, NOW), 120)
    assert text_of(DeviceRows([], NOW), 80).startswith("No devices.")


def test_nodes_count_free_and_bad() -> None:
    nodes, devices = sample()
    nodes[5] = a_node(6, "rack-2", ready=False)
    nodes[0] = msgspec.structs.replace(nodes[0], spec=NodeSpec(unschedulable=True))
    lines = text_of(render_nodes(nodes, device_list_entries(nodes, devices, pods()), NOW), 80).splitlines()
    assert lines[1].split() == ["node-01", "rack-1", "Ready,Cordoned", "8", "0", "0", "1", "5m00s"]
    assert lines[2].split() == ["node-02", "rack-1", "Ready", "8", "7", "1", "0", "5m00s"]
    assert lines[6].split() == ["node-06", "rack-2", "NotReady", "8", "8", "0", "0", "5m00s"]


def test_devices_as_a_document(busy: Cli) -> None:
    document = busy.run("devices", "-o", "json").document
    assert len(document["devices"]) == 48
    assert document["devices"][10] == {
        "node": "node-02",
        "rack": "rack-1",
        "device": "gpu-2",
        "type": "H100",
        "state": "Unhealthy",
        "reason": "Xid79",
        "message": "xid-79: GPU has fallen off the bus.",
        "since": at(-60).isoformat().replace("+00:00", "Z"),
        "holder": "",
        "container": "",
        "remedy": "",
        "idleSince": None,
        "idleUtilisation": None,
        "draining": False,
        "resource": "nvidia.com/gpu",
        "uuid": "",
        "pci": "",
        "numa": 0,
        "nic": "",
        "memoryBytes": 0,
        "slice": None,
    }


def test_empty_clusters_say_so(cli: Cli) -> None:
    assert cli.run("devices").out.startswith("No devices.")
    assert cli.run("nodes").out.startswith("No nodes.")
    assert cli.run("nodes", "-o", "json").document["items"] == []


def test_what_is_wrong_with_a_node_is_told_apart_from_its_devices() -> None:
    nodes, devices = sample()
    words = "The plugin for nvidia.com/gpu is lost. None of its 8 devices failed; 8 held by default/hello-worker-0."
    lost = Notice("PluginLost", words, "nvidia.com/gpu", at(-30), at(30))
    hit = msgspec.structs.replace(devices[0], notices=[lost])
    screen = text_of(
        render_ledger(
            device_list_entries(nodes, [hit, *devices[1:]], pods()),
            NOW,
            notices=device_list_notices([hit, *devices[1:]]),
        ),
        250,
    )
    [line] = [line for line in screen.splitlines() if "PluginLost" in line]
    assert line.startswith(
        "node-01  PluginLost    30s  The plugin for nvidia.com/gpu is lost. None of its 8 devices failed"
    )
    assert line.endswith(f"It may pass: nothing is done before {at(30):%H:%M:%S}.")
    later = text_of(
        render_ledger(device_list_entries(nodes, [hit], pods()), NOW + 31, notices=device_list_notices([hit])), 250
    )
    assert "Held down" not in later
    document_ = device_list_document(
        device_list_entries(nodes, [hit], pods()),
        device_list_notices([hit]),
        device_list_resource_counts([hit], pods()),
    )
    assert document_["notices"][0]["holdingUntil"] == at(30).isoformat().replace("+00:00", "Z")
    assert document_["counts"] == [
        {"node": "node-01", "resource": "nvidia.com/gpu", "total": 8, "healthy": 8, "unfit": 0, "held": 8, "free": 0}
    ]
