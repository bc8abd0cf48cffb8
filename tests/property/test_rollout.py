"""Random roll-outs: canaries first, never too many nodes at a time, nothing begun after a failure, nobody touched beside them."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.core_v1 import Node, NodeStatus
from remuda.api.devices import NodeDevices, Observed, ObservedDevice, OrderAnswer
from remuda.api.meta import Condition, ObjectMeta
from remuda.api.remedies import Hook
from remuda.api.rollouts import NodeRollout, NodeRolloutSpec, RolloutPhase, StepPhase
from remuda.core.failure.rollout import RolloutSeen, plan_rollout

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
    fates=st.lists(st.sampled_from(["Succeeded", "Succeeded", "Succeeded", "Failed", "TimedOut", ""]), max_size=60),
)
def test_a_rollout_keeps_its_promises(count: int, canary: int, most: int, fates: list[str]) -> None:
    spec = NodeRolloutSpec(
        hook=Hook(command=["/opt/x"]), canary=canary, max_unavailable=str(most), verify_seconds=120.0
    )
    rollout = NodeRollout(metadata=ObjectMeta(name="r"), spec=spec)
    nodes = {f"n{i}": Node(metadata=ObjectMeta(name=f"n{i}"), status=READY) for i in range(count)}
    ledgers = {name: a_ledger(name) for name in nodes}
    queue, now = list(fates), 1000.0
    for _ in range(400):
        plan = plan_rollout(RolloutSeen(rollout, nodes, ledgers, {}), now)
        assert plan == plan_rollout(RolloutSeen(rollout, nodes, ledgers, {}), now)
        before, after = rollout.status.steps, plan.status.steps
        busy = [step for step in after if step.phase in BUSY]
        assert len(busy) <= most
        assert [step.node for step in after[: len(before)]] == [step.node for step in before]
        new = after[len(before) :]
        done = sum(step.phase is StepPhase.DONE for step in after)
        if new:
            assert not any(step.phase is StepPhase.FAILED for step in after)
            assert len(after) <= canary or done >= min(canary, count)
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
