"""Whatever an agent writes into its NodeDevices, as long as it can be read at all: the manager judges it and goes on.

An agent may be old, broken or hostile, and an API server checks types, not sense. Times without a zone, of the year 1 or 9999, of
any offset; devices named twice, slices of themselves; verdicts and orders about devices that are not there. Judging raises
nothing, or the node would be looked at again and again and nothing of it ever be written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.codec import decode, decode_json_with_codec, encode
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.incidents import Incident
from remuda.api.remedies import Offender
from remuda.controllers.domain_suspicion import DomainSuspicion
from remuda.core.health.findings import find_findings
from remuda.core.health.ledger import health_verdicts_with_holders, judge_devices, judge_node
from remuda.core.health.node_notices import is_node_notice_held_down, judge_node_notices, notice_hold_ends_at
from remuda.core.health.signal_fusion import classify_device_signals, health_signal_debounce_ends_at
from remuda.core.health.slow_ranks import answered_slow_findings
from remuda.core.health.streamed_signals import StreamedSignals
from remuda.core.health.timers import DEFAULT_TIMERS, health_quarantine_for_flapping
from remuda.core.incidents.device_incidents import plan_device_incidents
from remuda.core.incidents.names import IncidentPlan, IncidentTimes
from remuda.core.incidents.node_incidents import plan_node_incidents
from remuda.core.incidents.pods import NodeIncidentView
from tests.builders.gangs import a_held_pod

NOW = 1_800_000_000.0
DEVICES = ("gpu-0", "gpu-1", "gpu-0-mig-1", "", "ghost")

MOMENTS = (
    "2027-01-15T08:00:00Z",
    "2027-01-15T07:59:50Z",
    "2027-01-15T07:59:50",  # no zone
    "2027-01-15T08:00:00.123456",
    "2027-01-15T23:59:59+23:59",
    "2027-01-15T00:00:00-23:59",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59.999999",
    "9999-12-31T23:59:59-23:59",
    "1970-01-01T00:00:00Z",
    "2100-02-28T00:00:00Z",
)
WORDS = ("", "x", "a b/c\n", "\u0000", "é" * 300, "/", "n1", "straggler/straggler", "probe/probe-failed")
CODES = (
    "xid-79", "xid-48", "xid-92", "thermal", "probe-passed", "probe-failed", "health-lost", "health-back", "straggler",
    "pcie-degraded", "no-report", "report-resumed", "power-cap", "driver-hang", "device-missing", "nonsense", "",
)  # fmt: skip
SOURCES = ("kmsg", "nvml", "probe", "straggler", "trend", "history", "correlation", "", "/")
Body = dict[str, Any]


class Wild:
    """Bodies of every kind, by chance: fields that need not be there are there now and then."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def one(self, of: Sequence[Any]) -> Any:
        return self._chance.choice(of)

    def few(self, make: Callable[[], Any], most: int = 3) -> list[Any]:
        return [make() for _ in range(self._chance.randint(0, most))]

    def by_device(self, make: Callable[[], Any]) -> Body:
        return {self.device(): made for made in self.few(make)}

    def some(self, **fields: Callable[[], Any]) -> Body:
        return {name: make() for name, make in fields.items() if self._chance.random() < 0.6}

    def moment(self) -> str:
        return str(self.one(MOMENTS))

    def word(self) -> str:
        return str(self.one(WORDS))

    def device(self) -> str:
        return str(self.one(DEVICES))

    def number(self) -> int:
        return int(self.one((-1, 0, 1, 7, -(1 << 62), (1 << 63) - 1)))

    def signal(self) -> Body:
        said = {"source": self.one(SOURCES), "code": self.one(CODES)}
        return {**said, **self.some(message=self.word, time=self.moment)}

    def signals(self) -> list[Body]:
        return self.few(self.signal)

    def times(self) -> list[str]:
        return self.few(self.moment, 5)

    def order(self) -> Body:
        more = self.some(message=self.word, by=self.word, since=self.moment, incident=self.word)
        return {"reason": self.word(), **more}

    def observed_device(self) -> Body:
        more = self.some(
            index=self.number,
            signals=self.signals,
            parent=self.device,
            uuid=self.word,
            resource=self.word,
            flaps=self.times,
            idleSince=self.moment,
        )
        return {"id": self.device(), "type": self.word(), **more}

    def launcher(self) -> Body:
        needed = {"pod": self.word(), "uid": self.one(("uid-p", "x")), "state": self.one(("running", "exited", "gone"))}
        more = self.some(code=self.number, message=self.word, hungSince=self.moment, time=self.moment)
        return {**needed, **more}

    def answer(self) -> Body:
        needed = {"id": self.word(), "action": self.one(("probe", "reset")), "outcome": self.one(("Failed", "Odd"))}
        return {**needed, **self.some(device=self.device, startedAt=self.moment, time=self.moment)}

    def holding(self) -> Body:
        needed = {"pod": self.word(), "container": self.word(), "resource": self.word()}
        return {**needed, "devices": self.few(self.device), **self.some(uid=self.word, since=self.moment)}

    def link(self) -> Body:
        return {"kind": self.one(("NV18", "PIX", "")), "among": self.few(self.device, 6)}

    def observed(self) -> Body:
        return self.some(
            devices=lambda: self.few(self.observed_device, 5),
            launchers=lambda: self.few(self.launcher),
            links=lambda: self.few(self.link),
            holdings=lambda: self.few(self.holding),
            signals=self.signals,
            answers=lambda: self.few(self.answer),
            boot=self.word,
        )

    def verdict(self) -> Body:
        more = self.some(
            state=lambda: self.one([s.value for s in DeviceState]),
            reason=self.word,
            message=self.word,
            source=self.word,
            since=self.moment,
            holder=self.word,
        )
        return {"device": self.device(), **more}

    def notice(self) -> Body:
        reason = self.one(("PluginLost", "DriverHang", "DevicesMissing", "AgentSilent", ""))
        more = self.some(resource=self.word, since=self.moment, holdingUntil=self.moment)
        return {"reason": reason, "message": self.word(), **more}

    def history(self) -> Body:
        return self.some(failures=self.times, minor=self.signals, uuid=self.word, incidents=lambda: self.few(self.word))

    def node_devices(self) -> Body:
        more = self.some(
            observed=self.observed,
            verdicts=lambda: self.few(self.verdict),
            notices=lambda: self.few(self.notice),
            quarantine=lambda: self.by_device(self.order),
            withheld=lambda: self.by_device(self.order),
            findings=lambda: self.by_device(self.signals),
            history=lambda: self.by_device(self.history),
        )
        return {"metadata": {"name": "n1", "resourceVersion": "7"}, **more}


def read(body: dict[str, Any]) -> NodeDevices:
    return decode(NodeDevices, msgspec.json.encode(body))


def judged(node: NodeDevices, now: float) -> NodeDevices:
    """As the failure controller does it."""
    node = StreamedSignals().merged(node, now)
    devices = judge_devices(node, now)
    suspicion = DomainSuspicion()
    suspicion.see_devices(None, node)
    suspicion.see_held_back(node)
    suspicion.score(node, now)
    suspicion.search(now)
    found = find_findings(node, classify_device_signals(node), devices, now, Offender(), suspicion.neighbours("n1"))
    node = found.on(node)
    pods = [a_held_pod("p", "n1", ["gpu-0"])]
    verdicts = judge_node(node, pods, now, silent_since=None)
    judge_node(node, pods, now, silent_since=now - 10.0)
    node = msgspec.structs.replace(node, verdicts=verdicts)
    notices = judge_node_notices(node, None, pods, now, DEFAULT_TIMERS)
    node = msgspec.structs.replace(node, notices=notices)
    for ends in (
        health_signal_debounce_ends_at(node, classify_device_signals(node), now, DEFAULT_TIMERS),
        notice_hold_ends_at(node, now),
        found.ends_at,
    ):
        assert ends is None or ends == ends
    health_quarantine_for_flapping(node, now, DEFAULT_TIMERS)
    [is_node_notice_held_down(n, now) for n in notices]
    health_verdicts_with_holders([node], pods)
    answered_slow_findings(node)
    return node


def planned(node: NodeDevices, known: list[Incident], now: float) -> list[Incident]:
    """The incidents after one look, as the incident controller makes it and the API keeps it."""
    sight = NodeIncidentView(
        "n1", node, "uid-1", pods=(a_held_pod("p", "n1", ["gpu-0"]),), present=frozenset({"uid-p"})
    )
    after = {i.name: i for i in known}
    for plan in (plan_device_incidents, plan_node_incidents):
        made: IncidentPlan = plan(sight, list(after.values()), now, IncidentTimes())
        assert made.look_again_s is None or made.look_again_s >= 0.0
        for incident in made.opened:
            after[incident.name] = incident
        for incident, status in made.amended:
            after[incident.name] = msgspec.structs.replace(incident, status=status)
    return [decode(Incident, encode(i)) for i in after.values()]


@given(st.integers(min_value=0, max_value=1 << 32))
@settings(max_examples=300, deadline=None)
def test_whatever_can_be_read_can_be_judged(seed: int) -> None:
    node = read(Wild(seed).node_devices())
    incidents: list[Incident] = []
    for now in (NOW, NOW + 30.0, NOW + 4000.0):
        node = judged(node, now)
        incidents = planned(node, incidents, now)
        node = read(decode_json_with_codec(encode(node)))  # what was written can be read again


def test_the_reports_are_worth_judging() -> None:
    """Devices of every state, incidents, and times of every kind come up in them."""
    nodes = [judged(read(Wild(seed).node_devices()), NOW) for seed in range(300)]
    assert {v.state for node in nodes for v in node.verdicts} == set(DeviceState)
    assert sum(len(planned(node, [], NOW)) for node in nodes) > 50
