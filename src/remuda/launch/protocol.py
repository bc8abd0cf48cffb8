"""The launcher protocol: what `remuda-launch` and its node's agent say to each other.

One JSON object a line over a Unix stream socket; the field `type` names the message. Unknown types and unknown fields
are ignored, so either side may be newer. A known message with a bad field is refused (ProtocolError) and the line is
dropped: the frame is the line, so the next one is good again. A line over 64 KiB has lost its frame: the connection is
closed and the launcher dials again.

`attempt`, the gang's restart number, is the fencing token of the whole conversation: a launcher only ever moves to a
higher one, so a late message of an old agent can never start or stop anything.

This module does no I/O: launcher shell, asyncio agent and simulator all use it.
"""

from remuda.launch import jsonline
from remuda.launch.small_records import SmallRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

VERSION = 1
MAX_LINE_BYTES = 64 * 1024
MAX_CHECKPOINTS = 16  # in one `ready`: enough to find a step common to all ranks, and never near the line limit
MAX_COUNT = 10**15  # of steps, attempts: whole in every JSON reader, and so is what is worked out from them
MAX_SECONDS = 221_845_392_000  # a length, or a moment: the year 9000
MAX_TEXT = 1024  # of a message meant for people
MAX_TAIL = 4096  # characters of the log's end; six bytes each at worst, so a line always holds them

PARKED, READY, RUNNING, STOPPING, EXITED = "parked", "ready", "running", "stopping", "exited"
STATES = (PARKED, READY, RUNNING, STOPPING, EXITED)

# Linux numbers. The `signal` module would bring `enum` along, and a container's signals are Linux signals.
SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ABRT": 6, "KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14,
    "TERM": 15, "CONT": 18, "STOP": 19, "WINCH": 28, "BUS": 7, "FPE": 8, "ILL": 4, "TRAP": 5,
}  # fmt: skip
SIGNAL_NAMES = {number: name for name, number in SIGNALS.items()}


class ProtocolError(Exception):
    """A line that cannot be understood: a stable reason and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


# --- launcher -> agent ------------------------------------------------------------------------------------------------


class Hello(SmallRecord):
    """First line after every (re)connect, and said again once a fenced launcher's child is gone. `attempt` is the one it runs or
    was last made ready for; 0 = none. `floor` is the highest it was ever told of, which is higher while it stops for it: a fence
    makes it deaf up to there."""

    pod: str
    uid: str
    pid: int
    state: str
    attempt: int
    version: int = VERSION
    floor: int = 0


class Ready(SmallRecord):
    """Nothing of an older attempt is alive any more; `checkpoints` of the asked rank are usable, newest first. `corrupt` ones
    failed their own check, `abandoned` ones are whole but of a history that was given up. `unreadable`: what could not be read,
    and why; then there may be more than these. Said again whenever another look finds something else."""

    attempt: int
    checkpoints: tuple[int, ...] = ()
    corrupt: tuple[int, ...] = ()
    abandoned: tuple[int, ...] = ()
    unreadable: str = ""


class Running(SmallRecord):
    attempt: int
    pid: int
    time: float


class Exited(SmallRecord):
    """The child ended by itself. `code` is its exit code, or 128 + `signal`. `tail`: the last it wrote, when it failed and its
    log can be read again."""

    attempt: int
    code: int
    signal: int | None
    time: float
    message: str = ""
    tail: str = ""


class Heartbeat(SmallRecord):
    """Newest progress. Times are durations in seconds, null when the newest report did not say them; `checkpoint` is the
    newest one of this attempt and stays in every later heartbeat, so no checkpoint report can be lost."""

    attempt: int
    step: int
    step_time: float | None = None
    self_time: float | None = None
    checkpoint: int | None = None
    checkpoint_time: float | None = None
    time: float = 0.0
    total_steps: int | None = None  # how many there will be, once the child has said so
    kept: int | None = None  # newest checkpoint that is where it is looked for at a restart, as the launcher saw it


# --- agent -> launcher ------------------------------------------------------------------------------------------------


class Stop(SmallRecord):
    """Stop what runs of attempts below `attempt`, look for the rank's checkpoints, answer Ready."""

    attempt: int
    signal: str = "TERM"
    grace: float = 2.0
    rank: int | None = None
    checkpoint_dir: str | None = None


class Start(SmallRecord):
    attempt: int
    env: dict[str, str]


class Checkpoint(SmallRecord):
    """Ask user code for a checkpoint before `deadline` (unix seconds); `signal` wakes it when it does not poll. `step`: the
    first step it may be of. Ranks hear of it at different moments; a step ahead of all of them makes it one checkpoint."""

    deadline: float
    signal: str | None = None
    step: int = 0


class Fence(SmallRecord):
    """Kill at once and start nothing until a higher attempt comes."""


class Vouch(SmallRecord):
    """The rank stays this node's own for so many seconds, counted from `at`; null = without limit, which is also so for a
    launcher that was never told. When they are over without another word the launcher does as after a fence: its agent is
    stopped or gone, and the rank may be handed on. `manager`: the socket at which whoever hands ranks on listens; "" = not on
    this machine. While nobody does, nothing is handed on, and the rank runs on.

    `at`: when it was said, by CLOCK_BOOTTIME, which all processes of a machine share: a word may wait unread. An agent of an
    older release does not say it, and a launcher of one passes over it: then it counts from when it is read. So it does where
    the launcher's clock is behind the agent's (a container with a kernel of its own): a moment that lies ahead is now."""

    seconds: float | None
    manager: str = ""
    at: float | None = None


class End(SmallRecord):
    """The job is over and the pod stays for its log: end what runs within `grace` seconds, and leave with 0, so that nobody
    starts the container again."""

    grace: float = 2.0


ToAgent = Hello | Ready | Running | Exited | Heartbeat
ToLauncher = Stop | Start | Checkpoint | Fence | Vouch | End
Message = ToAgent | ToLauncher


class Progress(SmallRecord):
    """One report of user code, from the helper's datagram or the progress file."""

    step: int | None = None
    step_time: float | None = None
    self_time: float | None = None
    checkpoint: int | None = None
    checkpoint_time: float | None = None
    attempt: int | None = None  # whose report it is; None = not said, taken as the current child's
    total_steps: int | None = None
    kept: int | None = None  # the launcher's own: it has seen this checkpoint on disk


# --- field checks: each returns the value to store, or raises ValueError with the rest of a sentence -------------------


def _count_field(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"must be a whole number from 0 to {MAX_COUNT}")
    return value


def _seconds_field(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"must be a number of seconds from 0 to {MAX_SECONDS}")
    return float(value)


def _text_field(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


def _path_field(value: object) -> str:
    text = _text_field(value)
    if not text or "\0" in text:
        raise ValueError("must be a path")
    return text


def _state_field(value: object) -> str:
    if value not in STATES:
        raise ValueError(f"must be one of {', '.join(STATES)}")
    return str(value)


def _signal_field(value: object) -> str:
    name = _text_field(value).removeprefix("SIG")
    if name not in SIGNALS:
        raise ValueError(f"must be a signal name such as TERM, not {value!r:.40}")
    return name


def _steps_field(value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_CHECKPOINTS:
        raise ValueError(f"must be a list of at most {MAX_CHECKPOINTS} steps")
    return tuple(map(_count_field, value))


def _env_field(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must be an object of strings")
    for name, text in value.items():
        if not name or "=" in name or "\0" in name or not isinstance(text, str) or "\0" in text:
            raise ValueError(f"holds a name or value no process can be given: {name!r:.40}")
        try:
            (name + text).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError(f"holds text that is not Unicode: {name!r:.40}") from None
    return value


def _optional_field(check: "Callable[[object], Any]") -> "Callable[[object], Any]":
    return lambda value: None if value is None else check(value)


# wire field -> (attribute, check). A field may be absent when the class has a default for it.
_PROGRESS: "dict[str, tuple[str, Callable[[object], Any]]]" = {
    "step": ("step", _optional_field(_count_field)), "stepTime": ("step_time", _optional_field(_seconds_field)),
    "selfTime": ("self_time", _optional_field(_seconds_field)), "checkpoint": ("checkpoint", _optional_field(_count_field)),
    "checkpointTime": ("checkpoint_time", _optional_field(_seconds_field)), "attempt": ("attempt", _optional_field(_count_field)),
    "totalSteps": ("total_steps", _optional_field(_count_field)),
}  # fmt: skip
_MESSAGES: "dict[str, tuple[type[SmallRecord], dict[str, tuple[str, Callable[[object], Any]]]]]" = {
    "hello": (Hello, {"version": ("version", _count_field), "pod": ("pod", _text_field), "uid": ("uid", _text_field),
                      "pid": ("pid", _count_field), "state": ("state", _state_field), "attempt": ("attempt", _count_field),
                      "floor": ("floor", _count_field)}),
    "ready": (Ready, {"attempt": ("attempt", _count_field), "checkpoints": ("checkpoints", _steps_field),
                      "corrupt": ("corrupt", _steps_field), "abandoned": ("abandoned", _steps_field),
                      "unreadable": ("unreadable", _text_field)}),
    "running": (Running, {"attempt": ("attempt", _count_field), "pid": ("pid", _count_field), "time": ("time", _seconds_field)}),
    "exited": (Exited, {"attempt": ("attempt", _count_field), "code": ("code", _count_field),
                        "signal": ("signal", _optional_field(_count_field)),
                        "time": ("time", _seconds_field), "message": ("message", _text_field), "tail": ("tail", _text_field)}),
    "heartbeat": (Heartbeat, {**_PROGRESS, "step": ("step", _count_field), "attempt": ("attempt", _count_field),
                              "time": ("time", _seconds_field), "kept": ("kept", _optional_field(_count_field))}),
    "stop": (Stop, {"attempt": ("attempt", _count_field), "signal": ("signal", _signal_field), "grace": ("grace", _seconds_field),
                    "rank": ("rank", _optional_field(_count_field)),
                    "checkpointDir": ("checkpoint_dir", _optional_field(_path_field))}),
    "start": (Start, {"attempt": ("attempt", _count_field), "env": ("env", _env_field)}),
    "checkpoint": (Checkpoint, {"deadline": ("deadline", _seconds_field), "signal": ("signal", _optional_field(_signal_field)),
                                "step": ("step", _count_field)}),
    "fence": (Fence, {}),
    "end": (End, {"grace": ("grace", _seconds_field)}),
    "vouch": (Vouch, {"seconds": ("seconds", _optional_field(_seconds_field)), "manager": ("manager", _text_field),
                      "at": ("at", _optional_field(_seconds_field))}),
}  # fmt: skip
_NAMES = {cls: name for name, (cls, _) in _MESSAGES.items()}


def _read_message_fields(
    what: str, cls: type[SmallRecord], spec: "dict[str, tuple[str, Callable[[object], Any]]]", data: "dict[str, Any]"
) -> "dict[str, Any]":
    values = {}
    for wire, (attribute, check) in spec.items():
        if wire in data:
            try:
                values[attribute] = check(data[wire])
            except ValueError as error:
                raise ProtocolError("BadField", f"{what}: {wire} {error}.") from None
        elif not hasattr(cls, attribute):
            raise ProtocolError("MissingField", f"{what}: {wire} is missing.")
    return values


def _message_object(what: str, line: bytes) -> "dict[str, Any]":
    try:
        data = jsonline.parse_json_line(line)
    except ValueError as error:
        raise ProtocolError("NotJSON", f"{what} is not one line of JSON: {error}.") from None
    if not isinstance(data, dict):
        raise ProtocolError("NotAnObject", f"{what} must be a JSON object.")
    return data


def encode_launch_message(message: Message) -> bytes:
    """One line, newline included."""
    kind = _NAMES[type(message)]
    values = message.__dict__
    data: dict[str, object] = {"type": kind}
    for wire, (attribute, _) in _MESSAGES[kind][1].items():
        data[wire] = values[attribute]
    line = jsonline.encode_launch_json_line(data).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES + 1:
        raise ProtocolError("LineTooLong", f"{kind} takes {len(line)} bytes; a line holds at most {MAX_LINE_BYTES}.")
    return line


def decode_launch_message(line: bytes) -> Message | None:
    """The message of one line; None when its type is not known here. Raises ProtocolError."""
    data = _message_object("the message", line)
    kind = data.get("type")
    if not isinstance(kind, str):
        raise ProtocolError("MissingField", "the message: type is missing.")
    if kind not in _MESSAGES:
        return None
    cls, spec = _MESSAGES[kind]
    message: Message = cls(**_read_message_fields(kind, cls, spec, data))  # type: ignore[assignment]
    return message


def decode_user_process_progress(data: bytes) -> Progress:
    """A report of user code (datagram or progress file). Raises ProtocolError."""
    return Progress(
        **_read_message_fields("the progress report", Progress, _PROGRESS, _message_object("the progress report", data))
    )


class MessageLineReader:
    """Cuts a byte stream into lines; yields the complete ones, then raises ProtocolError once a line is too long."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, data: bytes) -> "Iterator[bytes]":
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._check(line)
            if line.strip():
                yield line
        self._check(self._rest)

    def _check(self, line: bytes) -> None:
        if len(line) > self._limit:
            raise ProtocolError("LineTooLong", f"a line holds at most {self._limit} bytes; closing the connection.")
