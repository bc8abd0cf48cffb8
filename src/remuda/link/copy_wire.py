"""What nodes say to each other about copies of checkpoints, on the door where peers meet (`link.peer_door`).

    asker -> door   "copies\\n"
    door -> asker   "go\\n"
    asker -> door   one line of JSON: put | list | get
    put:   door -> asker   go, then the asker sends `size` bytes and the door answers kept{steps}; kept at once when it has it
    list:  door -> asker   has{marks, home}
    get:   door -> asker   sends, then `size - offset` bytes
    any:   door -> asker   refused{reason, message}

One question a connection. Lines are short; how many bytes follow is said before they come, and the digest of all of them, too.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TypeVar

import msgspec

VERB = b"copies\n"
GO = b"go\n"
MAX_LINE = 16 * 1024  # marks of MOST_COPIES steps are 2 KiB
CHUNK = 1 << 20
BUFFER = 2 << 20
MAX_COUNT = 10**15


class CopyMark(msgspec.Struct, frozen=True):
    """One checkpoint as its side file says it, and the attempt in which it was saved, or was last gone on from; 0 = not said."""

    step: int
    size: int
    sha256: str
    attempt: int


class AskPut(msgspec.Struct, frozen=True, tag_field="ask", tag="put"):
    namespace: str
    job: str
    uid: str
    rank: int
    mark: CopyMark


class AskList(msgspec.Struct, frozen=True, tag_field="ask", tag="list"):
    namespace: str
    job: str
    uid: str
    rank: int


class AskGet(msgspec.Struct, frozen=True, tag_field="ask", tag="get"):
    namespace: str
    job: str
    uid: str
    rank: int
    mark: CopyMark
    offset: int = 0


class SayGo(msgspec.Struct, frozen=True, tag_field="say", tag="go"):
    """Send it."""


class SayKept(msgspec.Struct, frozen=True, tag_field="say", tag="kept"):
    """It is on disk. The steps of the rank that are, each with its attempt."""

    steps: tuple[tuple[int, int], ...]


class SayHas(msgspec.Struct, frozen=True, tag_field="say", tag="has"):
    marks: tuple[CopyMark, ...]
    home: int = 0


class SaySends(msgspec.Struct, frozen=True, tag_field="say", tag="sends"):
    """The bytes follow."""


class SayRefused(msgspec.Struct, frozen=True, tag_field="say", tag="refused"):
    reason: str
    message: str


Ask = AskPut | AskList | AskGet
Say = SayGo | SayKept | SayHas | SaySends | SayRefused

_ASK: msgspec.json.Decoder[Ask] = msgspec.json.Decoder(Ask)
_SAY: msgspec.json.Decoder[Say] = msgspec.json.Decoder(Say)
_ENCODER = msgspec.json.Encoder()
S = TypeVar("S")


def copy_wire_line(message: Ask | Say) -> bytes:
    return _ENCODER.encode(message) + b"\n"


def read_copy_ask(line: bytes) -> Ask:
    """ValueError for anything else, and for numbers that cannot be."""
    ask = _decoded(_ASK, line)
    if not 0 <= ask.rank <= MAX_COUNT:
        raise ValueError("there is no such rank")
    if isinstance(ask, AskPut | AskGet) and not is_plausible_copy_wire_mark(ask.mark):
        raise ValueError("that is no checkpoint")
    if isinstance(ask, AskGet) and not 0 <= ask.offset <= ask.mark.size:
        raise ValueError("there is no such place in it")
    return ask


def read_copy_wire_say(line: bytes) -> Say:
    say = _decoded(_SAY, line)
    if isinstance(say, SayHas) and not all(map(is_plausible_copy_wire_mark, say.marks)):
        raise ValueError("those are no checkpoints")
    return say


def _decoded(decoder: msgspec.json.Decoder[S], line: bytes) -> S:
    try:
        return decoder.decode(line)
    except RecursionError:
        raise ValueError("that is nested too deeply") from None


def is_plausible_copy_wire_mark(mark: CopyMark) -> bool:
    counts = (mark.step, mark.size, mark.attempt)
    is_digest = len(mark.sha256) == 64 and set(mark.sha256) <= set("0123456789abcdef")
    return all(0 <= n <= MAX_COUNT for n in counts) and is_digest


async def widen_copy_wire_streams(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The same connection, with room for bulk: the door's own reader takes a short line and no more. Nothing may have been sent
    yet by the other side, which waits for `GO`."""
    loop = asyncio.get_running_loop()
    wide = asyncio.StreamReader(limit=BUFFER, loop=loop)
    protocol = asyncio.StreamReaderProtocol(wide, loop=loop)
    transport = writer.transport
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return wide, asyncio.StreamWriter(transport, protocol, wide, loop)


async def read_copy_line(reader: asyncio.StreamReader) -> bytes:
    """ConnectionError when it is too long to be one."""
    try:
        line = await reader.readline()
    except ValueError:
        raise ConnectionError("that was no answer") from None
    if len(line) > MAX_LINE:
        raise ConnectionError("that was no answer")
    return line


async def read_copy_wire_chunk(reader: asyncio.StreamReader, left: int, within_s: float) -> bytes:
    """The next of `left` bytes, a whole chunk unless they end: each is a way to a thread and back. ConnectionError when they end
    too soon, TimeoutError when they do not come."""
    async with asyncio.timeout(within_s):
        try:
            return await reader.readexactly(min(left, CHUNK))
        except asyncio.IncompleteReadError:
            raise ConnectionError("it ended too soon") from None


async def dial_copy_wire(
    node: str, host: str, port: int, tls: ssl.SSLContext, within_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """OSError, TimeoutError: it is not there, is not who it should be, or knows nothing of copies."""
    async with asyncio.timeout(within_s):
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=node, limit=BUFFER)
        except (ValueError, OverflowError) as error:  # a name or a port that there cannot be
            raise ConnectionError(f"{node} cannot be reached at {host!r:.100}: {error}") from error
        try:
            writer.write(VERB)
            await writer.drain()
            if await read_copy_line(reader) != GO:
                raise ConnectionError(f"{node} takes no questions about copies")
        except BaseException:
            writer.transport.abort()
            raise
    return reader, writer
