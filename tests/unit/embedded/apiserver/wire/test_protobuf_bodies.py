"""Bodies as Go clients write them. The bytes are built here field by field, as gogo/protobuf does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.api.errors import BadRequest
from remuda.embedded.apiserver.wire.protobuf_bodies import parse_protobuf


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def envelope(api_version: str, kind: str, message: bytes) -> bytes:
    return (
        b"k8s\x00" + field(1, field(1, api_version) + field(2, kind)) + field(2, message) + field(3, "") + field(4, "")
    )


META = field(1, "x") + field(2, "") + field(3, "ns") + field(7, 0) + field(8, b"")


def test_a_config_map_with_labels_and_data() -> None:
    meta = META + field(11, field(1, "app") + field(2, "web"))
    body = field(1, meta) + field(2, field(1, "k") + field(2, "v"))
    assert parse_protobuf(envelope("v1", "ConfigMap", body)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "ns", "labels": {"app": "web"}},
        "data": {"k": "v"},
    }


def test_zero_counts_only_where_go_has_a_pointer() -> None:
    spec = field(1, 0) + field(5, 0) + field(7, 0)  # replicas *int32, minReadySeconds int32, paused bool
    parsed = parse_protobuf(envelope("apps/v1", "Deployment", field(1, META) + field(2, spec)))
    assert parsed["spec"] == {"replicas": 0}


def test_embedded_structs_are_flattened_and_special_types_become_text() -> None:
    volume = field(1, "v") + field(2, field(19, field(1, field(1, "cm"))))
    resources = field(1, field(1, "cpu") + field(2, field(1, "500m")))
    port = field(2, field(1, 0) + field(2, 8080) + field(3, ""))
    probe = field(1, field(2, field(1, "/") + port))
    container = field(1, "c") + field(8, resources) + field(10, probe)
    parsed = parse_protobuf(envelope("v1", "Pod", field(1, META) + field(2, field(1, volume) + field(2, container))))
    assert parsed["spec"]["volumes"] == [{"name": "v", "configMap": {"name": "cm"}}]
    assert parsed["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "500m"}}
    assert parsed["spec"]["containers"][0]["livenessProbe"]["httpGet"] == {"path": "/", "port": 8080}


def test_times_bytes_and_negative_numbers() -> None:
    meta = META + field(9, field(1, 1_700_000_000) + field(2, 0))
    secret = field(1, meta) + field(2, field(1, "k") + field(2, b"\x00\xff"))
    parsed = parse_protobuf(envelope("v1", "Secret", secret))
    assert parsed["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:20Z"
    assert parsed["data"] == {"k": "AP8="}
    priority = parse_protobuf(envelope("scheduling.k8s.io/v1", "PriorityClass", field(1, META) + field(2, -5)))
    assert priority["value"] == -5


def test_delete_options_go_by_any_version() -> None:
    parsed = parse_protobuf(envelope("policy/v1", "DeleteOptions", field(1, 0) + field(4, "Orphan")))
    assert (parsed["gracePeriodSeconds"], parsed["propagationPolicy"]) == (0, "Orphan")


def test_unknown_fields_are_skipped() -> None:
    body = field(1, META) + field(9999, "future") + varint(77 << 3 | 1) + b"12345678"
    assert parse_protobuf(envelope("v1", "ConfigMap", body))["metadata"]["name"] == "x"


@pytest.mark.parametrize(
    "data",
    [b"", b"k8s\x00", b"{}", b"k8s\x00\xff", envelope("v1", "Unicorn", b""), envelope("v1", "Pod", b"\x0a\xff")],
)
def test_what_cannot_be_read_is_a_bad_request(data: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_protobuf(data)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail_otherwise(data: bytes) -> None:
    for whole in (b"k8s\x00" + data, envelope("v1", "Pod", data)):
        try:
            parse_protobuf(whole)
        except BadRequest:
            pass


def test_the_table_is_up_to_date() -> None:
    must = os.environ.get("REMUDA_REQUIRE_KUBE", "") not in ("", "0")
    if which("go") is None and not must:
        pytest.skip("the table was not compared with its source: it is made from Go modules and there is no go")
    tool = Path(__file__).parents[5] / "tools" / "extract-proto-numbers"
    done = subprocess.run([sys.executable, tool, "--check"], check=False, capture_output=True, text=True)
    if not must and ("go list" in done.stderr or "CalledProcessError" in done.stderr):
        pytest.skip("the Go modules are not downloaded")
    assert done.returncode == 0, "run tools/extract-proto-numbers"
