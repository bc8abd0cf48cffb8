"""What the launcher's machine asks its shell to do. Values only; the shell (or a simulated pod) carries them out in order."""

from remuda.launch.protocol import ToAgent
from remuda.launch.small_records import SmallRecord


class Connect(SmallRecord):
    """Dial the agent; answer with `connected` or `disconnected`."""


class Send(SmallRecord):
    message: ToAgent


class SpawnChild(SmallRecord):
    """Start the user's command; answer with `child_started` or `child_failed`."""

    attempt: int
    env: dict[str, str]


class SignalChild(SmallRecord):
    """Signal the child: its whole process group (and wake stopped processes), or the main process alone."""

    signal: int
    group: bool


class KillChild(SmallRecord):
    """SIGKILL everything below the launcher. Asked again until `tree_gone` comes."""


class LookForManager(SmallRecord):
    """Whether anybody listens at that socket; answer with `manager_looked_for`."""

    socket: str


class ScanCheckpoints(SmallRecord):
    """Find the usable checkpoints; answer with `scanned`."""

    attempt: int
    rank: int | None
    directory: str | None


class WriteCheckpointRequest(SmallRecord):
    """Ask user code for a checkpoint: of the first step that is not before `step`, by `deadline`."""

    deadline: float
    step: int = 0


class SetTimer(SmallRecord):
    """Call `timer` at or after `at`; replaces the timer set before. None = no timer."""

    at: float | None


class Exit(SmallRecord):
    """The last action of all."""

    code: int


Action = (
    Connect
    | Send
    | SpawnChild
    | SignalChild
    | KillChild
    | LookForManager
    | ScanCheckpoints
    | WriteCheckpointRequest
    | SetTimer
    | Exit
)
