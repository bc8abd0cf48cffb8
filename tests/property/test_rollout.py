"""Random roll-outs: canaries first, never too many nodes at a time, nothing begun after a failure, nobody touched beside them,
and a domain of several nodes never in part."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.devices import NodeDevices, Observed, ObservedDevice, OrderAnswer
from remuda.api.kubernetes.core_v1 import Node, NodeStatus
from remuda.api.meta import Condition, ObjectMeta
from remuda.api.remedies import Drain, Hook
from remuda.api.rollouts import NodeRollout, NodeRolloutSpec, NodeRolloutStatus, RolloutPhase, StepPhase
from remuda.core.remedies.drain import RecycleDomain
from remuda.core.remedies.rollout import ObservedRollout, plan_rollout

READY = NodeStatus(conditions=[Condition(type="Ready", status="True")])
BUSY = (StepPhase.DRAINING, StepPhase.ACTING, StepPhase.VERIFYING)


def a_ledger(name: str) -> NodeDevices:
    devices = [ObservedDevice(f"gpu-{n}", "H100") for n in range(2)]
    return NodeDevices(metadata=ObjectMeta(name=name), observed=Observed(devices=devices))


@settings(deadline=None)
@given(
    count=st.integers(1, 8),
    canary=st.integers(1, 3),
    most=st.integers(1, 4),
    size=st.integers(1, 4),
    fates=st.lists(st.sampled_from(["Succeeded", "Succeeded", "Succeeded", "Failed", "TimedOut", ""]), max_size=60),
)
def test_a_rollout_keeps_its_promises(count: int, canary: int, most: int, size: int, fates: list[str]) -> None:
    spec = NodeRolloutSpec(
        hook=Hook(command=["/opt/x"]), canary=canary, max_unavailable=str(most), verify_seconds=120.0
    )
    rollout = NodeRollout(metadata=ObjectMeta(name="r"), spec=spec)
    nodes = {f"n{i}": Node(metadata=ObjectMeta(name=f"n{i}"), status=READY) for i in range(count)}
    ledgers = {name: a_ledger(name) for name in nodes}
    units = [tuple(list(nodes)[at : at + size]) for at in range(0, count, size)]
    domains = {name: RecycleDomain(f"nvlink/{unit[0]}", unit) for unit in units for name in unit if len(unit) > 1}
    unit_of = {name: unit for unit in units for name in unit}
    queue, now = list(fates), 1000.0
    for _ in range(400):
        plan = plan_rollout(ObservedRollout(rollout, nodes, ledgers, {}, {}, domains), now)
        assert plan == plan_rollout(ObservedRollout(rollout, nodes, ledgers, {}, {}, domains), now)
        before, after = rollout.status.steps, plan.status.steps
        busy = [step for step in after if step.phase in BUSY]
        assert len(busy) <= most or len({unit_of[step.node] for step in busy}) == 1
        for unit in units:
            phases = {step.phase for step in after if step.node in unit} - {StepPhase.FAILED}
            assert len(phases) <= 1, "a domain goes step by step, all of it"
            assert sum(step.node in unit for step in after) in (0, len(unit))
        assert [step.node for step in after[: len(before)]] == [step.node for step in before]
        new = after[len(before) :]
        done = sum(step.phase is StepPhase.DONE for step in after)
        if new:
            assert not any(step.phase is StepPhase.FAILED for step in after)
            first = [step for step in after if step.is_canary]
            assert len(first) < canary + size
            assert new[0].is_canary or all(step.phase is StepPhase.DONE for step in first)
            assert new[0].is_canary or done >= min(canary, count)
        assert set(plan.patches) | set(plan.orders) <= {step.node for step in after}
        for step in after:
            if step.phase is StepPhase.DONE:
                assert not plan.orders[step.node]
        rollout = msgspec.structs.replace(rollout, status=plan.status)
        if rollout.is_over:
            break
        for name, orders in plan.orders.items():
            answered = {a.id for a in ledgers[name].observed.answers}
            for id, order in orders.items():
                fate = (queue.pop(0) if queue else "Succeeded") if id not in answered else ""
                if fate:
                    seen = ledgers[name].observed
                    seen = msgspec.structs.replace(seen, answers=[*seen.answers, OrderAnswer(id, order.action, fate)])
                    ledgers[name] = msgspec.structs.replace(ledgers[name], observed=seen)
        now += 30.0
    assert rollout.is_over
    failed = [step for step in rollout.status.steps if step.phase is StepPhase.FAILED]
    assert (rollout.status.phase is RolloutPhase.STOPPED) is bool(failed)
    assert bool(rollout.status.stopped_because) is bool(failed)
    if not failed:
        assert len(rollout.status.steps) == count


def a_look(domain: RecycleDomain, *names: str, whole_domain: bool = True) -> NodeRolloutStatus:
    spec = NodeRolloutSpec(hook=Hook(command=["/opt/x"]), drain=Drain(whole_domain=whole_domain))
    nodes = {name: Node(metadata=ObjectMeta(name=name), status=READY) for name in names}
    ledgers = {name: a_ledger(name) for name in nodes}
    domains = dict.fromkeys(domain.nodes, domain)
    rollout = NodeRollout(metadata=ObjectMeta(name="r"), spec=spec)
    return plan_rollout(ObservedRollout(rollout, nodes, ledgers, {}, {}, domains), 1000.0).status


def test_a_domain_that_is_not_whole_is_not_begun_and_the_status_says_what_to_do() -> None:
    rack = RecycleDomain("nvlink/rack-1", ("n1", "n2"))
    in_part = a_look(rack, "n1", "n9")
    assert [step.node for step in in_part.steps] == ["n9"]
    assert "n2 of it is not in this roll-out. Select all of it" in in_part.waiting_for
    unknown = a_look(msgspec.structs.replace(rack, missing=16), "n1", "n2")
    assert not unknown.steps
    assert "2 of its 18 nodes are known" in unknown.waiting_for
    alone = a_look(rack, "n1", whole_domain=False)
    assert [step.node for step in alone.steps] == ["n1"]
    assert not alone.waiting_for
    whole = a_look(rack, "n1", "n2")
    assert [(step.node, step.domain, step.is_canary) for step in whole.steps] == [
        ("n1", "nvlink/rack-1", True),
        ("n2", "nvlink/rack-1", True),
    ]
    assert not whole.waiting_for


def test_a_node_that_is_gone_before_its_domain_was_touched_leaves_the_others_untouched() -> None:
    rack = RecycleDomain("nvlink/rack-1", ("n1", "n2"))
    rollout = NodeRollout(
        metadata=ObjectMeta(name="r"),
        spec=NodeRolloutSpec(hook=Hook(command=["/opt/x"])),
        status=a_look(rack, "n1", "n2"),
    )
    nodes = {"n1": Node(metadata=ObjectMeta(name="n1"), status=READY)}
    seen = ObservedRollout(
        rollout, nodes, {"n1": a_ledger("n1")}, {}, {}, {"n1": RecycleDomain("nvlink/rack-1", ("n1",))}
    )
    plan = plan_rollout(seen, 1030.0)
    assert [(step.node, step.reason) for step in plan.status.steps] == [("n1", "DomainFailed"), ("n2", "NodeGone")]
    assert not any(plan.orders.values())
    assert plan.status.phase is RolloutPhase.STOPPED
