"""What agents tell the manager beside the API, and how it is reduced. Pure: messages, limits and the outbox.

One stream per node, one JSON object a line. Upwards go heartbeats and signals, reduced per node: of a pod's heartbeats only the
newest matters (but a checkpoint once reported is never dropped), of a device's signals every kind once per batch. Everything
that recovery needs is written to the API as well; the stream only makes it known sooner, and losing it loses nothing. A stream
that opens tells first what the agent remembers of its pods' last steps, one pod a line: the manager may be a new one.

An agent that cannot reach the API asks here whether its ranks stay its own, and the manager that leads says for how long it will
hand nothing on (`core.health.fence_bounds`). The answer names the question: a late one is worth nothing. Here it also gets what
it needs to ask its peers when neither API nor manager can be reached: a certificate of its own, and where they listen. When one
of these has moved the manager says so unasked, by an empty answer with the number `ASK_AGAIN`; older agents do not look at it.

    agent -> manager   hello{node, token, version}, then news{beats, signals, past}, ask{id} and ask-peers{id, csr, host, port}
    manager -> agent   welcome{promises, peers} | refused{reason, message, fix}, then promise{id, seconds} and peers{id, ...}
"""

from __future__ import annotations

import msgspec

from remuda.api.devices import Signal
from remuda.api.errors import Refusal
from remuda.core.health.peer_vouching import PeerPlace
from remuda.link.progress_board import Heartbeat, PodPast

VERSION = 1
MAX_LINE = 1 << 20
MAX_WAITING = 4096  # entries an outbox keeps while the manager is away: bounded whatever the node does
ASK_AGAIN = 0  # the number of no question
MAX_BATCH = 1024  # of each kind in one message: keeps a line far below its limit


class LinkHello(msgspec.Struct, frozen=True, tag_field="type", tag="hello"):
    node: str
    token: str
    version: int = VERSION


class DeviceSignal(msgspec.Struct, frozen=True):
    """`device` is "" for a signal of the node as a whole."""

    device: str
    signal: Signal


class LinkNews(msgspec.Struct, frozen=True, tag_field="type", tag="news", omit_defaults=True):
    beats: list[Heartbeat] = []
    signals: list[DeviceSignal] = []
    past: list[PodPast] = []  # before anything else; a manager of an older release does not look at it


class LinkAsk(msgspec.Struct, frozen=True, tag_field="type", tag="ask"):
    id: int


class LinkAskPeers(msgspec.Struct, frozen=True, tag_field="type", tag="ask-peers"):
    """`csr`: of the key of its certificate; nothing else in it is believed. `host`, `port`: where it answers peers."""

    id: int
    csr: str
    host: str
    port: int


class LinkWelcome(msgspec.Struct, frozen=True, tag_field="type", tag="welcome"):
    version: int = VERSION
    promises: bool = False  # a manager of an older release knows no ask
    peers: bool = False  # nor ask-peers


class LinkPromise(msgspec.Struct, frozen=True, tag_field="type", tag="promise"):
    """`seconds` 0: nothing is promised."""

    id: int
    seconds: float


class LinkPeers(msgspec.Struct, frozen=True, tag_field="type", tag="peers"):
    """`seconds`: how long after its last renewal the node may run on their words. `error`: why there is no certificate."""

    id: int
    certificate: str = ""
    ca: str = ""
    peers: tuple[PeerPlace, ...] = ()
    seconds: float = 0.0
    error: str = ""
    apart: tuple[str, ...] = ()  # of the peers, those in another failure domain than the node itself


class LinkRefused(msgspec.Struct, frozen=True, tag_field="type", tag="refused"):
    reason: str
    message: str
    fix: str = ""


Upward = LinkHello | LinkNews | LinkAsk | LinkAskPeers
Downward = LinkWelcome | LinkRefused | LinkPromise | LinkPeers

_UPWARD: msgspec.json.Decoder[LinkHello | LinkNews | LinkAsk | LinkAskPeers] = msgspec.json.Decoder(Upward)
_DOWNWARD: msgspec.json.Decoder[LinkWelcome | LinkRefused | LinkPromise | LinkPeers] = msgspec.json.Decoder(Downward)
_ENCODER = msgspec.json.Encoder()


def link_message_line(message: Upward | Downward) -> bytes:
    return _ENCODER.encode(message) + b"\n"


def read_upward_link_message(line: bytes) -> LinkHello | LinkNews | LinkAsk | LinkAskPeers:
    try:
        return _UPWARD.decode(line)
    except msgspec.DecodeError as error:
        raise _malformed_link_line(error) from None


def read_downward_link_message(line: bytes) -> LinkWelcome | LinkRefused | LinkPromise | LinkPeers:
    try:
        return _DOWNWARD.decode(line)
    except msgspec.DecodeError as error:
        raise _malformed_link_line(error) from None


def _malformed_link_line(error: Exception) -> Refusal:
    return Refusal(
        "MalformedMessage", f"A line of the stream cannot be read: {error}.", "Use an agent of the same release."
    )


class LinkOutbox:
    """What one node still has to tell. Newest wins; full, it drops the oldest signals first: the API has them too."""

    def __init__(self) -> None:
        self._beats: dict[str, Heartbeat] = {}
        self._signals: dict[tuple[str, str, str], DeviceSignal] = {}
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._beats or self._signals)

    def beat(self, beat: Heartbeat) -> None:
        old = self._beats.get(beat.uid)
        if old is not None and old.attempt == beat.attempt and beat.checkpoint is None:
            beat = msgspec.structs.replace(beat, checkpoint=old.checkpoint, checkpoint_seconds=old.checkpoint_seconds)
        if old is None and len(self._beats) >= MAX_WAITING:
            self.dropped += 1
            return
        self._beats[beat.uid] = beat

    def signal(self, device: str, signal: Signal) -> None:
        key = (device, signal.source, signal.code)
        self._signals.pop(key, None)  # its place is by its newest time: a fault and what takes it back keep their order
        self._signals[key] = DeviceSignal(device, signal)
        while len(self._signals) > MAX_WAITING:
            del self._signals[next(iter(self._signals))]
            self.dropped += 1

    def take(self) -> LinkNews | None:
        """The next message, taken out; None when there is nothing to tell."""
        if not self:
            return None
        beats = list(self._beats.values())[:MAX_BATCH]
        keys = list(self._signals)[:MAX_BATCH]
        for beat in beats:
            del self._beats[beat.uid]
        return LinkNews(beats, [self._signals.pop(key) for key in keys])
