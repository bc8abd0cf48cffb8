"""The messages have the numbers Kubernetes gives them, and values come back from the wire as they went."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from remuda.link import kubelet_proto as proto
from remuda.link.device_plugin_port import (
    HEALTHY,
    UNHEALTHY,
    ContainerAllocation,
    ContainerDevices,
    DeviceNode,
    Mount,
    PluginDevice,
    PluginInfo,
    PluginOptions,
    PreferredRequest,
    RegisterRequest,
    RegistrationStatus,
)
from remuda.link.kubelet_facts import FACTS, MESSAGES

ROOT = Path(__file__).resolve().parents[3]
SOURCES = {
    "v1beta1": "pkg/apis/deviceplugin/v1beta1/api.proto",
    "v1": "pkg/apis/podresources/v1/api.proto",
    "pluginregistration": "pkg/apis/pluginregistration/v1/api.proto",
}
FIELD = re.compile(r"^\s*(optional |repeated )?(map<string, ?string>|\w+)\s+(\w+)\s*=\s*(\d+);")


def kubelet_module() -> Path | None:
    if shutil.which("go") is None:
        return None
    done = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubelet"],
        cwd=ROOT / "tests/kube",
        capture_output=True,
        text=True,
        env={"HOME": str(Path.home()), "PATH": os.environ["PATH"], "GOFLAGS": "-mod=mod", "GOPROXY": "off"},
    )
    found = Path(done.stdout.strip() or "/nonexistent")
    return found if done.returncode == 0 and found.is_dir() else None


def facts_of(text: str) -> tuple[dict[str, str], set[str]]:
    """Messages in the table's own notation, and the services' method paths."""
    messages: dict[str, list[str]] = {}
    methods: set[str] = set()
    package = re.findall(r"^package (\w+);", text, re.M)[0]
    current = service = ""
    for line in text.splitlines():
        if opened := re.match(r"^message (\w+) \{(\})?", line):
            current = "" if opened[2] else opened[1]
            messages[opened[1]] = []
        elif opened := re.match(r"^service (\w+) \{", line):
            service = opened[1]
        elif line.startswith("}"):
            current = service = ""
        elif service and (called := re.match(r"^\s*rpc (\w+)\(", line)):
            methods.add(f"/{package}.{service}/{called[1]}")
        elif current and (field := FIELD.match(line)):
            label, kind, name, number = field.groups()
            if kind.startswith("map"):
                kind = "{string}"
            elif label:
                kind = f"[{kind}]" if label == "repeated " else f"?{kind}"
            messages[current].append(f"{name}:{kind}={number}")
    return {name: " ".join(fields) for name, fields in messages.items()}, methods


def every_method() -> list[proto.KubeletMethod[Any, Any]]:
    return [value for value in vars(proto).values() if isinstance(value, proto.KubeletMethod)]


def test_the_table_says_what_the_kubelets_own_source_says() -> None:
    module = kubelet_module()
    if module is None:
        pytest.skip("the Go module cache has no k8s.io/kubelet (make kube fetches it)")
    methods: set[str] = set()
    for package, path in SOURCES.items():
        messages, found = facts_of((module / path).read_text(encoding="utf-8"))
        methods |= found
        assert {name: " ".join(facts.split()) for name, facts in FACTS[package].items()} == messages
    assert {method.path for method in every_method()} == methods


def test_every_field_of_the_table_is_in_the_built_message_under_its_number() -> None:
    fields = 0
    for package, messages in FACTS.items():
        for name, facts in messages.items():
            built = MESSAGES[package][name].DESCRIPTOR.fields_by_name
            assert {key: field.number for key, field in built.items()} == {
                fact.partition(":")[0]: int(fact.rpartition("=")[2]) for fact in facts.split()
            }
            fields += len(built)
    assert fields == 74


ALLOCATION = ContainerAllocation(
    {"A": "1", "B": ""},
    (Mount("/run/a", "/var/a"), Mount("/bin/x", "/opt/x", True)),
    (DeviceNode("/dev/nvidia0", "/dev/nvidia0", "rw"),),
    {"note": "ü"},
    ("vendor.com/gpu=0",),
)

ROUND_TRIPS: list[tuple[proto.KubeletCodec[Any], Any]] = [
    (proto.REGISTER.request, RegisterRequest("a.sock", "nvidia.com/gpu", "v1beta1", PluginOptions(False, True))),
    (proto.REGISTER.response, None),
    (proto.OPTIONS.response, PluginOptions(True, False)),
    (proto.LIST_AND_WATCH.response, ()),
    (
        proto.LIST_AND_WATCH.response,
        (PluginDevice("gpu-0", HEALTHY, (0,)), PluginDevice("gpu-1", UNHEALTHY, (1, 0)), PluginDevice("x", "odd")),
    ),
    (proto.PREFERRED.request, (PreferredRequest(("a", "b"), ("b",), 2), PreferredRequest((), (), 0))),
    (proto.PREFERRED.response, (("a", "b"), ())),
    (proto.ALLOCATE.request, (("a", "b"), ("c",))),
    (proto.ALLOCATE.response, (ALLOCATION, ContainerAllocation())),
    (proto.PRE_START.request, ("a",)),
    (
        proto.POD_RESOURCES_LIST.response,
        (
            ContainerDevices("default", "p", "c", "nvidia.com/gpu", ("gpu-0", "gpu-1")),
            ContainerDevices("default", "p", "c", "nvidia.com/mig-1g.10gb", ("m",)),
            ContainerDevices("default", "p", "d", "nvidia.com/gpu", ("gpu-2",)),
            ContainerDevices("other", "p", "c", "nvidia.com/gpu", ("gpu-3",)),
        ),
    ),
    (proto.POD_RESOURCES_ALLOCATABLE.response, {"nvidia.com/gpu": ("gpu-0",), "x/y": ()}),
    (proto.POD_RESOURCES_GET.request, ("default", "p")),
    (proto.POD_RESOURCES_GET.response, (ContainerDevices("default", "p", "c", "nvidia.com/gpu", ("gpu-0",)),)),
    (proto.POD_RESOURCES_GET.response, ()),
    (proto.GET_INFO.response, PluginInfo("DevicePlugin", "nvidia.com/gpu", "/a.sock", ("v1beta1",))),
    (proto.NOTIFY.request, RegistrationStatus(False, "no")),
]


@pytest.mark.parametrize(("codec", "value"), ROUND_TRIPS)
def test_values_come_back_as_they_went(codec: proto.KubeletCodec[Any], value: Any) -> None:
    assert codec.decode(codec.encode(value)) == value


def test_known_bytes() -> None:
    """Written out by hand once: tag = number << 3 | wire type."""
    assert proto.ALLOCATE.request.encode((("a",),)) == b"\x0a\x03\x0a\x01a"
    assert proto.LIST_AND_WATCH.response.encode((PluginDevice("a", HEALTHY, (1,)),)) == (
        b"\x0a\x12" + b"\x0a\x01a" + b"\x12\x07Healthy" + b"\x1a\x04" + b"\x0a\x02" + b"\x08\x01"
    )


def test_devices_split_by_numa_node_are_one_row() -> None:
    row = MESSAGES["v1"]["ListPodResourcesResponse"]
    parts = [{"resource_name": "nvidia.com/gpu", "device_ids": [i], "topology": {"nodes": [{"ID": 0}]}} for i in "ab"]
    message: Any = row
    data = message(
        pod_resources=[{"name": "p", "namespace": "n", "containers": [{"name": "c", "devices": parts}]}]
    ).SerializeToString()
    assert proto.POD_RESOURCES_LIST.response.decode(data) == (
        ContainerDevices("n", "p", "c", "nvidia.com/gpu", ("a", "b")),
    )


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x05abc", b"\x0a\x03\x0a\x01\xff"])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        proto.LIST_AND_WATCH.response.decode(data)


def test_unknown_fields_are_skipped() -> None:
    data = proto.OPTIONS.response.encode(PluginOptions(True, True)) + b"\x7a\x03new"
    assert proto.OPTIONS.response.decode(data) == PluginOptions(True, True)


def test_a_number_that_does_not_fit_is_refused_while_encoding() -> None:
    with pytest.raises(ValueError, match=r"out of range"):
        proto.PREFERRED.request.encode((PreferredRequest((), (), 1 << 40),))
