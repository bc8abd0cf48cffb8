"""The demo itself: a cluster, a gang, four faults, and after each the promises are checked against the API and the logs."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console, RenderableType
from rich.live import Live

from remuda.api.drills import Drill, DrillKind, DrillSpec
from remuda.api.incidents import Incident
from remuda.api.meta import ObjectMeta, to_seconds
from remuda.api.training import Checkpoint, Failure, PodTemplate, Recovery, Role, Topology, TrainingJob, TrainingJobSpec
from remuda.cli.demo import promises
from remuda.cli.demo.demo_screen import Scene, render_demo_recoveries, render_demo_timeline, render_scene
from remuda.cli.demo.demo_submit import NotSubmitted, Submit, submit_by_api, submit_by_kubectl
from remuda.cli.demo.promises import DemoGangAfter, DemoGangBefore
from remuda.cli.faults.incident_screen import render_incidents
from remuda.cli.faults.incidents import choose_incidents
from remuda.cli.output import make_console, print_screen
from remuda.cli.program_logs import show_program_logs
from remuda.core.health.slow_ranks import SOURCE
from remuda.link.rank_logs import find_log_sections, read_rank_log_section
from remuda.runtime.api_endpoint import LOOPBACK, ApiEndpoint
from remuda.runtime.embedded_cluster import EmbeddedCluster
from remuda.runtime.embedded_server import EmbeddedClusterServer
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import RACK_LABEL, ClusterConfig

NAME, NAMESPACE = "demo", "default"
RANKS, GPUS, SPARES = 8, 4, 1
UNSAVED_STEPS, CALM_STEPS = 4, 24  # how far training gets between two faults
SLOWER = 3.0
TRAIN = Path(__file__).with_name("train.py")

SLOW_FOOTNOTE = "(d) counts from the swap at a checkpoint; until then the job trained slowly."
NEXT = """
Now try it yourself (put .venv/bin on your PATH first):
  remuda up --detach
  remuda train my-job --replicas 8 --gpus 4 --spares 1 --topology rack \\
      --workdir examples/01-hello-gang -- python train.py
  remuda job my-job -w
  remuda drill device-fail my-job --rank 5 --code 79
  remuda devices
  remuda incidents
  remuda logs my-job --rank 3 --attempt 1
  remuda down
"""


class BrokenPromise(Exception):
    """The demo's own verdict on itself."""


def demo_job() -> TrainingJob:
    """What `remuda train --replicas 8 --gpus 4 --spares 1 --topology rack -- python train.py` would send."""
    container = {"name": "main", "command": ["python", str(TRAIN)], "workingDir": str(TRAIN.parent)}
    return TrainingJob(
        metadata=ObjectMeta(name=NAME, namespace=NAMESPACE),
        spec=TrainingJobSpec(
            roles=[Role(replicas=RANKS, gpus=GPUS, template=PodTemplate(spec={"containers": [container]}))],
            spares=SPARES,
            topology=Topology(required=RACK_LABEL),
            checkpoint=Checkpoint(),
            failure=Failure(),
        ),
    )


class Demo:
    def __init__(self, cluster: EmbeddedCluster, submit: Submit, console: Console, root: Path, *, live: bool) -> None:
        self._cluster = cluster
        self._submit = submit
        self._console = console
        self._root = root
        self._view = cluster.control.view
        self._events: list[str] = []
        self._title = ""
        self._changed = asyncio.Event()
        self._rows: list[tuple[str, Recovery]] = []
        self._letters: dict[int, str] = {}
        self._bad: list[tuple[str, str]] = []  # devices that were broken on purpose
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._scene) if live else None
        for informer in (self._view.jobs, self._view.pods, self._view.devices):
            informer.subscribe(lambda old, new: self._changed.set())
        cluster.board.subscribe(lambda namespace, gang, notable: self._changed.set())

    # -- the play ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        if self._live is not None:
            self._live.start()
        try:
            await self._play()
        finally:
            if self._live is not None:
                self._live.stop()
        self._finale()

    async def _play(self) -> None:
        self._say(
            "16 nodes with 8 fake H100 each, in 2 racks. One job: 8 pods with 4 GPUs each, and 1 spare pod that waits"
        )
        self._note(await self._submit(demo_job()))
        await self._until("the gang to train", self._settled, 30)
        self._note(
            f"The job trains in {self._rack()}. Its newest checkpoint is step {self._job().status.progress.checkpoint_step}."
        )
        await self._process_killed()
        await self._device_failed()
        await self._spare_and_device_failed()
        await self._device_slow()
        await self._recorded()

    async def _process_killed(self) -> None:
        self._say("(a) Kill the process of rank 3")
        before = self._before()
        await self._drill(DrillKind.PROCESS_KILL, pod=before.job.status.members[3].pod, namespace=NAMESPACE)
        after = await self._recovered("(a) process", before)
        self._check(
            promises.demo_promises_broken_by_restart(before, after),
            "all 8 ranks restarted in their own pods, on the same GPUs",
        )

    async def _device_failed(self) -> None:
        self._say("(b) Break a GPU of rank 5 (Xid 79: it fell off the bus)")
        before = self._before()
        victim = before.job.status.members[5]
        await self._drill(DrillKind.DEVICE_FAIL, node=victim.node, device=victim.devices[1], code="xid-79")
        after = await self._recovered("(b) device", before)
        bad = (victim.node, victim.devices[1])
        self._bad.append(bad)
        problems = promises.demo_promises_broken_by_device(before, after, 5, bad, by_spare=True)
        await self._until("a fresh spare", lambda: not promises.demo_promises_broken_by_spare(before, self._job()), 20)
        self._check(
            problems, "the spare took over in the same rack, 7 pods stayed as they were, and a new spare is ready"
        )

    async def _spare_and_device_failed(self) -> None:
        self._say("(c) Break a GPU of the spare, then one of rank 2")
        before = self._before()
        spare, victim = before.job.status.spares[0], before.job.status.members[2]
        await self._drill(DrillKind.DEVICE_FAIL, node=spare.node, device=spare.devices[0], code="xid-79")
        await self._drill(DrillKind.DEVICE_FAIL, node=victim.node, device=victim.devices[0], code="xid-48")
        after = await self._recovered("(c) spare, device", before)
        bad = (victim.node, victim.devices[0])
        self._bad += [bad, (spare.node, spare.devices[0])]
        problems = promises.demo_promises_broken_by_device(before, after, 2, bad, by_spare=False)
        await self._until("a fresh spare", lambda: not promises.demo_promises_broken_by_spare(before, self._job()), 20)
        self._check(problems, "no spare was left, so a new pod took over in the same rack, and a new spare is ready")

    async def _device_slow(self) -> None:
        self._say(f"(d) Slow down a GPU of rank 6 by a factor of {SLOWER:g}")
        before = self._before()
        victim = before.job.status.members[6]
        node, device = victim.node, victim.devices[2]
        self._note(
            f"{device} of {node} is now {SLOWER:g} times slower and reports a degraded PCIe link. The rank's speed shows that "
            f"one of its {GPUS} GPUs is slow; the link report shows which one."
        )
        await self._drill(DrillKind.DEVICE_FAIL, node=node, device=device, code="pcie-degraded")
        await self._drill(DrillKind.DEVICE_SLOW, node=node, device=device, factor=SLOWER)
        began = self._step()
        await self._until("the slow device to be named", self._found, 45)
        found = self._found()
        self._note(f"The slow GPU was named after {self._step() - began} steps: {next(iter(found.values()))}")
        after = await self._recovered("(d) slow device", before)
        self._check(
            promises.demo_promises_broken_by_slowness(before, after, 6, (node, device), found),
            "the slow rank was found with its pod, node and GPU, and the spare took over at a checkpoint",
        )
        self._bad.append((node, device))

    async def _recorded(self) -> None:
        """Incidents are written beside the recovery; they may come a moment later."""
        await self._until(
            "incidents", lambda: not promises.demo_promises_broken_in_incidents(self._incidents(), self._bad), 20
        )

    # -- looking ----------------------------------------------------------------------------------------------------

    def _job(self) -> TrainingJob:
        job = self._view.jobs.get(NAME, NAMESPACE)
        if job is None:
            raise BrokenPromise("the job is gone")
        return job

    def _step(self) -> int:
        """The slowest member's newest step, fresher than the status."""
        beats = self._cluster.board.of_gang(NAMESPACE, NAME)
        steps = [beats[m.uid].last.step if m.uid in beats else 0 for m in self._job().status.members]
        return min(steps, default=0)

    def _found(self) -> dict[tuple[str, str], str]:
        """What the straggler watch says, by node and device."""
        return {
            (node.name, device): signal.message
            for node in self._view.devices.items()
            for device, signals in node.findings.items()
            for signal in signals
            if signal.source == SOURCE
        }

    def _incidents(self) -> list[Incident]:
        return choose_incidents(self._view.incidents.items(), time.time())

    def _racks(self) -> dict[str, str]:
        return {n.name: n.labels.get(RACK_LABEL, "") for n in self._view.nodes.items()}

    def _rack(self) -> str:
        return self._job().status.placement.domain

    def _before(self) -> DemoGangBefore:
        return DemoGangBefore(self._job(), self._racks())

    def _settled(self) -> bool:
        """Training, with a checkpoint of this attempt to lose steps against, and a spare at hand."""
        job = self._job()
        status = job.status
        resumed = status.recoveries[-1].resume_step if status.recoveries else 0
        done = not status.recoveries or status.recoveries[-1].first_step_at is not None
        parked = any(s.parked for s in status.spares)
        saved = status.progress.checkpoint_step
        # Far enough after a checkpoint that a fault costs steps, and long enough after the last fault to be training again.
        far = self._step() >= saved + UNSAVED_STEPS and self._step() >= resumed + CALM_STEPS
        return status.phase == "Running" and done and parked and saved > resumed and far

    async def _recovered(self, name: str, before: DemoGangBefore) -> DemoGangAfter:
        attempt = before.job.status.attempt

        def is_over() -> bool:
            status = self._job().status
            return (
                status.attempt > attempt
                and status.barrier == "Open"
                and status.recoveries[-1].first_step_at is not None
            )

        await self._until("the gang to recover", is_over, 30)
        job = self._job()
        after = DemoGangAfter(job, self._racks(), self._resumed(job.status.attempt))
        self._rows.append((name, after.recovery))
        self._letters[after.recovery.attempt] = name[1]
        self._note(self._summary(after.recovery))
        await self._until("training to go on", self._settled, 20)
        return after

    def _resumed(self, attempt: int) -> dict[int, int]:
        """What each rank's own log says about the step it went on from."""
        said: dict[int, int] = {}
        for section in find_log_sections(self._root / "logs", NAMESPACE, NAME):
            if section.attempt == attempt and section.rank is not None:
                text = b"".join(read_rank_log_section(section)).decode(errors="replace")
                words = [line.rsplit(" ", 1)[-1] for line in text.splitlines() if "resumes after step" in line]
                if words and words[0].isdigit():
                    said[section.rank] = int(words[0])
        return said

    def _summary(self, recovery: Recovery) -> str:
        began = to_seconds(recovery.signal_at) if recovery.signal_at else 0.0
        marks = (
            ("Noticed", recovery.detected_at),
            ("all ranks stopped", recovery.stopped_at),
            ("all told to start", recovery.opened_at),
            ("first new step", recovery.first_step_at),
        )
        times = ", ".join(f"{word} after {(to_seconds(at) - began) * 1000:.0f} ms" for word, at in marks if at)
        lost = max(0, recovery.step_at_fault - recovery.resume_step)
        return f"{times}. {lost} steps repeated. Remedy: {recovery.remedy} ({recovery.reason})."

    # -- acting -----------------------------------------------------------------------------------------------------

    async def _drill(self, kind: DrillKind, **target: Any) -> None:
        name = f"demo-{kind.value}-{uuid.uuid4().hex[:6]}"
        drill = Drill(metadata=ObjectMeta(name=name), spec=replace(DrillSpec(type=kind), **target))
        await self._cluster.api.create(Drill, drill)
        found = drill
        async with asyncio.timeout(10):
            async for event in self._cluster.api.watch(Drill, "0"):
                if event.obj is not None and event.obj.name == name and event.obj.status.phase != "Pending":
                    found = event.obj
                    break
        if found.status.phase != "Done":
            raise BrokenPromise(f"the drill was refused: {found.status.reason}: {found.status.message}")

    async def _until(self, what: str, holds: Callable[[], object], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    job = self._view.jobs.get(NAME, NAMESPACE)
                    if job is not None and job.status.phase == "Failed":
                        raise BrokenPromise(f"the job failed: {job.status.reason}: {job.status.message}")
                    if job is not None and holds():
                        return
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            status = self._job().status
            raise BrokenPromise(
                f"waited {seconds:g} s for {what}; the job is {status.phase}: {status.message}"
            ) from None

    def _check(self, problems: list[str], promise: str) -> None:
        if problems:
            said = [
                f"attempt {r.attempt} {r.remedy} of {', '.join(r.members)}: {r.reason}: {r.message}"
                for r in self._job().status.recoveries
            ]
            raise BrokenPromise("; ".join([*problems, *said]))
        self._note(f"[green]Promise kept:[/green] {promise}.")

    # -- showing ----------------------------------------------------------------------------------------------------

    def _say(self, title: str) -> None:
        self._title = title
        self._note(f"[bold]{title}[/bold]")

    def _note(self, line: str) -> None:
        self._events.append(line)
        if self._live is None:
            self._console.print(line)

    def _scene(self) -> RenderableType:
        job = self._view.jobs.get(NAME, NAMESPACE)
        beats = self._cluster.board.of_gang(NAMESPACE, NAME)
        steps = {uid: p.last.step for uid, p in beats.items()}
        return render_scene(Scene(self._title, job, self._view.reports, self._racks(), steps, self._events))

    def _finale(self) -> None:
        job = self._job()
        self._console.print(render_demo_recoveries(self._rows))
        self._console.print(SLOW_FOOTNOTE, highlight=False)
        width = max(40, min(100, self._console.width - 6))
        self._console.print(render_demo_timeline(job, self._letters, time.time(), width))
        lost = ", ".join(
            f"{cause} {seconds:.0f}" for cause, seconds in sorted(job.status.goodput.lost_gpu_seconds.items())
        )
        self._console.print(
            f"Training took {job.status.goodput.ettr:.1%} of {job.status.goodput.wall_seconds:.0f} s (ETTR), with "
            f"{job.status.interruptions} failures. GPU-seconds lost by cause: {lost}."
        )
        self._console.print("\n$ remuda incidents", highlight=False)
        print_screen(render_incidents(self._incidents(), time.time(), make_console().width))
        self._console.print(NEXT, highlight=False)


def run_demo(console: Console, kubectl: str = "") -> int:
    """0 when every promise held. `kubectl`: the program that submits the job; without one it is sent in this process."""
    show_program_logs(logging.ERROR)
    root = Path(tempfile.mkdtemp(prefix="remuda-demo-"))
    try:
        return asyncio.run(_run_demo(console, StateDir(root), kubectl))
    except BrokenPromise as problem:
        console.print(f"[red]Broken promise:[/red] {problem}")
        return 1
    except NotSubmitted as problem:
        console.print(f"[red]Not submitted:[/red] {problem}")
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def _run_demo(console: Console, state: StateDir, kubectl: str) -> int:
    local = EmbeddedClusterServer(ClusterConfig(), state)
    async with local.cluster as cluster, AsyncExitStack() as stack:
        submit = submit_by_api(cluster.api)
        if kubectl:
            await stack.enter_async_context(local.serving(ApiEndpoint(state, 0, LOOPBACK, time.time())))
            submit = submit_by_kubectl(kubectl, state.kubeconfig, state.path)
        await Demo(cluster, submit, console, state.path, live=console.is_terminal).run()
    return 0
