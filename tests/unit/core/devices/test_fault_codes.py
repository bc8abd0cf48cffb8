"""The fault table: every vendor code has a meaning, an unknown one the safe meaning."""

from __future__ import annotations

import json

import pytest

from remuda.api.devices import DeviceState
from remuda.core.devices.fault_codes import (
    SCOPES,
    DeviceRemedy,
    FaultClass,
    classify_device_fault_code,
    fault_table,
    parse_fault_table,
)

# Every Xid of the vendor's catalogue that applies to Ampere or newer.
XIDS = [
    *(8, 11, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 46, 48, 54, 60, 62, 63, 64),
    *range(66, 73), *range(74, 81), *range(82, 87), 88, 89, *range(92, 111), 119, 120, 121,
    *range(126, 138), *range(139, 174),
]  # fmt: skip

HEALTHY, DEGRADED, UNHEALTHY = DeviceState.HEALTHY, DeviceState.DEGRADED, DeviceState.UNHEALTHY
NONE, APP, RESET, REBOOT, REPLACE = DeviceRemedy


def test_the_table_says_which_one_it_is() -> None:
    table = fault_table()
    assert table.version
    assert "nvidia.com" in table.source


def test_every_vendor_code_is_there_and_no_other() -> None:
    codes = [code.removeprefix("xid-") for code in fault_table().by_code if code.startswith("xid-")]
    assert sorted(int(c) for c in codes if c.isdecimal()) == sorted(XIDS)
    assert sorted(c for c in codes if not c.isdecimal()) == [f"{n}-nonfatal" for n in range(144, 151)]


def test_every_nvswitch_code_is_there() -> None:
    codes = {int(code.removeprefix("sxid-")) for code in fault_table().by_code if code.startswith("sxid-")}
    assert len(codes) == 93
    assert {10004, 11004, 12028, 19084, 20001, 20012, 20034, 24007, *range(23001, 23018)} <= codes


def test_every_row_says_where_it_is_from_and_what_it_breaks() -> None:
    for fault in fault_table().by_code.values():
        assert len(fault.source) > 20, fault.code
        assert fault.scope in SCOPES, fault.code


@pytest.mark.parametrize(
    ("code", "scope"),
    [
        ("xid-13", "process"),
        ("xid-8", "process"),
        ("xid-94", "process"),
        ("xid-46", "device"),
        ("xid-79", "device"),
        ("xid-74", "link"),
        ("xid-149", "link"),
        ("xid-151", "node"),
        ("xid-78", "node"),
        ("sxid-20034", "link"),
        ("sxid-23001", "switch"),
        ("dcgm-nvswitch-down", "switch"),
        ("driver-hang", "node"),
        ("amd-page-fault", "process"),
        ("nic-port-down", "link"),
        ("readonly-filesystem", "node"),
        ("gremlins", "device"),
    ],
)
def test_scope(code: str, scope: str) -> None:
    assert classify_device_fault_code("kmsg", code).scope == scope


@pytest.mark.parametrize("fault", fault_table().by_code.values(), ids=lambda f: f.code)
def test_a_row_can_be_shown_to_people(fault: FaultClass) -> None:
    assert fault.reason.isalnum()
    assert fault.reason[0].isupper()
    assert fault.message.startswith(f"{fault.code}: ")
    assert fault.message.endswith(".")
    assert fault.effect in (HEALTHY, DEGRADED, UNHEALTHY, DeviceState.UNKNOWN)


@pytest.mark.parametrize(
    ("code", "cls", "effect", "remedy"),
    [
        # faults of the application: the device is fine
        ("xid-13", "app", HEALTHY, APP),
        ("xid-31", "app", HEALTHY, APP),
        ("xid-43", "app", HEALTHY, NONE),
        ("xid-45", "app", HEALTHY, APP),
        ("xid-39", "engine", HEALTHY, APP),
        ("xid-8", "hang", HEALTHY, APP),
        ("xid-14", "test", HEALTHY, NONE),
        ("xid-154", "info", HEALTHY, NONE),
        ("xid-162", "power_thermal", HEALTHY, NONE),
        # still serving
        ("xid-63", "row_remap", DEGRADED, NONE),
        ("xid-92", "degradation", DEGRADED, NONE),
        ("xid-94", "ecc_contained", DEGRADED, APP),
        ("xid-121", "interconnect", DEGRADED, NONE),
        ("xid-157", "row_remap", DEGRADED, NONE),
        ("xid-168", "degradation", DEGRADED, NONE),
        # out of use
        ("xid-46", "hang", UNHEALTHY, RESET),
        ("xid-48", "ecc", UNHEALTHY, RESET),
        ("xid-54", "power_thermal", UNHEALTHY, REPLACE),
        ("xid-64", "row_remap", UNHEALTHY, RESET),
        ("xid-74", "interconnect", UNHEALTHY, RESET),
        ("xid-79", "bus", UNHEALTHY, REBOOT),
        ("xid-95", "ecc", UNHEALTHY, RESET),
        ("xid-109", "hang", UNHEALTHY, RESET),
        ("xid-119", "firmware", UNHEALTHY, RESET),
        ("xid-142", "engine", UNHEALTHY, REPLACE),
        ("xid-149", "interconnect", UNHEALTHY, RESET),
        ("xid-151", "security", UNHEALTHY, REBOOT),
        ("xid-167", "bus", UNHEALTHY, REBOOT),
        ("xid-171", "ecc", UNHEALTHY, RESET),
        # what the line says beyond its code
        ("xid-145-nonfatal", "interconnect", HEALTHY, NONE),
        # the NVLink fabric
        ("sxid-11012", "corrected", HEALTHY, NONE),
        ("sxid-20012", "link_state", DEGRADED, NONE),
        ("sxid-12028", "partition", UNHEALTHY, REBOOT),
        ("sxid-23017", "fabric", UNHEALTHY, REBOOT),
        # other makers and the host
        ("amd-reset", "hang", UNHEALTHY, RESET),
        ("amd-ras-uncorrected", "ecc", UNHEALTHY, RESET),
        ("aer-corrected", "corrected", HEALTHY, NONE),
        ("aer-fatal", "bus", UNHEALTHY, REBOOT),
        ("dcgm-row-remap-failure", "diagnostic", UNHEALTHY, REPLACE),
        ("neuron-hbm-uncorrectable", "device_fatal", UNHEALTHY, REPLACE),
        # sources other than Xid
        ("nvml-lost", "bus", UNHEALTHY, REBOOT),
        ("ecc-dbe", "ecc", UNHEALTHY, RESET),
        ("thermal", "degradation", DEGRADED, NONE),
        ("row-remap-failed", "row_remap", UNHEALTHY, REPLACE),
        ("not-stopped", "hang", UNHEALTHY, RESET),
        ("operator", "operator", UNHEALTHY, NONE),
    ],
)
def test_meaning(code: str, cls: str, effect: DeviceState, remedy: DeviceRemedy) -> None:
    fault = classify_device_fault_code("kmsg", code)
    assert (fault.cls, fault.effect, fault.remedy) == (cls, effect, remedy)


def test_whatever_the_vendor_calls_an_application_fault_leaves_the_device_alone() -> None:
    for fault in fault_table().by_code.values():
        if fault.cls in ("app", "test", "info"):
            assert fault.effect is HEALTHY, fault.code


@pytest.mark.parametrize("code", ["xid-999", "xid-1", "", "gremlins"])
def test_an_unknown_code_takes_the_conservative_class(code: str) -> None:
    fault = classify_device_fault_code("kmsg", code)
    assert (fault.effect, fault.reason, fault.cls) == (UNHEALTHY, "UnknownFaultCode", "unknown")
    assert fault_table().version in fault.message


def test_an_operator_need_not_know_codes() -> None:
    assert classify_device_fault_code("operator", "smells funny").reason == "Operator"
    assert classify_device_fault_code("operator", "xid-13").effect is HEALTHY


def a_table(**row: object) -> bytes:
    policy = [{"class": ["app"], "action": ["IGNORE"], "effect": "Healthy", "remedy": "None"}]
    code = {"code": "xid-1", "what": "w", "class": "app", "action": "IGNORE", **row}
    return json.dumps({"version": "1", "source": "s", "policy": policy, "codes": [code], "sources": {}}).encode()


def test_a_row_without_a_policy_is_an_error_in_the_table() -> None:
    assert parse_fault_table(a_table()).by_code["xid-1"].effect is HEALTHY
    with pytest.raises(ValueError, match="no policy for xid-1"):
        parse_fault_table(a_table(action="DANCE"))


def test_a_row_may_say_its_own_effect() -> None:
    fault = parse_fault_table(a_table(action="DANCE", effect="Degraded", remedy="Replace")).by_code["xid-1"]
    assert (fault.effect, fault.remedy) == (DEGRADED, REPLACE)


def test_a_scope_nobody_knows_is_an_error_in_the_table() -> None:
    assert parse_fault_table(a_table()).by_code["xid-1"].scope == "device"
    assert parse_fault_table(a_table(scope="node")).by_code["xid-1"].scope == "node"
    with pytest.raises(ValueError, match="xid-1 has scope 'galaxy'"):
        parse_fault_table(a_table(scope="galaxy"))


def test_a_code_said_twice_is_an_error_in_the_table() -> None:
    table = json.loads(a_table())
    table["codes"] *= 2
    with pytest.raises(ValueError, match="twice"):
        parse_fault_table(json.dumps(table).encode())
