"""Whether budgets were charged to the right cause: every charge held against what was really broken.

Read are the drills that were carried out, the nodes that a ladder drained and the power cuts; not what the control plane made of
them.

Which cause is whose:

    a process is killed                          code
    a process hangs                              hang
    a device fails, drops, flaps, counts errors  device
    a device or node is slow                     device (swapped), or hang (its rank stands still)
    a launcher or a pod is taken away, a node    infra
    reboots, is lost or cut off, the power goes
    a node is to be maintained, or is drained    maintenance
    a spot node is taken back                    preemption

Some are felt twice, and only those may be charged twice to one job:

- a node that is cut off or lost fences its launchers at once, and is called dead when its lease has run out
- whatever the power cut off before it was on the disk (`Injected.is_certain`) may be done again after it
- what is slow stays so: a rank that stands still on it does so again in the next attempt, as long as it lasts

A maintenance that comes at another time than its notice says is an infra fault like any other (`_is_doubled`).

Two faults at one moment are one interruption: fewer charges than stops are always right here. That a fault with nothing near
it is charged exactly once is the rule of `tests.builders.schedules`.
"""

from __future__ import annotations

import math

import msgspec

from remuda.api.drills import DrillKind
from remuda.api.training import Cause
from tests.builders.charges import Charge, Stop, unexplained
from tests.builders.world import Injected, World

FELT_S = 30.0  # a lease, a stop, and the 20 s within which a pod has to have started again
HANG_S = 30.0  # until a hang is believed, with the gang started anew before that
SLOW_S = 60.0  # until a slow rank is named, and its gang has the checkpoint it waits for
GROWN = "RoomIsBack"
SAME_STEP = "SameStepFailing"


def wrong_charges(world: World) -> list[str]:
    """Sentences about charges that nothing explains."""
    stops, wrong = stops_of(world), []
    for job in sorted({charge.job for charge in world.invariants.charges.made}):
        charges = [c for c in world.invariants.charges.made if c.job == job and not _is_its_own(c)]
        for charge in unexplained(charges, stops):
            near = [f"{s.what} at {s.since:.1f}" for s in stops if s.since <= charge.at <= s.until]
            wrong.append(
                f"{job} was charged to {charge.cause} at {charge.at:.2f} ({charge.reason}, on {sorted(charge.nodes)}), "
                f"and nothing of the kind was injected there: {', '.join(near) or 'all was quiet'}"
            )
    return wrong


def _is_its_own(charge: Charge) -> bool:
    """Decided by the job, not felt: a gang that grows again, and the code found guilty of failing at one step."""
    return charge.reason in (GROWN, SAME_STEP)


# --- what really happened ---------------------------------------------------------------------------------------------

_OF_PODS = {
    DrillKind.PROCESS_KILL: Cause.CODE,
    DrillKind.PROCESS_HANG: Cause.HANG,
    DrillKind.LAUNCHER_KILL: Cause.INFRA,
    DrillKind.POD_DELETE: Cause.INFRA,
}
_OF_DEVICES = (
    DrillKind.DEVICE_FAIL,
    DrillKind.DEVICE_DROP,
    DrillKind.DEVICE_FLAP,
    DrillKind.DEVICE_REPLACE,
    DrillKind.ECC_TREND,
)
_SLOW = (DrillKind.DEVICE_SLOW, DrillKind.POWER_CAP)
_OF_NODES = (DrillKind.NODE_LOST, DrillKind.NODE_REBOOT, DrillKind.NODE_PARTITION)
_TWICE = (DrillKind.NODE_LOST, DrillKind.NODE_PARTITION)


def stops_of(world: World) -> list[Stop]:
    return [*_injected(world), *_drained(world), *_power(world)]


def _injected(world: World) -> list[Stop]:
    stops = []
    for fault in world.injected:
        kind, until = fault.kind, fault.at + fault.seconds + FELT_S
        node = fault.what.split()[0]
        # The drill is carried out a moment before anybody is told.
        stop = Stop(f"{kind} {fault.what}", frozenset(), fault.at - 1.0, until, times=1 + (not fault.is_certain))
        if kind in _OF_PODS:
            until = fault.at + HANG_S if kind is DrillKind.PROCESS_HANG else until
            for job in fault.jobs:
                stops.append(msgspec.structs.replace(stop, causes=frozenset({_OF_PODS[kind]}), job=job, until=until))
        elif kind in _OF_DEVICES:
            # One that counts errors serves on until its rank has somewhere better to go.
            until = math.inf if kind is DrillKind.ECC_TREND else until
            stops.append(msgspec.structs.replace(stop, causes=frozenset({Cause.DEVICE}), node=node, until=until))
        elif kind in _SLOW:
            causes, until = frozenset({Cause.DEVICE, Cause.HANG}), until + SLOW_S
            times = stop.times + int(fault.seconds // HANG_S)
            stops.append(msgspec.structs.replace(stop, causes=causes, node=node, until=until, times=times))
        elif kind in _OF_NODES:
            times = stop.times * (2 if kind in _TWICE else 1)
            stops.append(msgspec.structs.replace(stop, causes=frozenset({Cause.INFRA}), node=node, times=times))
        elif kind is DrillKind.SPOT_NOTICE:
            stops.append(msgspec.structs.replace(stop, causes=frozenset({Cause.PREEMPTION}), node=node))
        elif kind is DrillKind.MAINTENANCE_NOTICE:
            causes = frozenset({Cause.MAINTENANCE, *((Cause.INFRA,) if _is_doubled(world, fault) else ())})
            stops.append(msgspec.structs.replace(stop, causes=causes, node=node))
    return stops


def _is_doubled(world: World, notice: Injected) -> bool:
    """Two notices to one node are one condition, that of the later: the first comes before it is due, or the second after it was
    taken back with the first."""
    ends = notice.at + notice.seconds
    same = [o for o in world.injected if (o.kind, o.what) == (notice.kind, notice.what) and o is not notice]
    return any(other.at <= ends and notice.at <= other.at + other.seconds for other in same)


def _drained(world: World) -> list[Stop]:
    """Nodes that a ladder asked for."""
    return [
        Stop(f"{one.key} of {one.incident}", frozenset({Cause.MAINTENANCE}), one.at - 1.0, math.inf, node=one.node)
        for one in world.remedies.limits.begun
        if one.key.startswith("drain-")
    ]


def _power(world: World) -> list[Stop]:
    return [Stop("a power cut", frozenset({Cause.INFRA}), at, at + FELT_S) for at in world.cuts]
