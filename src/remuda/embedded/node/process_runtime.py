"""`ProcessRuntime`: containers as local processes, each under its own shim (`shim`), each run in its own `run_dir`.

At any instant the machine says what was meant, what runs and how it ended, so a node that was killed and started again needs
nothing else (`adopt`):

    status                   it ended; nothing of it runs
    pid file, shim alive     it runs
    pid file, shim dead      the shim was killed, or the power went: what is left is swept up, the end is unknown
    neither, shim alive      it is just starting: its pid file is waited for
    neither, no shim         it was never started: forgotten, and started anew

The end of a run is told when the shim has ended, watched through a pidfd (which works for shims that are not our children),
and by then nothing of the container runs any more: the shim kills everything first, and for a shim that could not, we do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.node import process_tree, shim
from remuda.embedded.node.container_environment import CONTAINER_ID, container_command_line, container_environment
from remuda.embedded.node.container_record import lost_container_exit, node_runs_container_under_launcher
from remuda.embedded.node.run_dir import RunDirectory, RunSpec, container_keys_below, container_runs_in_run_dir
from remuda.embedded.node.runtime_port import (
    NO_LOCAL_COMMAND,
    AdoptedContainer,
    ContainerFault,
    ContainerKey,
    ContainerLaunch,
    ExitListener,
    PodRuntime,
)
from remuda.embedded.node.slow_devices import DutyCycle
from remuda.launch.log_readback import LOG_FILE
from remuda.launch.zipapp import launcher_zipapp_argv
from remuda.link.rank_logs import rank_log_path

log = structlog.get_logger(__name__)

_POLL_S = 0.01
_STARTING_S = 10.0  # a shim that has not even written its pid file by then is stuck
_SWEEPS = 500  # passes over processes that fork while they are being killed


class ProcessRun:
    """One run of a container whose shim is alive."""

    def __init__(self, directory: RunDirectory, spec: RunSpec, pid: int, pidfd: int) -> None:
        self.directory = directory
        self.spec = spec
        self.pid = pid
        self.pidfd = pidfd

    @property
    def key(self) -> ContainerKey:
        return self.directory.key

    def signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            pass

    @property
    def main(self) -> int | None:
        """The container's first process: the launcher, or the user's program."""
        return shim.probe_container(self.spec.pidfile)[1]


class ProcessRuntime:
    """`state` is the state directory of the whole cluster; `simulated_runtime` runs what has no command (NoLocalCommand)."""

    def __init__(
        self,
        node: str,
        *,
        state: Path,
        clock: Callable[[], float],
        base_env: Mapping[str, str],
        launcher: Path,
        simulated: PodRuntime,
    ) -> None:
        self._node = node
        self._pods = state / "nodes" / node / "pods"
        self._logs = state / "logs"
        self._clock = clock
        self._base_env = base_env
        self._launcher = launcher
        self._simulated = simulated
        self._runs: dict[ContainerKey, ProcessRun] = {}
        self._listener: ExitListener = lambda key, run, end: None
        self._sweeps: set[asyncio.Task[None]] = set()
        self._held_back: dict[ContainerKey, DutyCycle] = {}  # by a slow device
        self._is_off = False

    def on_exit(self, listener: ExitListener) -> None:
        self._listener = listener
        self._simulated.on_exit(listener)

    def is_simulated(self, pod: Pod) -> bool:
        return any(not c.command for c in (*pod.spec.init_containers, *pod.spec.containers))

    def notice(self, pod: Pod) -> str:
        return NO_LOCAL_COMMAND if self.is_simulated(pod) else ""

    # --- starting and ending ------------------------------------------------------------------------------------------

    async def start(self, launch: ContainerLaunch) -> float:
        if self.is_simulated(launch.pod):
            self._say_simulated(launch)
            return await self._simulated.start(launch)
        directory = RunDirectory(self._pods, launch.key, launch.run)
        spec = self._specify(launch, directory)
        directory.create(spec)
        pid = _spawn_shim(directory, spec)
        self._watch(ProcessRun(directory, spec, pid, os.pidfd_open(pid)))
        directory.drop_older()
        return spec.started_at

    def stop(self, key: ContainerKey, grace_s: float) -> None:
        run = self._runs.get(key)
        if run is not None:
            run.signal(signal.SIGTERM)
        else:
            self._simulated.stop(key, grace_s)

    def kill(self, key: ContainerKey) -> None:
        run = self._runs.get(key)
        if run is not None:
            run.signal(signal.SIGUSR1)
        else:
            self._simulated.kill(key)

    def forget(self, uid: str) -> None:
        shutil.rmtree(self._pods / uid, ignore_errors=True)
        self._simulated.forget(uid)

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        for run in self._runs.values():
            loop.remove_reader(run.pidfd)
            os.close(run.pidfd)
        self._runs.clear()
        self._let_go()
        for task in self._sweeps:
            task.cancel()
        await asyncio.gather(*self._sweeps, return_exceptions=True)
        await self._simulated.close()

    def _say_simulated(self, launch: ContainerLaunch) -> None:
        """In the container's log, where somebody will look for what the program said."""
        path = rank_log_path(self._logs, launch.pod, launch.container.name)
        what = launch.container.image or "no image"
        devices = ", ".join(launch.allocation.devices) or "none"
        with contextlib.suppress(OSError):  # a full disk: the pod's status says it, too
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as log_file:
                log_file.write(
                    f"{NO_LOCAL_COMMAND}: {what} names no command and images are not run here. It would see devices: {devices}\n"
                )

    def _specify(self, launch: ContainerLaunch, directory: RunDirectory) -> RunSpec:
        pod, container = launch.pod, launch.container
        env = container_environment(
            pod, container, launch.allocation, node=self._node, address=launch.address, base=self._base_env
        )
        argv = container_command_line(container, env)
        log_path = str(rank_log_path(self._logs, pod, container.name))
        env[LOG_FILE] = log_path  # after all that the template says: the launcher reads it back
        if node_runs_container_under_launcher(pod, container):
            argv = launcher_zipapp_argv(argv, self._launcher, sys.executable)
        return RunSpec(
            id=env[CONTAINER_ID],
            argv=argv,
            env=env,
            # A directory of the pod's own, gone with it, as a container's file system would be.
            cwd=container.working_dir or str(self._pods / pod.uid),
            log=log_path,
            status=str(directory.status_path),
            pidfile=str(directory.pid_path),
            address=launch.address,
            started_at=self._clock(),
            launched=node_runs_container_under_launcher(pod, container),
        )

    # --- watching -----------------------------------------------------------------------------------------------------

    def _watch(self, run: ProcessRun) -> None:
        self._runs[run.key] = run
        asyncio.get_running_loop().add_reader(run.pidfd, self._shim_ended, run)

    def _shim_ended(self, run: ProcessRun) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(run.pidfd)
        os.close(run.pidfd)
        _reap_shim(run.pid)
        if self._runs.get(run.key) is run:
            del self._runs[run.key]
        if self._is_off:
            return
        end = run.directory.read_exit()
        if end is not None:
            self._listener(run.key, run.directory.number, end)
        else:
            task = loop.create_task(self._tell_lost(run))
            self._sweeps.add(task)
            task.add_done_callback(self._sweeps.discard)

    async def _tell_lost(self, run: ProcessRun) -> None:
        """The shim was killed: end what it left behind, then tell."""
        await _sweep_container(run.spec.id)
        end = lost_container_exit(self._clock(), "The container's shim was killed; how its program ended is not known.")
        run.directory.write_exit(end, run.spec.started_at)
        self._listener(run.key, run.directory.number, end)

    # --- an earlier life ----------------------------------------------------------------------------------------------

    async def adopt(self) -> list[AdoptedContainer]:
        found = list(await self._simulated.adopt())
        for key in container_keys_below(self._pods):
            numbers = container_runs_in_run_dir(self._pods / key.uid / key.container)
            while numbers:
                adopted = await self._adopt_run(RunDirectory(self._pods, key, numbers.pop()))
                if adopted is not None:
                    previous = RunDirectory(self._pods, key, numbers[-1]).read_exit() if numbers else None
                    found.append(msgspec.structs.replace(adopted, previous=previous))
                    break
        return found

    async def _adopt_run(self, directory: RunDirectory) -> AdoptedContainer | None:
        """None: the run was never started."""
        spec = directory.read_spec()
        if spec is None or not await _shim_has_begun(directory, spec):
            directory.remove()
            return None
        adopted = AdoptedContainer(directory.key, directory.number, spec.address, spec.started_at)
        end = directory.read_exit()
        run = _living_process_run(directory, spec) if end is None else None
        if run is not None:
            self._watch(run)
            return adopted
        end = end or directory.read_exit()  # it may have come while we looked for the shim
        if end is None:
            await _sweep_container(spec.id)
            end = lost_container_exit(self._clock(), "The container's shim was killed while its node was down.")
            directory.write_exit(end, spec.started_at)
        return msgspec.structs.replace(adopted, exit=end)

    # --- drills -------------------------------------------------------------------------------------------------------

    def inject_fault(self, key: ContainerKey, fault: ContainerFault) -> None:
        run = self._runs.get(key)
        if run is None:
            self._simulated.inject_fault(key, fault)
            return
        main = run.main
        if main is None:
            raise Refusal("NotRunning", "The container has no process now.", "Wait until it runs.")
        if fault is ContainerFault.KILL_LAUNCHER:
            if not run.spec.launched:
                raise Refusal("NoLauncher", "The pod does not run under remuda-launch.", "Use process-kill.")
            os.kill(main, signal.SIGKILL)
            return
        target = _user_process(main) if run.spec.launched else main
        if target is None:
            raise Refusal("NotRunning", "The launcher runs no user process now.", "Wait until the barrier opens.")
        os.killpg(target, _SIGNALS[fault])

    def set_speed(self, key: ContainerKey, speed: float) -> None:
        run = self._runs.get(key)
        if run is None:
            self._simulated.set_speed(key, speed)
            return
        held = self._held_back.pop(key, None)
        if held is not None:
            held.close()
        if speed < 1.0:
            self._held_back[key] = DutyCycle(
                speed, lambda: self._nudge(key, signal.SIGSTOP), lambda: self._nudge(key, signal.SIGCONT)
            )
        elif held is None:
            self._nudge(key, signal.SIGCONT)  # one that held it back in an earlier life may have died in a pause

    def _let_go(self) -> None:
        for held in self._held_back.values():
            held.close()
        self._held_back.clear()

    def _nudge(self, key: ContainerKey, number: signal.Signals) -> None:
        """To the user's process if there is one now; between two attempts there is none."""
        run = self._runs.get(key)
        main = run.main if run is not None else None
        if run is None or main is None:
            return
        target = _user_process(main) if run.spec.launched else main
        if target is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(target, number)

    def power_off(self) -> None:
        self._is_off = True
        for run in self._runs.values():
            run.signal(signal.SIGKILL)  # shims first: they must not live to record anything
        ids = {run.spec.id for run in self._runs.values()}
        if not any(not _kill_tagged(ids) for _ in range(_SWEEPS)):
            log.warning("node.processes_left", node=self._node)
        for task in self._sweeps:
            task.cancel()
        self._simulated.power_off()


_SIGNALS = {
    ContainerFault.KILL_PROCESS: signal.SIGKILL,
    ContainerFault.HANG_PROCESS: signal.SIGSTOP,
    ContainerFault.RESUME_PROCESS: signal.SIGCONT,
}


def _spawn_shim(directory: RunDirectory, spec: RunSpec) -> int:
    argv = shim.shim_argv(str(directory.spec_path))
    # The environment of the shim carries the mark too: when it is killed before it could start anything, it is swept up.
    env = {CONTAINER_ID: spec.id, "PATH": spec.env.get("PATH", os.defpath)}
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    # Vfork and exec: about a millisecond whatever our size, so not worth a thread.
    return os.posix_spawn(argv[0], argv, env, file_actions=null, setsid=True)


def _living_process_run(directory: RunDirectory, spec: RunSpec) -> ProcessRun | None:
    """The run when its shim is alive, held by a pidfd that is certainly of that very process."""
    pid, _ = shim.probe_container(spec.pidfile)
    if pid is None:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if shim.probe_container(spec.pidfile)[0] != pid:
        os.close(pidfd)
        return None
    return ProcessRun(directory, spec, pid, pidfd)


async def _shim_has_begun(directory: RunDirectory, spec: RunSpec) -> bool:
    """Wait for a shim that is just starting; False when there is none."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _STARTING_S
    while not directory.has_begun():
        starting = process_tree.processes_with_shim_argument(str(directory.spec_path))
        if directory.has_begun():  # it ended, or wrote its pid file, while we looked through the processes
            return True
        if not starting:
            return False
        if loop.time() > deadline:
            await _sweep_container(spec.id)  # nobody may start a second one beside it
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def _sweep_container(container_id: str) -> None:
    """Return when nothing of the container is left. A process that cannot die keeps its devices: no deadline."""
    while _kill_tagged({container_id}):  # noqa: ASYNC110 - processes of others send no event when they end
        await asyncio.sleep(_POLL_S)


def _kill_tagged(ids: set[str]) -> bool:
    """One pass; False when nothing is left that could be killed."""
    found = process_tree.processes_tagged(CONTAINER_ID, ids)
    for pid in found.pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return bool(found)


def _user_process(launcher: int) -> int | None:
    """The launcher's child that leads a process group: the user's command. (A checkpoint scan is a child, but leads none.)"""
    return next(
        (pid for pid in process_tree.child_processes(launcher) if process_tree.is_process_tree_group_leader(pid)), None
    )


def _reap_shim(pid: int) -> None:
    """Shims we started are our children; adopted ones are not."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
