"""Random schedules of recovery in full: a seed -> gangs and foreign workloads, a policy, and what breaks when.

The schedules of `tests.builders.schedules` are strict about one gang's heart: a lone fault, its charge, its end. These are about
everything around it: every kind of drill, the device ladder under a drawn RemedyPolicy, quotas, operators who approve, deny,
pause, cordon and suspend. `draw` makes plain data that can be printed; `act_out` plays it; `tests.builders.recovery_end` says
what has to be so when the faults are over.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from remuda.api.names import RESOURCE_GPU
from remuda.api.remedies import (
    Action,
    Breaker,
    Drain,
    Idle,
    Ladder,
    Limits,
    Mode,
    Offender,
    RemedyPolicySpec,
    Rung,
    Soak,
    Timers,
)
from remuda.api.training import Budgets, DegradedPolicy
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.acts import Act
from tests.builders.world import NAMESPACE

# Codes and what the fault table makes of them: reset, reboot, replace, an unknown one, harmless.
CODES = ("xid-79", "xid-48", "xid-95", "xid-62", "xid-119", "xid-64", "xid-13", "xid-31", "xid-999")
GUESTS = "guests"  # another tenant than the gangs
HEALS = ("", "", "", "reset", "reboot", "never")

KINDS = {
    # the heart, as in the other schedules
    "process": 3,
    "hang": 2,
    "launcher": 2,
    "pod": 2,
    # devices
    "device": 6,
    "spare-device": 2,
    "any-device": 3,
    "drop": 3,
    "flap": 2,
    "slow": 3,
    "ecc": 2,
    "idle": 1,
    # nodes and what runs there
    "power-cap": 1,
    "plugin": 3,
    "allocate": 2,
    "kubelet": 2,
    "node": 1,
    "reboot": 3,
    "partition": 2,
    "spot": 1,
    "maintenance": 2,
    # people
    "approve": 4,
    "deny": 1,
    "pause": 1,
    "unpause": 1,
    "cordon": 1,
    "uncordon": 1,
    "suspend": 1,
    "resume": 2,
    "dismiss": 1,
    "replace": 1,
    # crashes
    "restart": 2,
    "restart-at-write": 4,
    "power": 1,
    "power-at-commit": 1,
}


class GangPlan(msgspec.Struct, frozen=True):
    """`least`: elastic, down to so many ranks; 0 = all or nothing. `segment`: ranks that share a rack; 0 = all of them."""

    name: str
    replicas: int
    gpus: int
    spares: int
    rack: bool
    least: int
    segment: int
    hang_after: float
    budgets: Budgets
    straggler: DegradedPolicy
    behaviour: SimulatedBehaviour


class ForeignPlan(msgspec.Struct, frozen=True):
    """`kind`: Deployment | Job | Pod."""

    kind: str
    name: str
    replicas: int
    gpus: int
    namespace: str


class RecoverySchedule(msgspec.Struct, frozen=True):
    seed: int
    nodes: int
    racks: int
    lease_s: float
    lag_s: float
    gangs: tuple[GangPlan, ...]
    foreign: tuple[ForeignPlan, ...]
    quota: int  # GPUs of the namespace; 0 = no quota
    reserved: int  # so many nodes are one reservation, the others another; 0 = none are any
    policy: RemedyPolicySpec | None  # None = the built-in one
    acts: tuple[Act, ...]


def draw(seed: int) -> RecoverySchedule:
    rng = random.Random(f"recovery {seed}")
    gpus = rng.choice((8, 8, 4, 2))
    gangs = tuple(_draw_gang(rng, index, gpus) for index in range(rng.choice((1, 1, 2))))
    whose = random.Random(f"tenants {seed}")
    foreign = tuple(_draw_foreign(rng, whose, index) for index in range(rng.choice((0, 1, 1, 2))))
    asked = sum((g.replicas + g.spares) * g.gpus for g in gangs) + sum(f.replicas * f.gpus for f in foreign)
    racks = rng.choice((1, 2, 2, 3))
    nodes = max(racks, round(asked / 8 * rng.choice((0.9, 1.2, 1.5, 2.0)) + rng.randint(0, 2)), 3)
    quota = rng.choice((0, 0, 0, asked, asked + gpus, max(gpus, asked - gpus)))
    acts = tuple(_draw_act(rng) for _ in range(rng.randint(4, 12)))
    policy = _draw_policy(rng) if rng.random() < 0.9 else None
    lease_s, lag_s = rng.choice((5.0, 10.0)), rng.choice((0.0, 0.0, 0.02, 0.2))
    if policy is not None:
        policy = msgspec.structs.replace(policy, limits=_draw_limits(whose, policy.limits))
        acts = _draw_burst(whose, acts)
    reserved = whose.choice((0, nodes // 2, nodes))
    return RecoverySchedule(seed, nodes, racks, lease_s, lag_s, gangs, foreign, quota, reserved, policy, acts)


def _draw_gang(rng: random.Random, index: int, gpus: int) -> GangPlan:
    replicas, shape = rng.randint(2, 4), rng.choice(("plain", "plain", "elastic", "segments"))
    if shape == "segments":
        replicas = 4
    return GangPlan(
        name=f"job-{index}",
        replicas=replicas,
        gpus=gpus,
        spares=rng.choice((0, 1, 1)) if shape != "elastic" else 0,
        rack=shape == "segments" or rng.random() < 0.7,
        least=replicas - 1 if shape == "elastic" else 0,
        segment=2 if shape == "segments" else 0,
        hang_after=rng.choice((0.0, 8.0, 8.0)),
        budgets=rng.choice((Budgets(), Budgets(code=20, device=30, infra=30, hang=20), Budgets(1, 2, 2, 1))),
        straggler=rng.choice(list(DegradedPolicy)),
        behaviour=SimulatedBehaviour(
            step_s=rng.choice((1.0, 2.0)),
            jitter=rng.choice((0.0, 0.05)),
            checkpoint_every=rng.choice((3, 5, 10)),
            steps=rng.choice((0, 0, 60)),
            stop_s=rng.choice((0.05, 0.05, 0.5)),
        ),
    )


def _draw_foreign(rng: random.Random, whose: random.Random, index: int) -> ForeignPlan:
    kind = rng.choice(("Deployment", "Deployment", "Job", "Pod"))
    replicas, gpus = 1 if kind == "Pod" else rng.randint(1, 3), rng.choice((1, 2, 4))
    return ForeignPlan(kind, f"app-{index}", replicas, gpus, whose.choice((NAMESPACE, GUESTS)))


def _draw_limits(rng: random.Random, limits: Limits) -> Limits:
    """One of them is the narrow one; the pool's, which is nearly always that, would hide the others."""
    narrow = rng.choice(("", "tenant", "reservation", "cause", "per_hour"))
    if not narrow:
        return limits
    wide = msgspec.structs.replace(limits, pool=rng.choice(("", "90%")), rack="", cause="")
    return msgspec.structs.replace(wide, **{narrow: rng.choice(("1", "1", "2", "30%"))})


def _draw_burst(rng: random.Random, acts: Sequence[Act]) -> tuple[Act, ...]:
    """Among the others several devices that fail of one fault at nearly one time."""
    code, at = rng.choice(CODES[:6]), rng.randint(0, len(acts))
    burst = [
        Act(round(rng.uniform(0.0, 1.5), 3), rng.choice(("device", "any-device")), rng.random(), 1, code)
        for _ in range(rng.choice((0, 3, 4)))
    ]
    return (*acts[:at], *burst, *acts[at:])


def _draw_policy(rng: random.Random) -> RemedyPolicySpec:
    """Short deadlines and soaks, and limits so small that something is held back."""
    short = rng.choice((20.0, 60.0))
    everything = [
        Rung(Action.PROBE, timeout_seconds=short),
        Rung(Action.RESET, timeout_seconds=short, attempts=rng.choice((1, 2))),
        Rung(Action.REBOOT, timeout_seconds=2 * short),
        Rung(Action.TICKET, timeout_seconds=short),
    ]
    ladders = rng.choice(
        ([], [Ladder("*", everything)], [Ladder("*", everything[:2]), Ladder("Xid79", everything[2:])])
    )
    return RemedyPolicySpec(
        mode=rng.choice((Mode.AUTO, Mode.AUTO, Mode.AUTO, Mode.APPROVE, Mode.OBSERVE)),
        ladders=ladders,
        limits=Limits(
            pool=rng.choice(("1", "2", "10%", "50%", "")),
            rack=rng.choice(("", "1", "50%")),
            cause=rng.choice(("", "", "1")),
        ),
        breaker=Breaker(
            share=rng.choice(("30%", "90%")), at_least=rng.choice((2, 5)), window_seconds=30.0, cooldown_seconds=40.0
        ),
        drain=Drain(
            patience_seconds=rng.choice((0.0, 20.0)),
            checkpoint_seconds=rng.choice((5.0, 15.0)),
            deadline_seconds=rng.choice((20.0, 40.0)),
        ),
        soak=Soak(seconds=rng.choice((5.0, 20.0))),
        offender=Offender(incidents=rng.choice((1, 3)), action=Action.REPLACE),
        timers=Timers(hold_down_seconds=rng.choice((5.0, 15.0)), debounce_seconds=rng.choice((1.0, 5.0)), flap_limit=2),
        idle=rng.choice((Idle(), Idle(after_seconds=10.0), Idle(after_seconds=10.0, action="Reclaim"))),
    )


def _draw_act(rng: random.Random) -> Act:
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    wait = rng.choice(
        (0.0, rng.uniform(0.0, 0.3), rng.uniform(0.3, 6.0), rng.uniform(0.3, 6.0), rng.uniform(10.0, 30.0))
    )
    return Act(round(wait, 3), kind, rng.random(), rng.randint(1, 25), rng.choice(CODES), rng.choice(HEALS))


def options(schedule: RecoverySchedule) -> dict[str, Any]:
    """For `play`."""
    return {
        "seed": schedule.seed,
        "nodes": schedule.nodes,
        "racks": schedule.racks,
        "lease_s": schedule.lease_s,
        "lag_s": schedule.lag_s,
        "admits": True,
    }


def quota_body(gpus: int, namespace: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "gpus", "namespace": namespace},
        "spec": {"hard": {f"requests.{RESOURCE_GPU}": str(gpus)}},
    }
