"""What a fault code means: its class, what it does to the device's state, and the remedy for the device.

The table is versioned data, because vendors disagree and their lists change: `faults.json` has Xid and what our own sources
report, `codes/*.json` NVSwitch, AMD, DCGM and the host. A file says where its codes are published, each row states the vendor's
facts (class and action bucket), and `policy` turns (class, action) into effect and remedy, first match wins; a row may say
its own effect and remedy where the vendor left the action blank. A code the table does not know takes the conservative
class: Unhealthy, reason UnknownFaultCode. Being wrong that way costs a device for a while; being wrong the other way gives a
broken device to the next job.

Rejected: the vendor plugin's approach (a list of ignored codes in code). It withdraws a device for dozens of codes that the
vendor itself calls faults of the application.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from importlib import resources

import msgspec

from remuda.api.devices import DeviceState

SCOPES = ("process", "device", "link", "switch", "node")  # what a fault breaks


class DeviceRemedy(StrEnum):
    """The device's own ladder, cheapest first. RestartApp: the device is fine, the workload is not."""

    NONE = "None"
    RESTART_APP = "RestartApp"
    RESET_DEVICE = "ResetDevice"
    REBOOT_NODE = "RebootNode"
    REPLACE = "Replace"


class FaultClass(msgspec.Struct, frozen=True):
    """What one code means. `reason` and `message` are ready for a verdict or a refusal."""

    code: str
    cls: str
    effect: DeviceState
    remedy: DeviceRemedy
    reason: str
    message: str
    arch: str = ""  # letters of the generations the vendor lists it for (A100 H100 B100 GB200); "" = any
    clears: bool = False  # evidence of health: what was known against the device before it no longer counts
    retracts: tuple[str, ...] = ()  # codes this one takes back: the report is back, the device is back
    debounced: bool = False  # known to come and go: believed only when it stays
    scope: str = "device"  # what is broken: process | device | link | switch | node
    source: str = ""  # where the code and the vendor's action are published


class FaultTable(msgspec.Struct, frozen=True):
    """The resolved table: by code, and the code a source's unknown codes stand for."""

    version: str
    source: str
    by_code: dict[str, FaultClass]
    by_source: dict[str, FaultClass]


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    classes: list[str] = msgspec.field(name="class")
    actions: list[str] = msgspec.field(name="action")
    effect: DeviceState
    remedy: DeviceRemedy
    scope: str = ""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    what: str
    cls: str = msgspec.field(name="class")
    action: str
    arch: str = ""
    effect: DeviceState | None = None
    remedy: DeviceRemedy | None = None
    clears: bool = False
    retracts: list[str] = []
    debounced: bool = False
    scope: str = ""
    reason: str = ""  # where the code's own name is not the word for it


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    source: str
    policy: list[_Rule]
    codes: list[_Row]
    sources: dict[str, str]
    scopes: dict[str, str] = {}  # of a class, where neither the row nor its rule says one


_SENTENCE = {
    DeviceRemedy.NONE: "",
    DeviceRemedy.RESTART_APP: "Restarting the workload is enough.",
    DeviceRemedy.RESET_DEVICE: "The device needs a reset.",
    DeviceRemedy.REBOOT_NODE: "The node needs a reboot.",
    DeviceRemedy.REPLACE: "The device needs service or replacement.",
}


def parse_fault_table(data: bytes) -> FaultTable:
    """A fault table from its file; ValueError when a row is said twice or no policy rule covers it."""
    file = msgspec.json.decode(data, type=_File)
    by_code: dict[str, FaultClass] = {}
    for row in file.codes:
        if row.code in by_code:
            raise ValueError(f"fault table {file.version}: {row.code} is there twice")
        by_code[row.code] = _resolve_fault(row, file)
    return FaultTable(file.version, file.source, by_code, {s: by_code[code] for s, code in file.sources.items()})


def _resolve_fault(row: _Row, file: _File) -> FaultClass:
    effect, remedy = row.effect, row.remedy
    scope = row.scope
    if effect is None or remedy is None:
        rule = next(
            (r for r in file.policy if row.action in r.actions and (row.cls in r.classes or "*" in r.classes)), None
        )
        if rule is None:
            raise ValueError(f"fault table {file.version}: no policy for {row.code} ({row.cls}, {row.action!r})")
        effect, remedy, scope = effect or rule.effect, remedy or rule.remedy, scope or rule.scope
    scope = scope or file.scopes.get(row.cls, "device")
    if scope not in SCOPES:
        raise ValueError(f"fault table {file.version}: {row.code} has scope {scope!r}")
    message = f"{row.code}: {row.what}."
    if _SENTENCE[remedy]:
        message += f" {_SENTENCE[remedy]}"
    return FaultClass(
        code=row.code,
        cls=row.cls,
        effect=effect,
        remedy=remedy,
        reason=row.reason or _fault_code_reason(row.code),
        message=message,
        arch=row.arch,
        clears=row.clears,
        retracts=tuple(row.retracts),
        debounced=row.debounced,
        scope=scope,
        source=file.source,
    )


def _fault_code_reason(code: str) -> str:
    """xid-79 -> Xid79, ecc-dbe -> EccDbe: stable as long as the code is."""
    return "".join(part.capitalize() for part in code.split("-"))


@cache
def fault_table() -> FaultTable:
    """The table of this build: all its files together. ValueError when two of them say the same code."""
    package = resources.files(__package__)
    first = parse_fault_table(package.joinpath("faults.json").read_bytes())
    by_code, by_source = dict(first.by_code), dict(first.by_source)
    for file in sorted(package.joinpath("codes").iterdir(), key=lambda f: f.name):
        more = parse_fault_table(file.read_bytes())
        if both := by_code.keys() & more.by_code.keys():
            raise ValueError(f"fault table {file.name}: {sorted(both)} are in another file, too")
        by_code |= more.by_code
        by_source |= more.by_source
    return FaultTable(first.version, first.source, by_code, by_source)


def classify_device_fault_code(source: str, code: str) -> FaultClass:
    """What `code` from `source` means. The code decides; an unknown one falls back to its source, then to Unhealthy."""
    table = fault_table()
    known = table.by_code.get(code) or table.by_source.get(source)
    if known is not None:
        return known
    return FaultClass(
        code=code,
        cls="unknown",
        effect=DeviceState.UNHEALTHY,
        remedy=DeviceRemedy.NONE,
        reason="UnknownFaultCode",
        message=f"{code} from {source} is not in fault table {table.version}; the device stays out until somebody looks.",
    )
