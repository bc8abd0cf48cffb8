"""What the launcher wants to know of the checkpoint directory, each asked by a process of its own (`forked_look`).

    scan   which checkpoints may be resumed from. One at a time: another question, or the start of a child, ends the one before.
    kept   whether a checkpoint that the child has reported is on disk. One at a time: while the file system has not answered
           nothing more is asked, and when it has, the newest that was reported meanwhile.

At most MAX_LOOKS are alive, those included that were given up and cannot be killed: a file system that hangs costs no more.
"""

import os

from remuda.launch import checkpoints
from remuda.launch.actions import ScanCheckpoints
from remuda.launch.checkpoints import CheckpointScan
from remuda.launch.forked_look import ForkedLook

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    from collections.abc import Callable

MAX_LOOKS = 4
KEPT_AGAIN_S = 1.0  # until it is looked again for one that was not there
_POLLIN = 1


class CheckpointLooks:
    def __init__(self, poll: "select.poll", own_fds: "Callable[[], list[int]]") -> None:
        """`poll` is told of what to wait for. `own_fds`: descriptors that a look must not hold."""
        self.pids: set[int] = set()  # alive, or not yet reaped; who reaps one takes it out
        self._poll = poll
        self._own_fds = own_fds
        self._scan: tuple[ScanCheckpoints, ForkedLook] | None = None
        self._known: tuple[ScanCheckpoints, int, CheckpointScan] | None = None  # the last listing, and what was in it
        self._place: tuple[str, int] | None = None  # where the child's checkpoints are, and its rank
        self._kept: tuple[int, ForkedLook] | None = None
        self._sought: tuple[int, bool, float] = (-1, False, 0.0)  # step, whether it was there, when to look again

    def child_begins(self, place: tuple[str, int] | None) -> None:
        self.give_up()
        self._place, self._sought = place, (-1, False, 0.0)

    def give_up(self) -> None:
        """Nobody waits for an answer any more."""
        for one in (self._scan, self._kept):
            if one is not None:
                self._end(one[1])
        self._scan = self._kept = None

    def owns(self, fd: int) -> bool:
        """Something was heard there: `scanned` or `kept` may have an answer."""
        return any(one is not None and one[1].pipe.fd == fd for one in (self._scan, self._kept))

    def scan(self, scan: ScanCheckpoints) -> CheckpointScan | None:
        """The answer when it is at hand, else None: `scanned` has it later."""
        directory, rank = scan.directory, scan.rank
        if directory is None or rank is None:  # a spare
            return CheckpointScan()
        if self._scan is not None and self._scan[0] == scan:
            return None
        if self._scan is not None:
            self._end(self._scan[1])
            self._scan = None
        known = self._known[1:] if self._known is not None and self._known[0] == scan else None
        try:
            look = self._ask(lambda: checkpoints.look_at_checkpoints(directory, rank, known))
        except OSError as error:
            return CheckpointScan(unreadable=f"{directory}/rank-{rank}: nobody could look: {error.strerror or error}")
        self._scan = scan, look
        return None

    def scanned(self) -> tuple[ScanCheckpoints, CheckpointScan] | None:
        """The answer of a scan that has ended."""
        if self._scan is None or not self._scan[1].pipe.is_over():
            return None
        (scan, look), self._scan = self._scan, None
        self._end(look)
        found = look.answer()
        if found is None:  # "no checkpoints" would throw the work of days away
            text = f"{scan.directory}/rank-{scan.rank}: the look at it ended without an answer"
            return scan, CheckpointScan(unreadable=text)
        steps, corrupt, abandoned = (tuple(found[name]) for name in ("steps", "corrupt", "abandoned"))
        answer, listing = CheckpointScan(steps, corrupt, abandoned, found["unreadable"]), found["listing"]
        self._known = None if listing is None else (scan, listing, answer)
        return scan, answer

    def is_kept(self, step: int, now: float, wait_s: float) -> bool:
        """Whether that checkpoint of the child has been seen on disk, as far as can be told within `wait_s`. Looked for once, and
        once a second for as long as it is not there; an answer that comes later is `kept`."""
        sought, is_there, again_at = self._sought
        if self._place is None or (step == sought and (is_there or now < again_at)):
            return is_there and self._place is not None
        self._sought = step, False, now + KEPT_AGAIN_S
        if self._kept is None:
            self._ask_kept(step)
            self.kept(wait_s)
        return self._sought[1]

    def kept(self, wait_s: float = 0.0) -> int | None:
        """The step that a look which has ended saw on disk."""
        if self._kept is None or not self._kept[1].pipe.is_over(wait_s):
            return None
        (step, look), self._kept = self._kept, None
        self._end(look)
        is_there = look.answer() is True
        if step == self._sought[0]:
            self._sought = step, is_there, self._sought[2]
        else:  # another was reported meanwhile
            self._ask_kept(self._sought[0])
        return step if is_there else None

    def _ask_kept(self, step: int) -> None:
        assert self._place is not None
        directory, rank = self._place
        try:
            self._kept = step, self._ask(lambda: checkpoints.is_checkpoint_commit_on_disk(directory, rank, step))
        except OSError:
            pass  # looked for again when it is named again

    def _ask(self, question: "Callable[[], object]") -> ForkedLook:
        for pid in tuple(self.pids):  # many may be asked before anybody hears that the first have ended
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.pids.discard(pid)
        if len(self.pids) >= MAX_LOOKS:
            raise OSError(f"{len(self.pids)} looks before this one have not ended")
        look = ForkedLook(question, self._own_fds())
        self.pids.add(look.pid)
        self._poll.register(look.pipe.fd, _POLLIN)
        return look

    def _end(self, look: ForkedLook) -> None:
        self._poll.unregister(look.pipe.fd)
        look.give_up(is_reaped=look.pid not in self.pids)
