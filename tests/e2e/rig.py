"""What the end-to-end tests hold a cluster by: the API, the state directory on disk, and the machine's process table.

`Rig` works the same on a cluster in this process and on a `remuda up` behind its socket. It waits on conditions with a deadline
and reads what happened where it was written: the job's status, the ranks' own logs, the shims' pid files.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from remuda.api.devices import LauncherReport, NodeDevices
from remuda.api.drills import Drill, DrillKind, DrillSpec
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import ObjectMeta
from remuda.api.training import Failure, Member, PodTemplate, Role, Topology, TrainingJob, TrainingJobSpec
from remuda.embedded.node import shim
from remuda.kube.cluster import Cluster
from remuda.link.rank_logs import find_log_sections, read_rank_log_section
from remuda.runtime.up_config import RACK_LABEL
from tests.builders.waiting import PATIENCE_S, POLL_S, until

NAME, NAMESPACE = "job", "default"
RANKS = 4
TRAIN = Path(__file__).with_name("train.py")
# Of a job whose ranks stop when the test lets them: nobody kills or replaces them before.
HELD = Failure(stop_grace_seconds=PATIENCE_S, stop_deadline_seconds=2 * PATIENCE_S)


class Started(msgspec.Struct, frozen=True):
    """The first line a rank wrote in an attempt."""

    rank: int
    attempt: int
    pid: int
    resumed: int | None
    env: dict[str, str]


class Rig:
    def __init__(self, api: Cluster, state: Path) -> None:
        self.api = api
        self.state = state
        self.limit_file = state / "limit"
        self.stop_file = state / "may-stop"

    # --- acting -------------------------------------------------------------------------------------------------------

    async def submit(self, job: TrainingJob) -> None:
        await self.api.create(TrainingJob, job)

    def job(
        self,
        *,
        replicas: int = RANKS,
        gpus: int = 2,
        spares: int = 0,
        rack: bool = False,
        failure: Failure = Failure(),  # noqa: B008 - an immutable value
        command: list[str] | None = None,
        **env: object,
    ) -> TrainingJob:
        """A gang of tests/e2e/train.py. `env`: its settings, by the name behind E2E_."""
        variables = {"E2E_LIMIT": self.limit_file, **{f"E2E_{name.upper()}": value for name, value in env.items()}}
        container = {
            "name": "main",
            "command": command or [sys.executable, str(TRAIN)],
            "env": [{"name": name, "value": str(value)} for name, value in variables.items()],
        }
        template = PodTemplate(spec={"containers": [container]})
        return TrainingJob(
            metadata=ObjectMeta(name=NAME, namespace=NAMESPACE),
            spec=TrainingJobSpec(
                roles=[Role(replicas=replicas, gpus=gpus, template=template)],
                spares=spares,
                topology=Topology(required=RACK_LABEL if rack else ""),
                failure=failure,
            ),
        )

    def let_run_to(self, step: int) -> None:
        """Nobody goes beyond this step."""
        new = self.limit_file.with_suffix(".new")
        new.write_text(str(step))
        new.replace(self.limit_file)

    def let_stop(self) -> None:
        """Ranks of a job made with `stop_file=rig.stop_file` end from now on when they are asked to."""
        self.stop_file.touch()

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    async def drill(self, kind: DrillKind, **target: Any) -> None:
        name = f"{kind.value}-{uuid.uuid4().hex[:8]}"
        await self.api.create(Drill, Drill(metadata=ObjectMeta(name=name), spec=DrillSpec(type=kind, **target)))

        async def done() -> bool:
            return (await self.api.get(Drill, name)).status.phase != "Pending"

        await until("the drill to be carried out", done)
        status = (await self.api.get(Drill, name)).status
        assert status.phase == "Done", f"{status.reason}: {status.message}"

    async def strike(self, kind: DrillKind, member: Member) -> None:
        await self.drill(kind, pod=member.pod, namespace=NAMESPACE)

    async def fail_device(self, node: str, device: str, code: str = "xid-79") -> None:
        await self.drill(DrillKind.DEVICE_FAIL, node=node, device=device, code=code)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def get(self) -> TrainingJob:
        return await self.api.get(TrainingJob, NAME, NAMESPACE)

    async def pods(self) -> list[Pod]:
        return (await self.api.list(Pod, NAMESPACE)).items

    async def reports(self) -> dict[str, LauncherReport]:
        nodes = (await self.api.list(NodeDevices)).items
        return {report.uid: report for node in nodes for report in node.observed.launchers}

    async def until(self, what: str, holds: Callable[[TrainingJob], bool], seconds: float = PATIENCE_S) -> TrainingJob:
        """The job once `holds` is true of it; fails with what the job says when that takes too long."""
        deadline = time.monotonic() + seconds
        while not holds(job := await self.get()):
            status = job.status
            words = f"waiting for {what}: {status.phase}, attempt {status.attempt} {status.barrier}: {status.message}"
            assert time.monotonic() < deadline, f"{words}; {[msgspec.to_builtins(r) for r in status.recoveries]}"
            await asyncio.sleep(POLL_S)
        return job

    async def trained_to(self, step: int, attempt: int = 1, spares: int = 0) -> TrainingJob:
        """Every rank has finished `step` in that attempt, and so many spares are parked.

        Ranks say so in their logs; the job's own count may be a second behind.
        """

        def there(job: TrainingJob) -> bool:
            status = job.status
            is_over = not status.recoveries or status.recoveries[-1].first_step_at is not None
            is_running = status.phase == "Running" and status.attempt == attempt and is_over
            parked = sum(spare.parked for spare in status.spares)
            return is_running and parked >= spares and self.lines(attempt).count(f"step {step}") == len(status.members)

        return await self.until(f"step {step} of attempt {attempt}", there)

    def started(self, attempt: int) -> dict[int, Started]:
        """What the ranks' logs say of an attempt, by rank. No rank may have been started twice in it."""
        found: dict[int, Started] = {}
        for section in find_log_sections(self.state / "logs", NAMESPACE, NAME):
            if section.attempt == attempt and section.rank is not None:
                text = b"".join(read_rank_log_section(section))
                line, whole, _ = text.partition(b"\n")
                assert section.rank not in found, f"rank {section.rank} was started twice in attempt {attempt}"
                if whole:
                    found[section.rank] = msgspec.json.decode(line, type=Started)
        return found

    def lines(self, attempt: int) -> list[str]:
        """Everything all ranks wrote in an attempt."""
        sections = [s for s in find_log_sections(self.state / "logs", NAMESPACE, NAME) if s.attempt == attempt]
        return [line for s in sections for line in b"".join(read_rank_log_section(s)).decode().splitlines()]

    async def all_started(self, attempt: int, ranks: int = RANKS) -> dict[int, Started]:
        async def all_there() -> bool:
            return len(self.started(attempt)) == ranks

        await until(f"the logs of all ranks of attempt {attempt}", all_there)
        return self.started(attempt)

    def launchers(self) -> dict[str, int]:
        """Pid of each pod's launcher, by pod uid, from the pid files of the newest runs."""
        return {path.parts[-4]: json.loads(path.read_bytes())["pid"] for path in sorted(self._pid_files())}

    def _pid_files(self) -> Iterator[Path]:
        return self.state.glob("nodes/*/pods/*/*/*/pid.json")

    def is_launcher_alive(self, uid: str) -> bool:
        return any(
            shim.probe_container(str(path))[1] is not None for path in self._pid_files() if path.parts[-4] == uid
        )

    def checkpoint_folder(self, rank: int) -> Path:
        """Where the rank writes its checkpoints, as it was told."""
        return Path(self.started(1)[rank].env["REMUDA_CHECKPOINT_DIR"]) / f"rank-{rank}"

    def checkpoints(self, rank: int) -> list[int]:
        """Steps of the rank's committed checkpoints, oldest first."""
        found = self.checkpoint_folder(rank).glob("step-*.json")
        return sorted(int(path.stem.removeprefix("step-")) for path in found)

    # --- what always holds --------------------------------------------------------------------------------------------

    async def check_invariants(self) -> None:
        """No device held twice; ranks unique; everybody runs the attempt of the job, as one process each."""
        await until("the reports of all ranks", self._is_all_told)
        job, pods, reports = await self.get(), await self.pods(), await self.reports()
        held = [(pod.spec.node_name, d) for pod in pods if pod.is_live and pod.spec.node_name for d in _devices(pod)]
        assert len(held) == len(set(held)), f"a device is held twice: {sorted(held)}"
        status = job.status
        assert [m.rank for m in status.members] == list(range(len(status.members)))
        assert len({m.uid for m in status.members}) == len(status.members)
        states = {m.rank: (reports[m.uid].state, reports[m.uid].attempt) for m in status.members}
        assert states == {m.rank: ("running", status.attempt) for m in status.members}
        for attempt in range(1, status.attempt + 1):
            self.started(attempt)
        alive = sorted(self.live_ranks())
        assert alive == [(rank, status.attempt) for rank in range(len(status.members))], (
            "processes beside the gang's own"
        )

    async def _is_all_told(self) -> bool:
        """Ranks are at work a moment before their nodes have written so."""
        status, reports = (await self.get()).status, await self.reports()
        found = [reports.get(m.uid) for m in status.members]
        return all(r is not None and (r.state, r.attempt) == ("running", status.attempt) for r in found)

    def live_ranks(self) -> list[tuple[int, int]]:
        """(rank, attempt) of every training process of this state directory that lives."""
        found = []
        for pid, env in _processes(self.state):
            if b"REMUDA_RANK" in env and str(TRAIN).encode() in _read(f"/proc/{pid}/cmdline"):
                found.append((int(env[b"REMUDA_RANK"]), int(env[b"REMUDA_ATTEMPT"])))
        return found


def kept(before: TrainingJob, after: TrainingJob, *, moved: Collection[int] = ()) -> None:
    """Every rank but those in `moved` has the pod, node and devices it had; those have another pod."""
    old = {m.rank: m for m in before.status.members}
    new = {m.rank: m for m in after.status.members}
    assert set(old) == set(new)
    for rank in old:
        if rank in moved:
            assert new[rank].uid != old[rank].uid, f"rank {rank} still has {old[rank].pod}"
        else:
            assert msgspec.structs.replace(new[rank], address="") == msgspec.structs.replace(old[rank], address="")


def _devices(pod: Pod) -> list[str]:
    return [d for d in pod.annotations.get("remuda.dev/devices", "").split(",") if d]


# --- processes ----------------------------------------------------------------------------------------------------------


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _processes(state: Path) -> Iterator[tuple[int, dict[bytes, bytes]]]:
    """Living processes that carry the state directory in their environment or arguments: each test has its own."""
    mark = str(state).encode()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        environ = _read(f"/proc/{entry}/environ")
        if mark in environ or mark in _read(f"/proc/{entry}/cmdline"):
            yield int(entry), dict(pair.split(b"=", 1) for pair in environ.split(b"\0") if b"=" in pair)


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def left_running(state: Path) -> list[str]:
    return [_read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode() for pid, _ in _processes(state)]


def sweep(state: Path) -> None:
    """End everything that a test has left, however it ended."""
    for _ in range(100):
        found = [pid for pid, _ in _processes(state)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)
