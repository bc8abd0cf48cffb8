"""The registry of launchers: their records, the orders they get, and the clock that watches over both.

A shell around pure parts: what happens (a message, a change of a job, the passing of time) goes through `launcher_state`, then
`barrier_orders`; what comes out is sent to the launcher, put on the progress board, or announced as a
transition. Nothing here waits: every event is handled to the end within one turn of the event loop, so a record is never seen
half changed.

Cost: many agents of one process hear of every job. A registry without pods of that job spends one dictionary look-up on it; one
that has some spends time on those only. A heartbeat touches its own record and the board, nothing else.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeGuard

import msgspec
import structlog

from remuda.agent.launchers import barrier_orders, launcher_state
from remuda.agent.launchers.checkpoint_dirs import CheckpointDirs
from remuda.agent.launchers.connections import LauncherConnections
from remuda.agent.launchers.copies_port import LauncherCopies
from remuda.agent.launchers.launcher_processes import LauncherProcess
from remuda.agent.launchers.launcher_state import LauncherRecord
from remuda.agent.launchers.log_tails import LauncherLogTails
from remuda.api.devices import LauncherReport
from remuda.api.training import Member, TrainingJob
from remuda.core.health.own_stalls import OwnStalls
from remuda.kube.runtime.informer import Informer
from remuda.kube.runtime.leader import suspend_aware_lease_clock_s
from remuda.launch.protocol import Exited, Fence, Hello, Start, ToAgent, Vouch
from remuda.link.progress_board import Heartbeat as Beat
from remuda.link.progress_board import ProgressBoard

log = structlog.get_logger(__name__)

TICK_S = 0.001  # shorter waits are below what clocks near 2e9 s resolve well


class LauncherRegistry:
    def __init__(
        self,
        node: str,
        checkpoint_root: str,
        *,
        jobs: Informer[TrainingJob],
        board: ProgressBoard,
        clock: Callable[[], float],
        env_of: barrier_orders.EnvOf,
        rejoin_s: float,
        announce: Callable[[], None],
        stalls: OwnStalls | None = None,
        elapsed: Callable[[], float] = suspend_aware_lease_clock_s,
        manager_socket: str = "",
    ) -> None:
        """`announce` is called at every transition: `reports()` has changed. `stalls`: the agent's own. `elapsed`: by
        which it is vouched for; it never goes back."""
        self._elapsed = elapsed
        self._manager_socket = manager_socket
        self._vouched_until: float | None = None  # by `elapsed`; inf = without limit; None = nobody has vouched yet
        self._stalls = stalls or OwnStalls()
        self.node = node
        self.links = LauncherConnections(node, self._hear, self._lose)
        self.log_ends: LauncherLogTails | None = None  # where the end of a log is that launchers cannot read themselves
        self.copies: LauncherCopies | None = (
            None  # who brings checkpoints to other nodes; None = they share a directory
        )
        self.has_shared_root = False  # all nodes have one directory for the checkpoints of jobs that name none
        self.sees_places = True  # False: checkpoint paths are inside containers, and only those can tell
        self._checkpoint_root = checkpoint_root
        self._jobs = jobs
        self._last_heard: dict[tuple[str, str], TrainingJob] | None = None  # None: in touch
        self._board = board
        self._clock = clock
        self._env_of = env_of
        self._rejoin_s = rejoin_s
        self._announce = announce
        self._records: dict[str, LauncherRecord] = {}
        # Pods by gang, in the order they came: orders go out in it, and a simulated run must repeat exactly.
        self._gangs: dict[tuple[str, str], dict[str, None]] = {}
        self._inherited: dict[str, LauncherReport] = {}
        self._inherited_until = 0.0
        self._places = CheckpointDirs(self._steer_all)
        self._inbox: deque[tuple[str, ToAgent]] = deque()
        self._to_steer: deque[str] = deque()
        self._reading: set[asyncio.Task[None]] = set()
        self._is_busy = False
        self._is_open = False
        self._is_fenced = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # --- life -----------------------------------------------------------------------------------------------------------

    def open(self, inherited: Iterable[LauncherReport]) -> None:
        """`inherited`: reports of the agent before this one, which hold until their launchers speak or time is up."""
        self._is_open = True
        self._inherited = {report.uid: report for report in inherited}
        if self._inherited:
            self._inherited_until = self._clock() + self._rejoin_s
            self._wake_at(self._inherited_until)
        self._jobs.subscribe(self._job_changed)

    def leave(self) -> None:
        """The node is stopped on purpose: every launcher's report says so, and nothing that ends now changes it."""
        now = self._clock()
        for known in list(self._records.values()):
            new = launcher_state.launcher_stopped(known, now)
            self._keep(new, transition=new is not known)
        self.silence()

    def silence(self) -> None:
        """Nothing is said or heard any more."""
        self._is_open = False
        self.links.close_all()
        if self.copies is not None:
            self.copies.silence()
        for task in self._reading:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        self.silence()
        await asyncio.gather(*self._reading, return_exceptions=True)
        self._places.close()
        if self.copies is not None:
            await self.copies.close()

    # --- who is here ----------------------------------------------------------------------------------------------------

    def __contains__(self, uid: str) -> bool:
        return uid in self._records

    def get(self, uid: str) -> LauncherRecord | None:
        return self._records.get(uid)

    def reports(self) -> list[LauncherReport]:
        found = [self._dressed(known, known.report) for known in self._records.values() if known.report is not None]
        return sorted([*found, *self._inherited.values()], key=lambda report: (report.pod, report.uid))

    def _dressed(self, known: LauncherRecord, report: LauncherReport) -> LauncherReport:
        if self.has_shared_root:
            return msgspec.structs.replace(report, shared=True)
        care = self._care_of(known)
        return care[0].dressed(*care[1:], report) if care is not None else report

    def copies_changed(self) -> None:
        """What is known of copies is not what it was: reports and orders may be others."""
        if self._is_open:
            self._announce()
            self._steer_all()

    def tell_beat(self, beat: Beat) -> None:
        """A heartbeat that was told says more now."""
        if self._is_open:
            self._board.report(beat)

    def _beat_of_copies(self, known: LauncherRecord, beat: Beat) -> Beat:
        care = self._care_of(known)
        return care[0].heard(*care[1:], beat) if care is not None else beat

    def _care_of(self, known: LauncherRecord) -> tuple[LauncherCopies, TrainingJob, Member] | None:
        """Who looks after the checkpoints of its rank, and which rank that is; None when nobody does, or it has none."""
        job = self._job_of(known) if self.copies is not None else None
        member = barrier_orders.launcher_registry_roster(job).get(known.uid) if job is not None else None
        return None if self.copies is None or job is None or member is None else (self.copies, job, member)

    def welcome(self, new: LauncherRecord) -> None:
        """A pod's launcher may speak from now on."""
        earlier = self._inherited.pop(new.uid, None)
        if earlier is not None:
            new = launcher_state.inherit_launcher(new, earlier, self._clock())
        self._records[new.uid] = new
        if new.gang:
            self._gangs.setdefault((new.namespace, new.gang), {})[new.uid] = None
        self._look(new.uid)

    def equip(self, uid: str, gpus: int) -> None:
        """The pod has that many devices now: its containers are given theirs one after the other."""
        known = self._records[uid]
        if known.gpus != gpus:
            self._keep(launcher_state.change_launcher(known, gpus=gpus))

    def is_connected(self, uid: str) -> bool:
        known = self._records.get(uid)
        return known is not None and known.connected

    def process_of(self, namespace: str, pod: str) -> LauncherProcess | None:
        """That of the pod's launcher; None while none is connected by a socket."""
        found = (known.uid for known in self._records.values() if (known.namespace, known.pod) == (namespace, pod))
        return next((process for uid in found if (process := self.links.process_of(uid)) is not None), None)

    def forget(self, uid: str) -> None:
        """The pod is gone, report and all."""
        self.links.close(uid)
        known = self._records.pop(uid, None)
        earlier = self._inherited.pop(uid, None)
        if known is not None:
            gang = (known.namespace, known.gang)
            members = self._gangs.get(gang, {})
            members.pop(uid, None)
            if not members:
                self._gangs.pop(gang, None)
        if earlier is not None or (known is not None and known.report is not None):
            self._announce()

    def exited(self, uid: str, code: int) -> None:
        """The container ended, launcher and all."""
        known = self._records.get(uid)
        if known is None or not self._is_open:
            return
        self.links.hang_up(uid)
        if known.gang or known.state:  # a plain pod has no launcher to miss
            words = f"The container ended with code {code}."
            self._keep(launcher_state.launcher_gone(known, code, words, self._clock()), transition=True)

    def isolate(self, is_cut_off: bool) -> None:
        """The informer of jobs is shared with nodes that can still hear; one that is cut off goes by what it heard last."""
        if not is_cut_off:
            self._last_heard = None
            self._steer_all()
            return
        known = ((namespace, gang, self._jobs.get(gang, namespace)) for namespace, gang in self._gangs)
        self._last_heard = {(namespace, gang): job for namespace, gang, job in known if job is not None}

    def fence(self) -> None:
        """Every child is killed and does not start again before a higher attempt comes. Nobody is started until `unfence`:
        an open barrier may get through to us before our lease gets through to the manager."""
        log.warning("fence", node=self.node, launchers=len(self._records))
        self._is_fenced = True
        now = self._clock()
        for uid, known in list(self._records.items()):
            if launcher_state.launcher_state_may_have_child(known):
                self._keep(launcher_state.launcher_state_after_fence(known, now), transition=known.connected)
                self.links.send(uid, Fence())

    def unfence(self) -> None:
        if self._is_fenced:
            self._is_fenced = False
            self._steer_all()

    def vouch(self, seconds: float) -> None:
        """Every launcher may run its child for so long from now, whatever becomes of this process; inf = without limit. One that
        lives in this process is not told: it stands still with it."""
        until = self._elapsed() + seconds
        if until == self._vouched_until:  # without limit, again
            return
        self._vouched_until = until
        for uid, known in self._records.items():
            if known.connected and not known.simulated:
                self._pass_on_vouch(uid)

    def _pass_on_vouch(self, uid: str) -> None:
        if self._vouched_until is not None:
            at = suspend_aware_lease_clock_s()  # the launcher's clock, whatever ours is
            left = self._vouched_until - self._elapsed()
            if left > 0:
                self.links.send(uid, Vouch(left if left < math.inf else None, self._manager_socket, at))

    # --- what launchers and jobs bring ----------------------------------------------------------------------------------

    def _hear(self, uid: str, message: ToAgent) -> None:
        """A simulated launcher answers before the question is out of our mouth, so messages queue up behind one another."""
        known = self._records.get(uid)
        if (
            self.log_ends is not None
            and known is not None
            and _exit_lacks_log_tail(message)
            and self._wants_tail(known)
        ):
            task = asyncio.get_running_loop().create_task(self._read_end(self.log_ends, known, message))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
            return
        self._inbox.append((uid, message))
        self._work(())

    async def _read_end(self, log_ends: LauncherLogTails, known: LauncherRecord, message: Exited) -> None:
        """The exit is heard once the end of the log is known: the rules about it are asked when it is heard. If the launcher
        has gone on to another attempt meanwhile, it comes late like any other message."""
        tail = await log_ends.read(known.pod, known.uid, known.namespace, known.container, message.attempt)
        self._inbox.append((known.uid, message.replace(tail=tail)))
        self._work(())

    def _lose(self, uid: str) -> None:
        known = self._records.get(uid)
        if known is not None and self._is_open:
            self._keep(launcher_state.launcher_disconnected(known, self._clock()))
            self._look(uid)

    def _job_changed(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        job = new or old
        if self.copies is not None and self._last_heard is None:
            self.copies.job_changed(old, new)
        if job is not None and self._last_heard is None:
            uids = self._gangs.get((job.namespace, job.name))
            if uids:
                self._work(uids)

    def _steer_all(self) -> None:
        self._work(self._records)

    def _work(self, uids: Iterable[str]) -> None:
        """Steer `uids` and take in what is said, until it is quiet. Called from within itself, it only adds to the work."""
        self._to_steer.extend(uids)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while (self._to_steer or self._inbox) and self._is_open:
                if self._to_steer:
                    uid = self._to_steer.popleft()
                    self._steer(uid)
                    self._look(uid)
                else:
                    self._receive(*self._inbox.popleft())
        finally:
            self._is_busy = False

    def _receive(self, uid: str, message: ToAgent) -> None:
        known = self._records.get(uid)
        if known is None:
            return
        if isinstance(message, Exited) and message.tail and not self._wants_tail(known):
            message = message.replace(tail="")
        update = launcher_state.receive_launcher_message(known, message, self._clock())
        self._keep(update.launcher, update.transition)
        if isinstance(message, Hello) and not known.simulated:
            self._pass_on_vouch(uid)
        if update.beat is not None:
            self._board.report(self._beat_of_copies(known, update.beat))
            if known.step is not None and not update.transition:
                return  # by far the most frequent message changes nothing else
        self._steer(uid)
        self._look(uid)

    def _steer(self, uid: str) -> None:
        known = self._records.get(uid)
        if known is None or not known.connected:
            return
        job, care = self._job_of(known), self._care_of(known)
        is_complete = care is None or care[0].has_checkpoints(*care[1:])
        directory, fault = "", None
        if job is not None:
            directory = barrier_orders.checkpoint_dir_for_launchers(job, self._checkpoint_root)
            fault = self._places.fault(directory, job.status.attempt) if self.sees_places else ""
        may_start = not self._is_fenced
        site = barrier_orders.BarrierSite(directory, fault, self._env_of, may_start, is_complete)
        orders = barrier_orders.plan_launcher_barrier_orders(job, known, site, self._clock())
        self._keep(orders.launcher, orders.transition)
        if care is not None and isinstance(orders.message, Start):
            care[0].started(*care[1:])
        if orders.message is not None:
            self.links.send(uid, orders.message)
        if orders.check and job is not None:
            self._places.look(directory, job.status.attempt)

    def _wants_tail(self, known: LauncherRecord) -> bool:
        """The API holds the end of a log only for a job that has a rule about it: a gang that dies whole has many ends."""
        job = self._job_of(known)
        return job is not None and any(rule.log_pattern for rule in job.spec.failure.rules)

    def _job_of(self, known: LauncherRecord) -> TrainingJob | None:
        if not known.gang:
            return None
        if self._last_heard is not None:
            return self._last_heard.get((known.namespace, known.gang))
        return self._jobs.get(known.gang, known.namespace)

    def _keep(self, new: LauncherRecord, transition: bool = False) -> None:
        self._records[new.uid] = new
        if transition:
            self._announce()

    # --- time -----------------------------------------------------------------------------------------------------------

    def _look(self, uid: str) -> None:
        """What time means for this launcher; sets the timer for the next look."""
        known = self._records.get(uid)
        if known is None or not self._is_open:
            return
        job = self._job_of(known)
        failure, now = job.spec.failure if job is not None else None, self._clock()
        update, again_at = launcher_state.launcher_state_as_time_passes(
            known, failure, now, self._rejoin_s, self._stalls.known(now)
        )
        if update.transition:
            self._keep(update.launcher, transition=True)
        if again_at is not None:
            self._wake_at(again_at)

    def _wake_at(self, moment: float) -> None:
        if self._timer is not None:
            if self._timer_at <= moment:
                return
            self._timer.cancel()
        self._timer_at = moment
        delay = max(TICK_S, moment - self._clock())
        self._timer = asyncio.get_running_loop().call_later(delay, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        if self._inherited:
            if self._clock() >= self._inherited_until:
                self._inherited.clear()  # pods that the node does not have any more
                self._announce()
            else:
                self._wake_at(self._inherited_until)
        for uid in list(self._records):
            self._look(uid)


def _exit_lacks_log_tail(message: ToAgent) -> TypeGuard[Exited]:
    return isinstance(message, Exited) and message.code != 0 and not message.tail
