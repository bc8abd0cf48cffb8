"""The care for the checkpoints of this node's ranks, where jobs have no shared directory.

*While a rank runs*, each checkpoint that its launcher has seen on disk is copied to one other node, the same one as long as that
takes them. What is told upwards as kept is what outlives this node: steps that the other node has acknowledged, once the job's
status names that node. Nothing of this is written for a checkpoint; only a change of the node is, in the launcher's report.

*When a rank is new here*, or lacks the step that the gang agreed on, what its last home and the holder of its copies have is
fetched before the launcher is asked for its checkpoints. Until then, and while a node that may have the gang's step cannot be
reached, the report says so in `unreadable`: that holds the barrier and is never taken for "none".

A rank that restarts where it ran needs nobody: everything that was ever safe is in its directory.

One turn of the event loop each, no locks: the tasks below wait only for files and for other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec
import structlog

from remuda.agent.copies.copy_ports import (
    CheckpointFiles,
    CopyNodeGone,
    CopyRefused,
    CopySourceGone,
    CopyTransport,
    JobKey,
)
from remuda.api.devices import LauncherReport
from remuda.api.training import Member, TrainingJob
from remuda.core.training.checkpoint_copies import (
    FETCHED,
    KEPT_COPIES,
    MOST_COPIES,
    CopyCandidate,
    copies_of_rank,
    copy_candidates_in_order,
    is_in_history,
    kept_checkpoint_step_of_rank,
    newest_step_in_history,
    next_step_to_copy,
)
from remuda.core.training.kept_checkpoints import unused_training_resume_consent
from remuda.launch.protocol import MAX_TEXT, READY, RUNNING
from remuda.link.copy_wire import CopyMark
from remuda.link.progress_board import Heartbeat

log = structlog.get_logger(__name__)

AT_ONCE = 2  # copies that leave this node at the same time
TRIED_NODES = 8  # for one checkpoint, before it waits
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 15.0
SHUN_UNREACHED_S, SHUN_REFUSED_S = 10.0, 30.0
CORRUPT = "CopyCorrupt"
NOT_YET = "NotAMember"  # it may not have heard yet that the rank is here
NOT_YET_TIMES = 3
HOLDER_LOOK_S = 20.0  # how often the node that has copies is asked whether it still has them
HOLDER_MISSED = 2  # times in a row without an answer before another node gets them
SAY_EACH_BYTES = 256 << 20  # of a fetch: how often its progress is told
MIB = 1 << 20

NO_PEERS = "its agent meets no others (NoPeers)"

Candidates = Callable[[], Sequence[CopyCandidate] | None]  # None: this node meets no others, and makes no copies


class RankCare:
    """What is known of one rank's checkpoints here."""

    def __init__(self, key: JobKey, rank: int) -> None:
        self.key = key
        self.rank = rank
        self.home: int | None = None  # the newest attempt that ran here; None = not looked up yet
        self.recent: list[int] = []  # steps that are on disk here, as the launcher said, newest last
        self.waiting: dict[int, int] = {}  # step -> attempt, to be copied
        self.acked: dict[str, tuple[int, ...]] = {}  # by node: what it has
        self.holder = ""  # whom this rank's copies are said to be with
        self.recorded = ""  # whom the job's status says
        self.why_not = ""
        self.not_yet = 0  # times that it was refused for want of news
        self.last: Heartbeat | None = None
        self.sending: asyncio.Task[None] | None = None
        self.looking: asyncio.Task[None] | None = None
        self.made_anew: tuple[str, int] | None = None  # holder and step that were last found lost
        self.fetching: asyncio.Task[None] | None = None
        self.fetched_for: int | None = None  # the opened attempt behind which everything was fetched
        self.placed: set[int] = set()  # steps that were brought here since the rank last ran anywhere
        self.damaged: dict[int, str] = {}  # steps whose copies turned out to be none, with words about it
        self.seen_damaged: set[int] = set()  # once
        self.doubt = ""
        self.expected: int | None = (
            None  # a step that is here for certain: the launcher has not looked while it misses it
        )

    @property
    def safe(self) -> tuple[int, ...]:
        return self.acked.get(self.recorded, ()) if self.recorded else ()


class RankCopies:
    """Implements `agent.launchers.copies_port.LauncherCopies`. `covers`: whether a job's checkpoints are this node's business.
    `report`: a heartbeat that says more than before. `changed`: reports and orders may be others now."""

    def __init__(
        self,
        node: str,
        *,
        files: CheckpointFiles,
        transport: CopyTransport,
        candidates: Candidates,
        find_job: Callable[[JobKey], TrainingJob | None],
        covers: Callable[[TrainingJob], bool],
        report: Callable[[Heartbeat], None],
        changed: Callable[[], None],
    ) -> None:
        self._node = node
        self._files = files
        self._transport = transport
        self._candidates = candidates
        self._find_job = find_job
        self._covers = covers
        self._report = report
        self._changed = changed
        self._care: dict[tuple[str, int], RankCare] = {}
        self._shun: dict[str, float] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._notes: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._is_open = True
        self.silenced: Callable[[], None] = lambda: None  # what else is to end then

    # --- what the registry of launchers asks and says -------------------------------------------------------------------

    def has_checkpoints(self, job: TrainingJob, member: Member) -> bool:
        """Whether the rank's launcher may be asked for its checkpoints: what others have of them is here."""
        status = job.status
        if not self._covers(job) or status.opened_attempt == 0:
            return True
        if status.barrier == "Open" and member.role not in status.held_roles:
            return True
        care = self._care_of(job, member.rank)
        if care.fetched_for == status.opened_attempt:
            return True
        step = kept_checkpoint_step_of_rank(status, member.rank)
        if care.home == status.opened_attempt and (step is None or step in care.recent[-1:]):
            return True  # of older ones the program may have removed some: that is looked up
        if care.fetching is None and self._is_open:
            care.doubt = "copies of its checkpoints are being looked for"
            care.fetching = asyncio.get_running_loop().create_task(self._bring_here(care))
        return False

    def started(self, job: TrainingJob, member: Member) -> None:
        """The rank begins the job's attempt here, from its resume step."""
        if not self._covers(job):
            return
        care, resume = self._care_of(job, member.rank), job.status.resume_step or 0
        self._stop_fetching(care)
        self._stop_sending(care)  # what is on its way is of the attempt before
        self._begin_attempt(care, job.status.attempt)
        care.recent = [resume] if resume else []
        care.waiting = {resume: job.status.attempt} if resume else {}
        care.acked = {node: tuple(s for s in steps if s <= resume) for node, steps in care.acked.items()}
        care.recorded = self._recorded(job, member.rank)
        if resume and care.recorded != self._node and resume in care.acked.get(care.recorded, ()):
            care.holder = care.recorded  # it came from there, or went there before
        self._send_soon(care)

    def heard(self, job: TrainingJob, member: Member, beat: Heartbeat) -> Heartbeat:
        """The heartbeat as it is told upwards."""
        if not self._covers(job) or beat.attempt != job.status.attempt:
            return beat
        care = self._care_of(job, member.rank)
        if care.home != beat.attempt:
            self._begin_attempt(care, beat.attempt)  # an agent that came while it ran
        care.recorded = self._recorded(job, member.rank)
        care.last = beat
        if beat.kept is not None and beat.kept not in care.recent[-1:]:
            care.recent = [*(s for s in care.recent if s != beat.kept), beat.kept][-KEPT_COPIES:]
            care.waiting[beat.kept] = beat.attempt
            for old in sorted(care.waiting)[:-KEPT_COPIES]:
                del care.waiting[old]
            self._send_soon(care)
        return _beat_of_safe_steps(beat, care)

    def dressed(self, job: TrainingJob, member: Member, report: LauncherReport) -> LauncherReport:
        """The launcher's report, with what is known of its rank's copies."""
        if not self._covers(job):
            return report
        report = msgspec.structs.replace(report, per_node=True)
        care = self._care.get((job.uid, member.rank))
        if care is None or report.attempt != job.status.attempt:
            return report
        if report.state == RUNNING:
            why_not = care.why_not or ("" if self._candidates() is not None else NO_PEERS)
            return msgspec.structs.replace(report, copied_to=care.holder, not_copied=why_not)
        if report.state == READY and job.status.opened_attempt:
            words = self._doubt(care, report)
            if care.damaged:
                report = msgspec.structs.replace(report, not_copied="; ".join(care.damaged.values())[:MAX_TEXT])
            text = "; ".join(filter(None, (report.unreadable, words)))[:MAX_TEXT]
            return msgspec.structs.replace(report, unreadable=text) if words else report
        return report

    def job_changed(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        job = new or old
        if job is None:
            return
        here = {m.rank for m in new.status.members if m.node == self._node} if new is not None else set[int]()
        for (uid, rank), care in list(self._care.items()):
            if uid != job.uid:
                continue
            if rank not in here or new is None:
                self._drop(care)
                continue
            recorded = self._recorded(new, rank)
            if recorded != care.recorded:
                care.recorded = recorded
                self._tell_again(care)

    def peers_changed(self) -> None:
        """Other nodes may be asked now."""
        self._shun.clear()
        self._news.set()
        self._news = asyncio.Event()

    def silence(self) -> None:
        """Nothing is copied, fetched or told any more."""
        self._is_open = False
        self.silenced()
        for task in self._tasks():
            task.cancel()

    async def close(self) -> None:
        self.silence()
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        found = [task for care in self._care.values() for task in (care.sending, care.looking, care.fetching)]
        return [*(task for task in found if task is not None), *self._notes]

    # --- what is known --------------------------------------------------------------------------------------------------

    def _care_of(self, job: TrainingJob, rank: int) -> RankCare:
        key = (job.uid, rank)
        if key not in self._care:
            self._care[key] = RankCare(JobKey(job.namespace, job.name, job.uid), rank)
        return self._care[key]

    def _recorded(self, job: TrainingJob, rank: int) -> str:
        entry = copies_of_rank(job.status, rank)
        return entry.copy if entry is not None and entry.copy != self._node else ""

    def _begin_attempt(self, care: RankCare, attempt: int) -> None:
        care.home, care.fetched_for, care.doubt, care.expected = attempt, None, "", None
        care.last, care.why_not, care.placed = None, "", set()
        care.damaged, care.seen_damaged = {}, set()
        if self._is_open:
            task = asyncio.get_running_loop().create_task(self._note_home(care.key, care.rank, attempt))
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)

    async def _note_home(self, key: JobKey, rank: int, attempt: int) -> None:
        try:
            await self._files.note_home(key, rank, attempt)
        except OSError as error:
            log.warning("copies.home_not_noted", job=key.directory, rank=rank, error=str(error))

    def _drop(self, care: RankCare) -> None:
        self._stop_fetching(care)
        self._stop_sending(care)
        if care.looking is not None:
            care.looking.cancel()
        del self._care[care.key.uid, care.rank]

    def _stop_sending(self, care: RankCare) -> None:
        if care.sending is not None:
            care.sending.cancel()
            care.sending = None

    def _stop_fetching(self, care: RankCare) -> None:
        if care.fetching is not None:
            care.fetching.cancel()
            care.fetching = None

    def _doubt(self, care: RankCare, report: LauncherReport) -> str:
        if care.fetching is not None:
            return care.doubt
        if care.expected is not None and care.expected not in (*report.checkpoints, *report.corrupt):
            return f"the checkpoint of step {care.expected} is here and has not been looked at yet"
        return ""

    def _tell_again(self, care: RankCare) -> None:
        if care.last is not None and self._is_open:
            self._report(_beat_of_safe_steps(care.last, care))

    # --- from here to another node --------------------------------------------------------------------------------------

    def _send_soon(self, care: RankCare) -> None:
        if care.sending is None and care.waiting and self._is_open:
            care.sending = asyncio.get_running_loop().create_task(self._send(care))

    async def _send(self, care: RankCare) -> None:
        delay = RETRY_FIRST_S
        try:
            while (step := next_step_to_copy(care.waiting)) is not None:
                attempt = care.waiting[step]
                if await self._copy(care, step, attempt):
                    delay = RETRY_FIRST_S
                    if care.waiting.get(step) == attempt:
                        del care.waiting[step]
                    continue
                await self._sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)
        finally:
            if care.sending is asyncio.current_task():
                care.sending = None

    async def _copy(self, care: RankCare, step: int, attempt: int) -> bool:
        """Whether nothing is left to do about that step."""
        job = self._find_job(care.key)
        if job is None:
            return True
        spares = [spare.node for spare in job.status.spares]
        known = care.holder or care.recorded
        candidates = self._candidates()
        if candidates is None:
            self._not_copied(care, NO_PEERS)
            return False
        ordered = copy_candidates_in_order(self._node, care.key.uid, care.rank, candidates, known, spares)
        now = asyncio.get_running_loop().time()
        refusals: dict[str, None] = {}
        for node in [n for n in ordered if self._shun.get(n, 0.0) <= now][:TRIED_NODES]:
            try:
                async with self._slots:
                    held = await self._transport.put(node, care.key, care.rank, step, attempt)
                    if node != care.holder:
                        held = await self._take_along(care, job, node, held, attempt)
            except CopySourceGone:
                if not care.acked:  # nothing was ever to be had: they lie somewhere in the container
                    self._not_copied(care, "no checkpoint of it was found on the node (CheckpointNotHere)")
                return True
            except CopyRefused as refused:
                if refused.reason == NOT_YET and care.not_yet < NOT_YET_TIMES:
                    care.not_yet += 1
                    return False  # another node would have to get everything
                refusals[refused.reason] = None
                self._shun[node] = now + SHUN_REFUSED_S
            except (OSError, TimeoutError) as error:
                refusals["NotReached"] = None
                self._shun[node] = now + SHUN_UNREACHED_S
                log.info("copies.not_put", to=node, job=care.key.directory, rank=care.rank, step=step, error=str(error))
            else:
                self._copied(care, node, [s for s, a in held.items() if is_in_history(job.status, s, a)])
                await self._let_go(care, job, held)
                return True
        if refusals or not any(self._shun.get(n, 0.0) > now for n in ordered):
            said = ", ".join(sorted(refusals))
            nobody = "there is no other node that takes copies (NoPeer)"
            self._not_copied(care, f"no other node took a copy ({said})" if said else nobody)
        return False

    async def _let_go(self, care: RankCare, job: TrainingJob, held: Iterable[int]) -> None:
        """Of what is held here: what the other node does not have, or lies behind what is safe for the gang."""
        least = kept_checkpoint_step_of_rank(job.status, care.rank) or 0
        try:
            await self._files.drop_held(care.key, care.rank, frozenset(step for step in held if step >= least))
        except OSError as error:
            log.warning("copies.still_held", job=care.key.directory, rank=care.rank, error=str(error))

    async def _take_along(
        self, care: RankCare, job: TrainingJob, node: str, held: dict[int, int], attempt: int
    ) -> dict[int, int]:
        """A node that is to be named in another's place gets what counts as safe, too, as far as it is still here."""
        step = kept_checkpoint_step_of_rank(job.status, care.rank)
        safe = care.acked.get(care.holder or care.recorded, ())
        for more in dict.fromkeys((*([step] if step is not None else []), *safe[:1])):
            if more not in held and more <= max(care.recent, default=0):
                try:
                    held = await self._transport.put(node, care.key, care.rank, more, attempt)
                except CopySourceGone:
                    continue
        return held

    def _copied(self, care: RankCare, node: str, held: Iterable[int]) -> None:
        care.acked = {n: steps for n, steps in care.acked.items() if n == care.recorded} | {
            node: tuple(sorted(held, reverse=True)[:MOST_COPIES])
        }
        care.not_yet = 0
        is_new = node != care.holder or bool(care.why_not)
        care.holder, care.why_not = node, ""
        if is_new:
            log.info("copies.paired", job=care.key.directory, rank=care.rank, with_node=node)
            self._changed()
        if care.looking is None and self._is_open:
            care.looking = asyncio.get_running_loop().create_task(self._look_at_holder(care))
        self._tell_again(care)

    async def _look_at_holder(self, care: RankCare) -> None:
        """Copies that are lost with the node that has them are made anew at once: the next checkpoint may be hours away."""
        missed = 0
        while True:
            await asyncio.sleep(HOLDER_LOOK_S)
            held = [step for step in care.acked.get(care.holder, ()) if step in care.recent]
            if care.waiting or not held or care.made_anew == (care.holder, held[0]):
                continue  # it is asked already
            try:
                found = await self._transport.ask(care.holder, care.key, care.rank)
                is_there, missed = any(mark.step == held[0] for mark in found.marks), 0
            except CopyNodeGone:
                is_there = False
            except (OSError, TimeoutError, CopyRefused):
                missed += 1
                is_there = missed < HOLDER_MISSED
            if not is_there and not care.waiting and care.home is not None:
                log.warning("copies.lost", job=care.key.directory, rank=care.rank, node=care.holder, step=held[0])
                missed, care.made_anew = 0, (care.holder, held[0])
                care.waiting[held[0]] = care.home
                self._send_soon(care)

    def _not_copied(self, care: RankCare, words: str) -> None:
        if words != care.why_not:
            care.why_not = words
            log.warning("copies.on_one_node", job=care.key.directory, rank=care.rank, why=words)
            self._changed()

    async def _sleep(self, seconds: float) -> None:
        news = self._news
        try:
            async with asyncio.timeout(seconds):
                await news.wait()
        except TimeoutError:
            pass

    # --- from other nodes to here ---------------------------------------------------------------------------------------

    async def _bring_here(self, care: RankCare) -> None:
        """Until everything is here that can be had, or the gang has gone on without."""
        delay = RETRY_FIRST_S
        while True:
            job = self._find_job(care.key)
            if job is None:
                return
            opened = job.status.opened_attempt
            try:
                doubt = await self._try_to_bring(care, job)
            except OSError as error:
                log.warning("copies.unreadable", job=care.key.directory, rank=care.rank, error=str(error))
                doubt = f"the directory of its checkpoints cannot be read: {error.strerror or error}"
            if not doubt:
                break
            self._say_doubt(care, doubt)
            await self._sleep(delay)
            delay = min(delay * 2, RETRY_MAX_S)
        care.fetching = None
        care.doubt, care.fetched_for = "", opened
        self._changed()

    async def _try_to_bring(self, care: RankCare, job: TrainingJob) -> str:
        """Why it is not known what this rank has; "" when all is here."""
        status, key, rank = job.status, care.key, care.rank
        if care.home is None:
            care.home = await self._files.home(key, rank)
        is_home = care.home == status.opened_attempt
        newest = None if is_home else newest_step_in_history(status, care.home)
        here = await self._files.settle(key, rank, newest, frozenset(care.placed))
        consent = unused_training_resume_consent(job)  # then what is known of other steps does not matter
        wanted = kept_checkpoint_step_of_rank(status, rank) if consent is None else consent.step or None
        care.expected = max(here, default=None)
        if is_home and (wanted is None or wanted in here):
            return ""
        entry = copies_of_rank(status, rank)
        nodes = dict.fromkeys((entry.copy, entry.home)) if entry is not None else {}
        offers: dict[int, list[tuple[CopyMark, str]]] = {}
        unreached: list[str] = []
        at_home: dict[int, str] = {}  # digests as the last home says them: of what it has, nobody else's word counts
        is_last_home_away = knows_all = False
        for node in nodes:
            try:
                found = await self._transport.ask(node, key, rank)
            except CopyNodeGone:
                continue
            except (OSError, TimeoutError, CopyRefused) as error:
                if entry is not None and node == entry.copy:
                    unreached.append(f"{node} ({_error_text(error)})")
                else:
                    is_last_home_away = True  # what is safe is with the other; it may be gone for good
                continue
            valid = [mark for mark in found.marks if is_in_history(status, mark.step, mark.attempt)]
            knows_all = knows_all or found.home == status.opened_attempt
            if entry is not None and node == entry.home and found.home == status.opened_attempt:
                at_home = {mark.step: mark.sha256 for mark in valid}
            if entry is not None and node == entry.copy:
                care.acked[node] = tuple(sorted((mark.step for mark in valid), reverse=True))
            for mark in valid:
                offers.setdefault(mark.step, []).append((mark, node))
        for step, digest in at_home.items():
            offers[step] = [offer for offer in offers[step] if offer[0].sha256 == digest]
        lacking = sorted((step for step in offers if step not in here), reverse=True)
        newer = [s for s in lacking if s > max(here, default=0)] if consent is None else []
        doubts: list[str] = []
        brought: list[int] = []
        for step in dict.fromkeys((*newer, *(s for s in lacking if s == wanted))):
            if len(brought) >= FETCHED and step != wanted:
                continue
            words = await self._fetch_from_any(care, step, offers[step], may_give_up=not is_last_home_away)
            if words:
                doubts.append(words)
                if step not in care.seen_damaged:
                    break  # the others will not come from there either
            elif step not in care.damaged:
                brought.append(step)
        if doubts:
            return "; ".join(doubts)
        care.expected = max((*here, *brought), default=None)
        if unreached and not knows_all:
            if wanted is not None and wanted not in (*here, *brought):
                return f"copies cannot be asked for: {', '.join(unreached)}"
        elif not is_home:  # from here on this directory is as good as the one where the rank ran
            care.home = status.opened_attempt
            await self._files.note_home(key, rank, care.home)
        return ""

    async def _fetch_from_any(
        self, care: RankCare, step: int, offers: list[tuple[CopyMark, str]], *, may_give_up: bool
    ) -> str:
        """Why it did not come. A copy that is damaged wherever there is one, and was so the second time, too, is none: that is
        known (`damaged`) and no doubt any more."""
        whys: list[str] = []
        is_damaged = True
        for mark, node in sorted(offers, key=lambda offer: -offer[0].attempt):
            try:
                await self._fetch(care, node, mark)
            except (OSError, TimeoutError, CopyRefused) as error:
                is_damaged = is_damaged and isinstance(error, CopyRefused) and error.reason == CORRUPT
                whys.append(f"{node} ({_error_text(error)})")
                continue
            care.placed.add(step)
            care.damaged.pop(step, None)
            care.seen_damaged.discard(step)
            return ""
        if is_damaged:
            log.warning("copies.damaged", job=care.key.directory, rank=care.rank, step=step, nodes=whys)
            if step in care.seen_damaged and may_give_up:
                care.damaged[step] = f"the copy of step {step} is damaged on {', '.join(whys)}"
                return ""
            care.seen_damaged.add(step)
        away = "" if may_give_up else ", and its last node cannot be reached"
        return f"the copy of step {step} did not come from {', '.join(whys)}{away}; it is tried again"

    async def _fetch(self, care: RankCare, node: str, mark: CopyMark) -> None:
        told = 0
        self._say_doubt(care, f"copies are being fetched from {node} (0 of {_mib_text(mark.size)})")

        def said(count: int) -> None:
            nonlocal told
            if count - told >= SAY_EACH_BYTES:
                told = count
                self._say_doubt(
                    care, f"copies are being fetched from {node} ({count // MIB:,} of {_mib_text(mark.size)})"
                )

        await self._transport.fetch(node, care.key, care.rank, mark, said)

    def _say_doubt(self, care: RankCare, words: str) -> None:
        if words != care.doubt:
            care.doubt = words
            self._changed()


def _beat_of_safe_steps(beat: Heartbeat, care: RankCare) -> Heartbeat:
    """What it says of checkpoints that the launcher has seen is what would be there without this node."""
    if beat.kept is None and not care.recent:
        return beat  # it saves none, or keeps its own files
    kept = max(care.safe, default=0)
    checkpoint = kept if beat.kept is not None else beat.checkpoint
    return msgspec.structs.replace(beat, kept=kept, checkpoint=checkpoint, safe=care.safe)


def _error_text(error: BaseException) -> str:
    if isinstance(error, CopyRefused):
        return error.reason
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def _mib_text(size: int) -> str:
    return f"{-(-size // MIB):,} MiB"
