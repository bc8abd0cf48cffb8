"""The rules of `tests.builders.limit_rules` can fail: each limit is shown two nodes that are too many, and two that are not."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.devices import Holding
from remuda.api.incidents import Affected, Incident, RemedyOutcome, RemedyRecord
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import to_time
from remuda.api.names import LABEL_RESERVATION
from remuda.api.remedies import Limits, RemedyPolicySpec
from tests.builders.limit_rules import LimitRules
from tests.builders.remedies import incident, ledger, machine

replace = msgspec.structs.replace
RACK = Limits().rack_label
# n1 and n2 share rack and reservation, n1 and n3 a tenant.
NODES = {"n1": ("rack-1", "ours", "team"), "n2": ("rack-1", "ours", "guests"), "n3": ("rack-2", "theirs", "team")}


class History:
    def __init__(self, **limits: str) -> None:
        self.now = 0.0
        self.incidents: dict[str, Incident] = {}
        nodes: dict[str, Node] = {}
        ledgers = {name: ledger(name) for name in NODES}
        for name, (rack, reservation, _) in NODES.items():
            nodes[name] = machine(name, **{RACK: rack, LABEL_RESERVATION: reservation})
        spec = RemedyPolicySpec(limits=Limits(**{"pool": "", **limits}))
        self.rules = LimitRules(
            lambda: self.now,
            1.0,
            incidents=self.incidents,
            nodes=nodes,
            ledgers=ledgers,
            policy_of=lambda node: ("default", spec),
        )
        self.ledgers = ledgers

    def hold(self, node: str, namespace: str) -> None:
        found = self.ledgers[node]
        held = [Holding(f"{namespace}/p", "main", "nvidia.com/gpu", ["gpu-0"])]
        self.ledgers[node] = replace(found, observed=replace(found.observed, holdings=held))

    def begin(self, node: str, *, reason: str = "Xid48", is_told: bool = True, name: str = "") -> list[str]:
        """An incident of gpu-0 there, and ten seconds later its first rung; what is wrong with that."""
        found = incident(node=node, device="gpu-0", reason=reason, name=name or f"inc-{node}")
        affected = [Affected(pod=f"{NODES[node][2]}/p")] if is_told else []
        opened = replace(found, status=replace(found.status, affected=affected))
        self.see(opened)
        self.now += 10.0
        record = RemedyRecord("reset-1", "reset", outcome=RemedyOutcome.RUNNING, started_at=to_time(self.now))
        begun = replace(opened, status=replace(opened.status, remedies=[record]))
        self.see(begun)
        self.rules.note_begun(begun, record)
        return list(self.rules.exceeded(begun))

    def see(self, new: Incident) -> None:
        old = self.incidents.get(new.name)
        self.incidents[new.name] = new
        self.rules.note(old, new)


@pytest.mark.parametrize(
    ("limits", "beside", "words"),
    [
        ({"pool": "1"}, "n3", "of policy default"),
        ({"pool": "50%"}, "n3", "of policy default"),
        ({"rack": "1"}, "n2", "of rack-1"),
        ({"reservation": "50%"}, "n2", "of ours"),
        ({"tenant": "1"}, "n3", "of namespace team"),
        ({"cause": "1"}, "n3", "with Xid48"),
        ({"per_hour": "1"}, "n3", "within an hour"),
    ],
)
def test_one_too_many_is_seen(limits: dict[str, str], beside: str, words: str) -> None:
    history = History(**limits)
    assert history.begin("n1") == []
    assert [words in found for found in history.begin(beside)] == [True]


@pytest.mark.parametrize(
    ("limits", "beside"),
    [({"pool": "2"}, "n2"), ({"rack": "1"}, "n3"), ({"reservation": "1"}, "n3"), ({"tenant": "1"}, "n2")],
)
def test_what_is_of_another_group_is_not_counted(limits: dict[str, str], beside: str) -> None:
    history = History(**limits)
    assert history.begin("n1") == []
    assert history.begin(beside) == []


def test_another_reason_another_device_and_another_hour() -> None:
    history = History(cause="1", per_hour="1")
    assert history.begin("n1", reason="Xid79") == []
    history.now += 3600.0
    assert history.begin("n2", reason="Xid48") == []
    history = History(pool="1")
    assert history.begin("n1") == []
    assert history.begin("n1", name="another") == [], "a node counts once"


def test_who_held_the_device_is_read_from_the_node() -> None:
    """Also when the incident does not say so."""
    history = History(tenant="1")
    for node in ("n1", "n3"):
        history.hold(node, "team")
    assert history.begin("n1", is_told=False) == []
    assert len(history.begin("n3", is_told=False)) == 1
