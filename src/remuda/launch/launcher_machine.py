"""The launcher's decisions: input -> actions, no I/O, no clock (`now` is unix seconds, given with every input).

The real shell (`launcher_shell`) and simulated pods drive the same machine.

                     stop{A}            scanned             start{A}
    parked/exited ------------> stopping ------> ready{A} ------------> running{A}
                                   ^                |  ^                   |   |
                                   |     stop{A+1}  |  '-- stop{A}: again  |   | child ends by itself
                                   +----------------'                      |   v
                                   +------------------- stop{A+1} ---------+  exited{A}  (stays at the barrier)

Invariants:
- *Attempts only grow.* `floor` is the highest attempt ever accepted; `stop` below or at it does nothing new, `start` is
  obeyed only when ready for exactly that attempt. A delayed or repeated message is therefore harmless.
- *Ready means nothing is left.* `Ready` is said only after the whole process tree of older attempts is gone
  (`tree_gone`), not merely the main process: a rank handed on twice would corrupt its checkpoints.
- *Ready is looked at again.* While it waits, the launcher looks at its checkpoints again, ever more seldom, and says Ready
  anew when the answer is another: what could not be read, or was not there, may be back. Only the last answer counts.
- *A look that does not end is doubt.* Nothing is left all the same, so Ready is said, with what is waited for as `unreadable`.
  The question stays asked, and its answer is told whenever it comes.
- *The agent may vanish at any time.* The child keeps training. The newest message of each kind of the current attempt is
  kept and said again after every `hello`, whether or not it was sent before: the agent may have died with it unread.
- *Nobody outlives the agent's word.* Told for how long the rank stays its node's own (`Vouch`), the launcher fences itself when
  that is over without another word, and starts nothing from then on until one comes. Never told, it runs on for ever. A word
  counts from when it was said: one that has waited unread until it was over is none.
- *Exit is final*: after it every input returns no actions.

Timers: one deadline per purpose in `_due`; `SetTimer` names the earliest whenever that changes.
"""

from remuda.launch.actions import (
    Action,
    Connect,
    Exit,
    KillChild,
    LookForManager,
    ScanCheckpoints,
    Send,
    SetTimer,
    SignalChild,
    SpawnChild,
    WriteCheckpointRequest,
)
from remuda.launch.protocol import (
    EXITED,
    MAX_CHECKPOINTS,
    MAX_TAIL,
    MAX_TEXT,
    PARKED,
    READY,
    RUNNING,
    SIGNALS,
    STOPPING,
    Checkpoint,
    End,
    Exited,
    Fence,
    Heartbeat,
    Hello,
    Message,
    Progress,
    Ready,
    Running,
    Start,
    Stop,
    ToAgent,
    Vouch,
)
from remuda.launch.small_records import SmallRecord

HEARTBEAT_INTERVAL_S = 0.1  # at most 10 heartbeats a second: enough to see a step, cheap with hundreds of ranks a node
RECONNECT_FIRST_S, RECONNECT_MAX_S = 0.05, 1.0  # an agent restart is noticed within a second, without a busy loop
REKILL_FIRST_S, REKILL_MAX_S = 0.05, 1.0  # a process that forks while being killed needs another pass
RESCAN_FIRST_S, RESCAN_MAX_S = (
    2.0,
    30.0,
)  # a look at the checkpoints costs a listing, and a reading of what is new there
UNREADABLE_FIRST_S, UNREADABLE_MAX_S = 0.2, 5.0  # the gang stands still for as long as they cannot be read
HANG_S = (
    2.0  # a look has not ended: said then, and after twice that again, ...; well before it counts as not stopped (10 s)
)
ASLEEP_S = 1.0  # so late for a deadline, we stood still ourselves: the whole machine may have slept
ASK_S = 1.0  # for the agent's word after that
LOOK_S = 1.0  # until it is looked again whether there is a manager
ABANDON_S = 2.0  # a process the kernel cannot end (D state) must not keep a terminated launcher
NO_CHILD_CODE = 128 + SIGNALS["TERM"]


class LauncherIdentity(SmallRecord):
    """Who the launcher says it is, and its fixed settings."""

    pod: str
    uid: str
    pid: int
    stop_grace: float = 5.0  # of SIGTERM to the launcher itself
    standalone: bool = False  # no agent: run the command once as attempt 1 and exit with its code


class LaunchMachine:
    def __init__(self, identity: LauncherIdentity) -> None:
        self.identity = identity
        self.state = PARKED
        self.attempt = 0  # runs, or was last made ready for
        self.floor = 0  # highest attempt accepted: the fence
        self.connected_to_agent = False
        self.child: int | None = None  # attempt of the living main process
        self._tree = False  # processes of some child may be alive
        self._target: int | None = None  # attempt to become ready for once stopped
        self._rank: int | None = None
        self._directory: str | None = None
        self._scan: ScanCheckpoints | None = None  # the question whose answer is awaited
        self._looks = 0  # at the checkpoints, since the answer last changed
        self._hang_s = HANG_S  # that the look takes when it is next said that it has not ended
        self._terminating = False
        self._done = False
        self._is_job_over = False  # nobody is to start the container again
        self._code = NO_CHILD_CODE  # to exit with
        self._outbox: dict[type[SmallRecord], ToAgent] = {}
        self._pending: Heartbeat | None = None  # waits for the rate limit
        self._next_beat = 0.0
        self._backoff = RECONNECT_FIRST_S
        self._rekill = REKILL_FIRST_S
        self._runs_until: float | None = None  # by the agent's word; None = without limit
        self._has_asked = False  # for another word, which is not here yet
        self._manager = ""  # the socket of whoever hands ranks on, if that is on this machine
        self._word_s = (
            0.0  # the longest word of this agent so far: always less than what a new manager waits for a node
        )
        self._is_first_word = True  # of this agent: the one before may have had a longer lease
        self._held_start: Start | None = None  # until there is one
        self._due: dict[str, float] = {}
        self._timer: float | None = None
        self._out: list[Action] = []

    # --- inputs -------------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> list[Action]:
        """The first input."""
        if self.identity.standalone:
            self.floor = self.attempt = 1
            self._spawn(1, {})
        else:
            self._out.append(Connect())
        return self._actions()

    def connected(self, now: float) -> list[Action]:
        self.connected_to_agent = True
        self._backoff = RECONNECT_FIRST_S
        self._due.pop("connect", None)
        self._is_first_word = True
        if not self._tree:  # nothing runs that it was about, and what is started now this agent starts
            self._run_without_limit()
        self._greet()
        self._out += [Send(message) for message in self._outbox.values()]
        return self._actions()

    def disconnected(self, now: float) -> list[Action]:
        """The connection was lost, or could not be made."""
        self.connected_to_agent = False
        self._held_start = None  # said again to whoever says ready
        self._due["connect"] = now + self._backoff
        self._backoff = min(self._backoff * 2, RECONNECT_MAX_S)
        return self._actions()

    def received(self, now: float, message: Message) -> list[Action]:
        """A message of the agent. Those a launcher sends itself are ignored, as unknown ones are."""
        if isinstance(message, Vouch):
            self._on_vouch(now, message)
        elif self._terminating:
            if isinstance(message, Fence):
                self._kill(now)
        elif isinstance(message, Stop):
            self._on_stop(now, message)
        elif isinstance(message, Start):
            self._on_start(now, message)
        elif isinstance(message, Checkpoint):
            if self.state == RUNNING:
                self._out.append(WriteCheckpointRequest(message.deadline, message.step))
                if message.signal is not None:  # the main process alone: others die of a signal they do not expect
                    self._out.append(SignalChild(SIGNALS[message.signal], group=False))
        elif isinstance(message, Fence):
            self._on_fence(now)
        elif isinstance(message, End):
            self._is_job_over = True
            self._terminate(now, message.grace)
        return self._actions()

    def child_started(self, now: float, attempt: int, pid: int) -> list[Action]:
        if attempt == self.child and self.state == RUNNING:
            self._say(Running(attempt, pid, now))
        return self._actions()

    def child_failed(self, now: float, attempt: int, code: int, message: str) -> list[Action]:
        """The command could not be started (127 = not found, 126 = may not be run)."""
        if attempt == self.child:
            self._tree = False
        return self.child_exited(now, attempt, code, None, message)

    def child_exited(
        self, now: float, attempt: int, code: int, signal: int | None, message: str = "", tail: str = ""
    ) -> list[Action]:
        """The main process is gone; others of its tree may still be there until `tree_gone`."""
        if attempt != self.child:
            return self._actions()
        self.child = None
        self._code = code
        self._due.pop("grace", None)
        if self._tree:
            self._kill(now)
        if self.state == RUNNING:
            self.state = EXITED
            self._beat(now)
            self._say(Exited(attempt, code, signal, now, message[:MAX_TEXT], tail[-MAX_TAIL:] if code else ""))
            if self.identity.standalone:
                self._terminating = True
        self._proceed(now)
        return self._actions()

    def tree_gone(self, now: float) -> list[Action]:
        """No process below the launcher is left. Ignored while the main process has not been reported gone."""
        if self.child is None and self._tree:
            self._tree = False
            self._due.pop("rekill", None)
            self._proceed(now)
        return self._actions()

    def progress(self, now: float, report: Progress) -> list[Action]:
        if self.child is None or report.attempt not in (None, self.child):
            return self._actions()
        is_fenced = self.state == STOPPING and self._target is None and not self._terminating
        if is_fenced or (report.step is None and report.checkpoint is None and report.kept is None):
            return self._actions()
        last = self._pending or self._outbox.get(Heartbeat)
        known = last if isinstance(last, Heartbeat) else Heartbeat(self.child, 0)
        unsent = self._pending or Heartbeat(self.child, 0)
        is_new = report.checkpoint is not None and report.checkpoint != known.checkpoint
        fresh = is_new or (report.kept is not None and report.kept != known.kept)
        step = report.step if report.step is not None else max(known.step, report.checkpoint or 0)
        self._pending = Heartbeat(
            self.child,
            step,
            unsent.step_time if report.step_time is None else report.step_time,
            unsent.self_time if report.self_time is None else report.self_time,
            known.checkpoint if report.checkpoint is None else report.checkpoint,
            report.checkpoint_time if is_new or report.checkpoint_time is not None else known.checkpoint_time,
            now,
            known.total_steps if report.total_steps is None else report.total_steps,
            known.kept if report.kept is None else report.kept,
        )
        if fresh or now >= self._next_beat:  # a checkpoint never waits: what is lost of it is lost work
            self._beat(now)
        else:
            self._due["beat"] = self._next_beat
        return self._actions()

    def scanned(
        self,
        now: float,
        scan: ScanCheckpoints,
        steps: tuple[int, ...],
        corrupt: tuple[int, ...] = (),
        abandoned: tuple[int, ...] = (),
        unreadable: str = "",
    ) -> list[Action]:
        """The answer to `scan`, newest step first. An answer to a question that is no longer asked is dropped."""
        if scan == self._scan:
            most = MAX_CHECKPOINTS
            answer = Ready(scan.attempt, steps[:most], corrupt[:most], abandoned[:most], unreadable[:MAX_TEXT])
            self._stop_looking()
            if self._be_ready(answer):
                self._looks = 0
            self._look_again(now, scan, unreadable)
        return self._actions()

    def terminate(self, now: float) -> list[Action]:
        """SIGTERM to the launcher. Repeats change nothing: the grace already runs."""
        self._terminate(now, self.identity.stop_grace)
        return self._actions()

    def timer(self, now: float) -> list[Action]:
        """At or after the moment named by the last SetTimer; harmless at any other."""
        self._timer = None
        due = {name: at for name, at in self._due.items() if at <= now}
        for name in due:
            del self._due[name]
        if "connect" in due:
            self._out.append(Connect())
        if "beat" in due:
            self._beat(now)
        if "rescan" in due and self.state == READY:
            self._look(now, ScanCheckpoints(self.attempt, self._rank, self._directory))
        if "hang" in due and self._scan is not None:
            self._on_hang(now, self._scan, due["hang"])
        if "silence" in due:
            self._on_silence(now, due["silence"])
        if "abandon" in due:
            self._exit()
        elif "grace" in due or "rekill" in due:
            self._kill(now)
        return self._actions()

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _terminate(self, now: float, grace: float) -> None:
        if not self._terminating:
            self._terminating = True
            self._held_start = None
            self._stop_looking()
            if self.state != EXITED:
                self._code = NO_CHILD_CODE
                self.state = STOPPING
            if self.child is not None:
                self._stop_child(now, SIGNALS["TERM"], grace)
            self._proceed(now)

    def _on_stop(self, now: float, stop: Stop) -> None:
        if stop.attempt < self.floor:
            return
        asked = (stop.rank, stop.checkpoint_dir)
        if stop.attempt == self.floor and self._target is None:
            if self.state != READY:  # runs, has exited or was fenced at this very attempt: only a higher one counts
                return
            if asked == (self._rank, self._directory):
                self._repeat(Ready)
                return
        self._due.pop("rescan", None)
        self._held_start = None
        self.floor = self._target = stop.attempt
        self._rank, self._directory = asked
        self.state = STOPPING
        if self.child is not None:
            self._stop_child(now, SIGNALS[stop.signal], stop.grace)
        self._proceed(now)

    def _on_start(self, now: float, start: Start) -> None:
        if start.attempt != self.attempt:
            return
        if self.state == READY:
            if self._is_word_over(now):
                self._held_start = start  # said by an agent that has just woken up, and knows less than it thinks
                return
            self._spawn(start.attempt, start.env)
        elif self.state in (RUNNING, EXITED):
            self._repeat(Running if self.state == RUNNING else Exited)

    def _on_vouch(self, now: float, vouch: Vouch) -> None:
        self._manager = vouch.manager
        if vouch.seconds is None:
            self._has_asked = False
            self._run_without_limit()
        else:
            self._word_s = vouch.seconds if self._is_first_word else max(self._word_s, vouch.seconds)
            self._is_first_word = False
            until = (now if vouch.at is None else min(now, vouch.at)) + vouch.seconds
            if until <= now and self._is_word_over(now):
                return  # it has waited too long to be news; whoever was asked has not answered yet
            self._has_asked = False
            self._runs_until = self._due["silence"] = until
        held, self._held_start = self._held_start, None
        if held is not None:
            self._on_start(now, held)

    def _is_word_over(self, now: float) -> bool:
        return self._runs_until is not None and now >= self._runs_until

    def _run_without_limit(self) -> None:
        self._runs_until = None
        self._due.pop("silence", None)

    def _on_silence(self, now: float, since: float) -> None:
        """The agent's word is over."""
        if self._terminating:
            self._kill(now)
        elif not self._tree or self.state == EXITED:  # nothing runs, or what is left of it is being killed already
            return
        elif now - since > ASLEEP_S and self.connected_to_agent and not self._has_asked:
            # Too late in any case. If the machine slept, manager and all, nothing was handed on: ask before work is lost.
            self._has_asked = True
            self._due["silence"] = now + ASK_S
            self._greet()
        elif self._manager:
            self._out.append(LookForManager(self._manager))
        else:
            self._on_fence(now)

    def manager_looked_for(self, now: float, *, is_there: bool) -> list[Action]:
        """Asked because the agent's word is over, or was when there was nobody to hand anything on. A manager that came since the
        last look waits for a node at least as long as a whole word, so that long the agent has to come back, too."""
        if self._runs_until is not None and self._tree:
            if not is_there:
                self._runs_until, self._due["silence"] = now + self._word_s, now + LOOK_S
            elif now < self._runs_until:
                self._due["silence"] = self._runs_until
            else:
                self._on_fence(now)
        return self._actions()

    def _on_fence(self, now: float) -> None:
        self._stop_looking()
        self._target = self._pending = self._held_start = None
        self._due.pop("beat", None)
        self._outbox.clear()
        self.attempt = self.floor
        self.state = STOPPING if self._tree else PARKED
        if self._tree:
            self._kill(now)

    def _look(self, now: float, scan: ScanCheckpoints) -> None:
        self._scan = scan
        self._out.append(scan)
        if scan.directory is not None and scan.rank is not None:
            self._hang_s = HANG_S
            self._due["hang"] = now + HANG_S

    def _on_hang(self, now: float, scan: ScanCheckpoints, since: float) -> None:
        """What was found before is still the best that is known; it is not all there may be."""
        if now - since > ASLEEP_S:  # we stood still ourselves: its answer may be here
            self._due["hang"] = now + self._hang_s
            return
        text = f"{scan.directory}/rank-{scan.rank} has not answered for {self._hang_s:g} s"
        found = self._outbox.get(Ready) if self.state == READY else None
        known = found if isinstance(found, Ready) else Ready(scan.attempt)
        self._be_ready(known.replace(unreadable=text[-MAX_TEXT:]))
        self._due["hang"] = now + self._hang_s
        self._hang_s *= 2

    def _be_ready(self, answer: Ready) -> bool:
        """Whether that is news."""
        if self.state != READY:
            self._outbox.clear()
        self._target = None
        self.state, self.attempt = READY, answer.attempt
        is_news = self._outbox.get(Ready) != answer
        if is_news:
            self._say(answer)
        return is_news

    def _look_again(self, now: float, scan: ScanCheckpoints, unreadable: str) -> None:
        if scan.rank is None or scan.directory is None:
            return
        first, most = (UNREADABLE_FIRST_S, UNREADABLE_MAX_S) if unreadable else (RESCAN_FIRST_S, RESCAN_MAX_S)
        self._due["rescan"] = now + min(most, first * 2 ** min(self._looks, 16))
        self._looks += 1

    def _stop_looking(self) -> None:
        self._scan = None
        self._due.pop("rescan", None)
        self._due.pop("hang", None)

    def _spawn(self, attempt: int, env: dict[str, str]) -> None:
        self._stop_looking()
        self.state = RUNNING
        self.child = attempt
        self._tree = True
        self._outbox.pop(Ready, None)  # said again, it would look like a child that has stopped
        self._next_beat = 0.0
        self._rekill = REKILL_FIRST_S
        self._out.append(SpawnChild(attempt, env))

    def _stop_child(self, now: float, signal: int, grace: float) -> None:
        """Signal once, then let the shortest grace asked for win."""
        until = self._due.get("grace")
        if until is None and "rekill" not in self._due:
            self._out.append(SignalChild(signal, group=True))
            self._due["grace"] = now + grace
        elif until is not None:
            self._due["grace"] = min(until, now + grace)

    def _kill(self, now: float) -> None:
        if not self._tree:
            return
        self._due.pop("grace", None)
        self._out.append(KillChild())
        self._due["rekill"] = now + self._rekill
        self._rekill = min(self._rekill * 2, REKILL_MAX_S)
        if self._terminating:
            self._due.setdefault("abandon", now + ABANDON_S)

    def _proceed(self, now: float) -> None:
        """What was waiting for the child and its tree to be gone."""
        if self.child is not None:
            return
        if self._terminating:
            if not self._tree:
                self._exit()
            elif "rekill" in self._due:
                self._due.setdefault("abandon", now + ABANDON_S)
            else:
                self._kill(now)
        elif self.state == STOPPING and not self._tree:
            if self._target is None:
                self.state = PARKED
                if self.connected_to_agent:  # an agent that met it while it stopped waits for a word that it has
                    self._greet()
                return
            scan = ScanCheckpoints(self._target, self._rank, self._directory)
            if scan != self._scan:
                self._look(now, scan)

    def _exit(self) -> None:
        if not self._done:
            self._done = True
            self._out.append(Exit(0 if self._is_job_over else self._code))

    # --- talking ------------------------------------------------------------------------------------------------------

    def _greet(self) -> None:
        who = self.identity
        self._out.append(Send(Hello(who.pod, who.uid, who.pid, self.state, self.attempt, floor=self.floor)))

    def _say(self, message: ToAgent) -> None:
        self._outbox.pop(type(message), None)  # the newest goes last: re-sent in the order of the events
        self._outbox[type(message)] = message
        if self.connected_to_agent:
            self._out.append(Send(message))

    def _repeat(self, kind: type[SmallRecord]) -> None:
        message = self._outbox.get(kind)
        if message is not None and self.connected_to_agent:
            self._out.append(Send(message))

    def _beat(self, now: float) -> None:
        self._due.pop("beat", None)
        if self._pending is not None:
            message, self._pending = self._pending, None
            self._next_beat = now + HEARTBEAT_INTERVAL_S
            self._say(message)

    def _actions(self) -> list[Action]:
        out, self._out = self._out, []
        if self._done:
            return out if out and isinstance(out[-1], Exit) else []
        at = min(self._due.values(), default=None)
        if at != self._timer:
            self._timer = at
            out.append(SetTimer(at))
        return out
