"""What a node knows of its pods when a new life of it begins: from the API, the machine, or its last record of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.api.meta import to_seconds
from remuda.embedded.node import container_record
from remuda.embedded.node.container_record import (
    ContainerPhase,
    ContainerRecord,
    remembered_container,
    restart_backoff_of,
)
from remuda.embedded.node.pod_lifecycle import DeviceAdmission, PodRecord
from remuda.embedded.node.runtime_port import AdoptedContainer


def first_pod_record(
    pod: Pod, adopted: Iterable[AdoptedContainer], now: float, *, held: bool, notice: str
) -> PodRecord:
    """Of a pod this life of the node has not seen before. `held`: an earlier one may have left devices with the agent."""
    found = {a.key.container: a for a in adopted}
    known = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    statuses = {s.name: s for s in known}

    def first(spec: Container) -> ContainerRecord:
        record = remembered_container(spec.name, statuses.get(spec.name), now)
        ours = found.get(spec.name)
        return record if ours is None else _join_container_record(record, ours, pod)

    records = tuple(first(spec) for spec in pod.spec.containers)
    started = pod.status.start_time
    return PodRecord(
        containers=records,
        inits=tuple(first(spec) for spec in pod.spec.init_containers),
        held=held or bool(found),
        address=next((a.address for a in found.values() if a.address), pod.status.pod_ip),
        start_time=to_seconds(started) if started is not None else now,
        notice=notice,
        untold=next((r.exit.code for r in records if r.exit is not None), None),
    )


def record_after_process_end(record: PodRecord) -> PodRecord:
    """What is left of a record when the node's process ends and the next one looks at the machine: containers and their ends."""
    refused = record.admission is DeviceAdmission.REFUSED
    return msgspec.structs.replace(
        record,
        admission=DeviceAdmission.REFUSED if refused else DeviceAdmission.NONE,
        held=record.held or not refused,
        pulling=frozenset(),
        preparing=frozenset(),
        stopping_since=None,
        sidecars_told=False,
        killed=False,
    )


def _join_container_record(record: ContainerRecord, found: AdoptedContainer, pod: Pod) -> ContainerRecord:
    """What the API says of a container and what the machine has of it. The machine is right about its newest run."""
    last = record.last
    if found.run > record.run and found.previous is not None:
        last = container_record.terminated_state(msgspec.structs.replace(record, started_at=0.0, exit=found.previous))
    running = msgspec.structs.replace(
        record,
        phase=ContainerPhase.RUNNING,
        run=found.run,
        started_at=found.started_at,
        exit=None,
        last=last,
        not_before=0.0,
    )
    if found.exit is None:
        return running
    return container_record.container_exited(running, found.exit, restart_backoff_of(pod))
