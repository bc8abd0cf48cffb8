"""The node with real processes: environment, logs, signals, restarts, and finding everything again after a crash."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.codec import encode
from remuda.api.drills import Drill
from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.node import pod_worker, process_tree, run_dir
from remuda.embedded.node.container_environment import CONTAINER_ID
from remuda.embedded.node.container_record import STATUS_UNKNOWN
from remuda.embedded.node.runtime_port import ContainerKey
from remuda.link.rank_logs import find_log_sections, read_rank_log_section
from tests.builders.nodes import Rig, until
from tests.builders.pods import pod_wire
from tests.builders.runtimes import ProcessMachine
from tests.builders.waiting import PATIENCE_S


class Machine(ProcessMachine):
    async def up(self, pod: Pod, times: int = 1) -> None:
        """The program itself has said so and its shim has written it down; its pod is called running a little earlier."""
        await until(lambda: self.log(pod).count("up\n") == times and self.is_known(pod.uid))

    async def alone(self, pod: Pod) -> None:
        """Shim and program and no other: a shim that has told its program's end takes a moment to go itself."""
        await until(lambda: len(self.processes(pod.uid)) == 2)

    def pids(self, uid: str, run: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.runs(uid)[run] / "pid.json").read_text())
        return found

    def is_known(self, uid: str) -> bool:
        """Its shim has written down the process of its last run; that may be after the process has said hello."""
        return (self.runs(uid)[-1] / "pid.json").exists()

    def runs(self, uid: str) -> list[Path]:
        return sorted((self.state / "nodes" / "node-01" / "pods" / uid / "main").iterdir())


@pytest_asyncio.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    (tmp_path / "alloc").mkdir()
    made = Machine(tmp_path)
    yield made
    uids = [p.name for p in (tmp_path / "nodes" / "node-01" / "pods").glob("*")]
    for pid in process_tree.processes_tagged(CONTAINER_ID, {f"{uid}/main" for uid in uids}).pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def python(code: str) -> list[str]:
    return ["python", "-u", "-c", code]


SLEEP = python("import time\nprint('up')\ntime.sleep(600)")


def terminated(pod: Pod) -> tuple[int, str, str]:
    state = pod.status.container_statuses[0].state.terminated
    assert state is not None
    return state.exit_code, state.reason, state.message


async def ended(rig: Rig, name: str = "worker-0") -> Pod:
    return await rig.pod(name, lambda p: p.is_terminal)


# --- running ------------------------------------------------------------------------------------------------------------


async def test_a_pod_runs_and_sees_its_devices_address_and_machine(machine: Machine) -> None:
    code = (
        "import json, os, sys; keys = ['REMUDA_VISIBLE_DEVICES', 'POD_IP', 'POD_NAME', 'NODE_NAME', 'REMUDA_ALLOC_DIR', 'MINE'];"
        "print(json.dumps([os.environ[k] for k in keys])); print(os.getcwd()); print(sys.executable, file=sys.stderr)"
    )
    async with machine.boot().running() as rig:
        body = pod_wire(command=python(code), policy="Never", devices=("gpu-2", "gpu-5"), env={"MINE": "$(POD_NAME)!"})
        made = await rig.create(body)
        pod = await ended(rig)
        assert (pod.status.phase, terminated(pod)) == ("Succeeded", (0, "Completed", ""))
        values, cwd, executable = machine.log(pod).splitlines()
        alloc = str(machine.state / "alloc")
        assert json.loads(values) == [
            "gpu-2,gpu-5", pod.status.pod_ip, "worker-0", "node-01", alloc, "worker-0!",
        ]  # fmt: skip
        assert cwd == str(machine.state / "nodes/node-01/pods" / made.uid)
        assert Path(executable).parent == Path(sys.executable).parent
        await until(lambda: not (machine.state / "nodes/node-01/pods" / made.uid).exists())


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (python("import sys; sys.exit(3)"), 3, "exit code 3"),
        (python("import os; os.kill(os.getpid(), 11)"), 139, "signal 11"),
        (["no-such-command"], 127, "command not found: no-such-command"),
        ([__file__], 126, "permission denied"),
    ],
    ids=["exit code", "signal", "not found", "not runnable"],
)
async def test_how_it_ended_is_told(machine: Machine, command: list[str], code: int, words: str) -> None:
    async with machine.boot().running() as rig:
        await rig.create(pod_wire(command=command, policy="Never"))
        pod = await ended(rig)
        assert pod.status.phase == "Failed"
        assert terminated(pod)[:2] == (code, "Error")
        assert words in terminated(pod)[2]


async def test_on_failure_runs_again_until_it_succeeds_in_one_log(machine: Machine) -> None:
    mark = machine.state / "mark"
    code = f"import os, sys; p = {str(mark)!r}; again = os.path.exists(p); open(p, 'w'); print('run', again); sys.exit(not again)"
    async with machine.boot().running() as rig:
        await rig.create(pod_wire(command=python(code), policy="OnFailure"))
        pod = await ended(rig)
        assert pod.status.phase == "Succeeded"
        assert pod.status.container_statuses[0].restart_count == 1
        last = pod.status.container_statuses[0].last_state.terminated
        assert last is not None
        assert last.exit_code == 1
        assert machine.log(pod) == "run False\nrun True\n"


async def test_deletion_lets_the_program_clean_up(machine: Machine) -> None:
    code = (
        "import signal, sys, time\n"
        "def leave(*_): print('bye'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave); print('up'); time.sleep(600)"
    )
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=python(code), devices=("gpu-0",)))
        await machine.up(pod)
        await rig.cluster.delete(Pod, "worker-0", "default")
        await rig.gone("worker-0")
        assert machine.log(pod) == "up\nbye\n"
        assert machine.processes(pod.uid) == []
        assert rig.agent.calls[-2:] == [("exited", pod.uid, 0), ("release", pod.uid)]


async def test_a_deaf_program_and_all_it_started_is_killed_after_the_grace(machine: Machine) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print('up'); time.sleep(600)"
    )
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=python(code), grace=1, devices=("gpu-0",)))
        await until(lambda: len(machine.processes(pod.uid)) == 3)  # shim, program, its runaway child
        left_at_release: list[int] = []
        rig.agent.on_release = lambda uid: left_at_release.extend(machine.processes(uid))
        begun = time.monotonic()
        await rig.cluster.delete(Pod, "worker-0", "default")
        await rig.gone("worker-0")
        assert time.monotonic() - begun >= 1.0
        assert left_at_release == []
        assert ("exited", pod.uid, 137) in rig.agent.calls


async def test_a_container_without_command_is_simulated_and_says_so(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(image="nginx"))
        running = await rig.running_pod()
        assert running.status.reason == "NoLocalCommand"
        assert ("allocate", "worker-0", (), True) in rig.agent.calls
        assert machine.processes(pod.uid) == []
        await rig.cluster.delete(Pod, "worker-0", "default")
        await rig.gone("worker-0")


async def test_a_killed_shim_costs_the_container_and_leaves_nothing_behind(machine: Machine) -> None:
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "time.sleep(600)"
    )
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=python(code), policy="Never"))
        await until(lambda: len(machine.processes(pod.uid)) == 3)
        os.kill(machine.pids(pod.uid)["shim"], signal.SIGKILL)
        pod = await ended(rig)
        assert terminated(pod)[:2] == (137, STATUS_UNKNOWN)
        assert machine.processes(pod.uid) == []


async def test_halt_ends_everything_and_the_next_start_runs_it_again(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=SLEEP))
        await machine.up(await rig.running_pod())
        await rig.node.halt(grace_s=5.0)
        assert machine.processes(pod.uid) == []
    async with machine.boot().running() as rig:
        again = await rig.running_pod(restarts=1)
        assert again.uid == pod.uid
        last = again.status.container_statuses[0].last_state.terminated
        assert last is not None
        assert last.exit_code == 143


# --- found again --------------------------------------------------------------------------------------------------------


async def test_a_running_container_is_found_again_and_not_disturbed(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        await rig.create(pod_wire(command=SLEEP, devices=("gpu-0",)))
        before = await rig.running_pod()
        await machine.up(before)
        processes = machine.processes(before.uid)
    assert machine.processes(before.uid) == processes
    async with machine.boot().running() as rig:
        await until(lambda: ("allocate", "worker-0", ("gpu-0",), False) in rig.agent.calls)
        worker = rig.node.find("worker-0", "default")
        assert worker is not None
        assert worker.record.is_live
        assert worker.record.address == before.status.pod_ip
        assert machine.processes(before.uid) == processes
        other = await rig.create(pod_wire("worker-1", command=SLEEP))
        assert (await rig.running_pod("worker-1")).status.pod_ip != before.status.pod_ip
        assert (await rig.cluster.get(Pod, "worker-0", "default")).status == before.status
        await rig.cluster.delete(Pod, "worker-0", "default")
        await rig.gone("worker-0")
        assert machine.processes(before.uid) == []
        assert machine.processes(other.uid) != []


async def test_an_exit_that_nobody_watched_is_told(machine: Machine) -> None:
    gate = machine.state / "gate"
    code = f"import os, sys, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nsys.exit(5)"
    code = f"print('up')\n{code}"
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=python(code), policy="Never", devices=("gpu-0",)))
        await rig.running_pod()
        await machine.up(pod)
    gate.touch()
    await until(lambda: (machine.runs(pod.uid)[0] / "status.json").exists())
    async with machine.boot().running() as rig:
        pod = await ended(rig)
        assert terminated(pod) == (5, "Error", "exit code 5")
        assert rig.agent.calls == [("release", pod.uid)]
        assert machine.log(pod) == "up\n"


async def test_an_exit_that_nobody_watched_is_restarted_once(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=SLEEP))
        await rig.running_pod()
        await machine.up(pod)
    os.kill(machine.pids(pod.uid)["pid"], signal.SIGKILL)
    await until(lambda: (machine.runs(pod.uid)[0] / "status.json").exists())
    async with machine.boot().running() as rig:
        await rig.running_pod(restarts=1)
        await machine.up(pod, times=2)
        await machine.alone(pod)
        assert [run.name for run in machine.runs(pod.uid)] == ["0", "1"]
        assert rig.agent.calls == [("allocate", "worker-0", (), False), ("exited", pod.uid, 137)]


async def test_a_shim_killed_while_the_node_was_down_is_an_unknown_end(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=SLEEP, policy="Never"))
        await rig.running_pod()
        await machine.up(pod)
    for pid in machine.processes(pod.uid):
        os.kill(pid, signal.SIGKILL)
    async with machine.boot().running() as rig:
        assert terminated(await ended(rig))[:2] == (137, STATUS_UNKNOWN)


async def test_a_program_whose_shim_was_killed_does_not_run_on_beside_its_successor(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=SLEEP))
        await rig.running_pod()
        await machine.up(pod)
    record = machine.pids(pod.uid)
    os.kill(record["shim"], signal.SIGKILL)
    async with machine.boot().running() as rig:
        await rig.running_pod(restarts=1)
        await machine.alone(pod)
        assert record["pid"] not in machine.processes(pod.uid)


async def test_a_start_that_never_happened_happens_once(machine: Machine) -> None:
    """Killed after the specification was written and before the shim was started."""
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=SLEEP))
        await rig.running_pod()
        await machine.up(pod)
    for pid in machine.processes(pod.uid):
        os.kill(pid, signal.SIGKILL)
    (run,) = machine.runs(pod.uid)
    (run / "pid.json").unlink(missing_ok=True)
    status = {"phase": "Pending", "containerStatuses": None}
    await rig.cluster.patch(Pod, "worker-0", {"status": status}, "default", subresource="status")
    async with machine.boot().running() as rig:
        await rig.running_pod()
        await machine.up(pod, times=2)
        await machine.alone(pod)
        assert [run.name for run in machine.runs(pod.uid)] == ["0"]


async def test_a_container_whose_pod_is_gone_is_ended(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=SLEEP, devices=("gpu-0",)))
        await rig.running_pod()
        await machine.up(pod)
    await rig.cluster.delete(Pod, "worker-0", "default", grace_s=0)
    async with machine.boot().running() as rig:
        await until(lambda: ("release", pod.uid) in rig.agent.calls)
        assert machine.processes(pod.uid) == []
        await until(lambda: not (machine.state / "nodes/node-01/pods" / pod.uid).exists())


async def test_a_pod_deleted_while_the_node_was_down_is_ended_gracefully(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        pod = await rig.create(pod_wire(command=SLEEP, devices=("gpu-0",)))
        await rig.running_pod()
        await machine.up(pod)
    await rig.cluster.delete(Pod, "worker-0", "default")
    async with machine.boot().running() as rig:
        await rig.gone("worker-0")
        assert machine.processes(pod.uid) == []
        assert ("exited", pod.uid, 143) in rig.agent.calls
        assert ("release", pod.uid) in rig.agent.calls


CRASHER = """
import asyncio, os, random, signal, sys, time
from pathlib import Path
from remuda.api.codec import decode
from remuda.api.kubernetes.core_v1 import Pod
from remuda.link.allocation_port import Allocation
from remuda.embedded.node.process_runtime import ProcessRuntime
from remuda.embedded.node.runtime_port import ContainerLaunch
from remuda.embedded.node.simulated_runtime import SimulatedRuntime
from remuda.embedded.node.training_model import SimulatedCheckpoints

async def main():
    state, body = Path(sys.argv[1]), sys.stdin.buffer.read()
    pod = decode(Pod, body)
    simulated = SimulatedRuntime(None, clock=time.time, rng=random.Random(1), checkpoints=SimulatedCheckpoints())
    runtime = ProcessRuntime("node-01", state=state, clock=time.time, base_env=dict(os.environ),
                             launcher=state / "none", simulated=simulated)
    await runtime.start(ContainerLaunch(pod, pod.spec.containers[0], 0, "127.1.0.77", Allocation((), "", {})))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_node_killed_right_after_the_start_finds_the_container(machine: Machine) -> None:
    """SIGKILL between the start of the shim and its pid file: it must be neither lost nor started twice."""
    pod = await machine.rig.create(pod_wire(command=SLEEP))
    crashed = subprocess.run(  # noqa: ASYNC221 - nothing else is to happen meanwhile
        [sys.executable, "-c", CRASHER, str(machine.state)], input=encode(pod), check=False
    )
    assert crashed.returncode == -signal.SIGKILL
    async with machine.boot().running() as rig:
        running = await rig.running_pod()
        assert running.status.pod_ip == "127.1.0.77"
        assert running.status.container_statuses[0].restart_count == 0
        await machine.up(pod)
        await machine.alone(pod)


# --- drills and launchers -----------------------------------------------------------------------------------------------


class AgentSocket:
    """The agent's end of one launcher's socket."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> AgentSocket:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writer = writer
            with suppress(ConnectionError):
                async for line in reader:
                    self.heard.put_nowait(json.loads(line))
            writer.close()

        self._server = await asyncio.start_unix_server(serve, self._directory / "agent.sock")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        if self.writer is not None:
            self.writer.close()

    def say(self, **message: Any) -> None:
        assert self.writer is not None
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def hear(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while (message := await self.heard.get())["type"] != kind:
                pass
        return message

    async def run_attempt(self, attempt: int) -> int:
        self.say(type="stop", attempt=attempt, grace=2.0, rank=0, checkpointDir=None)
        await self.hear("ready")
        self.say(type="start", attempt=attempt, env={"REMUDA_RANK": "0", "RANK": "0"})
        return int((await self.hear("running"))["pid"])


async def drill(rig: Rig, kind: str, **spec: str) -> Drill:
    body = {"metadata": {"generateName": "drill-"}, "spec": {"type": kind, **spec}}
    made = await rig.cluster.create(Drill, body)
    return await rig.seen(Drill, made.name, lambda d: d.status.phase != "Pending")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_drills_on_a_real_launcher_and_its_log_by_attempt(machine: Machine) -> None:
    shell = ["sh", "-c", f"{shlex.join(python('import time; print(chr(111) * 2); time.sleep(600)'))}; true"]
    worker = {"pod": "worker-0", "namespace": "default"}
    rig = machine.boot()
    async with AgentSocket(machine.state / "alloc") as agent, rig.running():
        pod = await rig.create(pod_wire(command=shell, launch=True, gang="job"))
        assert (await agent.hear("hello"))["state"] == "parked"
        await until(lambda: machine.is_known(pod.uid))
        refused = await drill(rig, "process-kill", **worker)
        assert (refused.status.phase, refused.status.reason) == ("Refused", "NotRunning")

        await agent.run_attempt(1)
        await until(lambda: machine.log(pod).count("oo\n") == 1)
        assert (await drill(rig, "process-kill", **worker)).status.phase == "Done"
        end = await agent.hear("exited")
        assert (end["attempt"], end["code"]) == (1, 137)

        child = await agent.run_attempt(2)
        await until(lambda: machine.log(pod).count("oo\n") == 2)
        (grandchild,) = process_tree.child_processes(child)
        assert (await drill(rig, "process-hang", **worker)).status.phase == "Done"
        await until(lambda: state_of(child) == "T" and state_of(grandchild) == "T")

        pid = await agent.run_attempt(3)
        assert (await drill(rig, "launcher-kill", **worker)).status.phase == "Done"
        assert (await agent.hear("hello"))["state"] == "parked"
        await rig.running_pod(restarts=1)
        await until(lambda: not os.path.exists(f"/proc/{pid}"))

        await agent.run_attempt(4)
        assert (await drill(rig, "node-lost", node="node-01")).status.phase == "Done"
        assert machine.processes(pod.uid) == []
        assert rig.agent.is_silent
    sections = find_log_sections(machine.state / "logs", "default", "job")
    ran = [(s.attempt, s.rank, s.pod) for s in sections if s.attempt]
    assert ran == [(n, 0, "worker-0") for n in (1, 2, 3, 4)]
    assert b"".join(read_rank_log_section(next(s for s in sections if s.attempt == 1))).startswith(b"oo\n")


async def test_a_drill_on_a_plain_pod(machine: Machine) -> None:
    worker = {"pod": "worker-0", "namespace": "default"}
    async with machine.boot().running() as rig:
        await rig.create(pod_wire(command=SLEEP))
        pod = await rig.running_pod()
        await machine.up(pod)
        refused = await drill(rig, "launcher-kill", **worker)
        assert (refused.status.phase, refused.status.reason) == ("Refused", "NoLauncher")
        assert (await drill(rig, "process-kill", **worker)).status.phase == "Done"
        assert (await rig.running_pod(restarts=1)).uid == pod.uid


async def test_power_loss_leaves_no_process_and_no_record(machine: Machine) -> None:
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "time.sleep(600)"
    )
    async with machine.boot().running() as rig:
        pods = [await rig.create(pod_wire(f"w-{n}", command=python(code), policy="Never")) for n in range(3)]
        await until(lambda: all(len(machine.processes(p.uid)) == 3 for p in pods))
        rig.node.lose()
        assert all(machine.processes(p.uid) == [] for p in pods)
        assert all([f.name for f in machine.runs(p.uid)[0].glob("status.json")] == [] for p in pods)
    async with machine.boot().running() as rig:
        for pod in pods:
            assert terminated(await ended(rig, pod.name))[:2] == (137, STATUS_UNKNOWN)


async def test_a_strange_directory_does_not_disturb_the_start(machine: Machine) -> None:
    pods = machine.state / "nodes" / "node-01" / "pods"
    (pods / "uid-x" / "main" / "0").mkdir(parents=True)
    (pods / "uid-x" / "main" / "0" / "spec.json").write_text("{not json")
    (pods / "uid-y").mkdir()
    (pods / "stray").write_text("?")
    async with machine.boot().running() as rig:
        await rig.create(pod_wire(command=SLEEP))
        pod = await rig.running_pod()
        rig.node.runtime.kill(ContainerKey(pod.uid, "main"))
        await rig.running_pod(restarts=1)


# --- what no process can be given ---------------------------------------------------------------------------------------

DOUBLING = {"V0": "x" * 64, **{f"V{n}": f"$(V{n - 1})$(V{n - 1})" for n in range(1, 31)}}  # 64 GiB in the end


def refused_start(pod: Pod) -> bool:
    """It was not started, and is tried again later."""
    status = pod.status.container_statuses[0] if pod.status.container_statuses else None
    state = status.last_state.terminated or status.state.terminated if status is not None else None
    return state is not None and (state.exit_code, state.reason) == (128, "EnvironmentTooLarge")


async def test_an_environment_that_doubles_fails_its_own_container_and_no_other(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        good = await rig.create(pod_wire("good", command=SLEEP, policy="Always"))
        await machine.up(good)
        await rig.create(pod_wire("once", command=SLEEP, policy="Never", env=DOUBLING))
        pod = await ended(rig, "once")
        code, reason, message = terminated(pod)
        assert (pod.status.phase, code, reason) == ("Failed", 128, "EnvironmentTooLarge")
        assert message.startswith("EnvironmentTooLarge: Variable V11 takes more than 128 KiB")
        await rig.create(pod_wire("again", command=SLEEP, policy="Always", env=DOUBLING))
        await rig.pod("again", refused_start)

    async with machine.boot().running() as rig:  # the pod is there when the node starts again
        await rig.pod("again", refused_start)
        late = await rig.create(pod_wire("late", command=SLEEP, policy="Always"))
        await machine.up(late)
        await machine.alone(good)
        assert (await rig.running_pod("good")).uid == good.uid


async def test_a_container_that_finds_no_room_on_the_disk_starts_when_there_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_worker, "PREPARE_S", 0.05)
    usual = run_dir.RunDirectory.create
    tries: list[str] = []
    has_room = asyncio.Event()

    def create(self: run_dir.RunDirectory, spec: run_dir.RunSpec) -> None:
        tries.append(spec.id)
        if not has_room.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(self, spec)

    monkeypatch.setattr(run_dir.RunDirectory, "create", create)
    async with machine.boot().running() as rig:
        await rig.create(pod_wire(command=SLEEP, policy="Never"))
        await until(lambda: len(tries) > 3)
        waiting = await rig.pod("worker-0", lambda pod: bool(pod.status.container_statuses))
        assert waiting.status.phase == "Pending", "a pod that may not be restarted has not failed"
        has_room.set()
        pod = await rig.running_pod()
        assert pod.status.container_statuses[0].restart_count == 0
