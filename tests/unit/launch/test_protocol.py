import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remuda.api import number_bounds
from remuda.launch import protocol
from remuda.launch.protocol import (
    Message,
    MessageLineReader,
    Progress,
    ProtocolError,
    decode_launch_message,
    decode_user_process_progress,
    encode_launch_message,
)

# A busy machine is no failure of the code.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
EVERY_MESSAGE: list[tuple[Message, dict[str, Any]]] = [
    (
        protocol.Hello("p-0", "u1", 7, "running", 3, floor=4),
        {
            "type": "hello", "version": 1, "pod": "p-0", "uid": "u1", "pid": 7, "state": "running", "attempt": 3,
            "floor": 4,
        },
    ),
    (
        protocol.Ready(2, (30, 20), (40,), (60, 50), "/ckpt/rank-1: Input/output error"),
        {
            "type": "ready", "attempt": 2, "checkpoints": [30, 20], "corrupt": [40], "abandoned": [60, 50],
            "unreadable": "/ckpt/rank-1: Input/output error",
        },
    ),
    (protocol.Running(2, 99, 5.5), {"type": "running", "attempt": 2, "pid": 99, "time": 5.5}),
    (
        protocol.Exited(2, 137, 9, 6.5, "killed by SIGKILL", "last words"),
        {
            "type": "exited", "attempt": 2, "code": 137, "signal": 9, "time": 6.5, "message": "killed by SIGKILL",
            "tail": "last words",
        },
    ),
    (
        protocol.Heartbeat(2, 41, 0.5, 0.25, 40, 1.5, 7.5, 900, 40),
        {
            "type": "heartbeat", "attempt": 2, "step": 41, "stepTime": 0.5, "selfTime": 0.25, "checkpoint": 40,
            "checkpointTime": 1.5, "time": 7.5, "totalSteps": 900, "kept": 40,
        },
    ),
    (
        protocol.Stop(3, "TERM", 2.0, 5, "/ckpt"),
        {"type": "stop", "attempt": 3, "signal": "TERM", "grace": 2.0, "rank": 5, "checkpointDir": "/ckpt"},
    ),
    (protocol.Start(3, {"RANK": "5"}), {"type": "start", "attempt": 3, "env": {"RANK": "5"}}),
    (protocol.Checkpoint(9.5, "USR1", 7), {"type": "checkpoint", "deadline": 9.5, "signal": "USR1", "step": 7}),
    (protocol.Fence(), {"type": "fence"}),
    (
        protocol.Vouch(7.25, "/s/link.sock", 981.5),
        {"type": "vouch", "seconds": 7.25, "manager": "/s/link.sock", "at": 981.5},
    ),
    (protocol.Vouch(None), {"type": "vouch", "seconds": None, "manager": "", "at": None}),
    (protocol.End(3.5), {"type": "end", "grace": 3.5}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "wire"), EVERY_MESSAGE, ids=lambda value: type(value).__name__)
def test_messages_on_the_wire(message: Message, wire: dict[str, Any]) -> None:
    line = encode_launch_message(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == wire
    assert decode_launch_message(line) == message


@pytest.mark.parametrize(("message", "wire"), EVERY_MESSAGE, ids=lambda value: type(value).__name__)
def test_unknown_fields_are_ignored(message: Message, wire: dict[str, Any]) -> None:
    assert decode_launch_message(json.dumps({**wire, "later": {"x": [1]}}).encode()) == message


def test_unknown_types_are_ignored() -> None:
    assert decode_launch_message(b'{"type":"dance","attempt":"?"}') is None


def test_fields_with_a_default_may_be_left_out() -> None:
    assert decode_launch_message(b'{"type":"stop","attempt":4}') == protocol.Stop(4, "TERM", 2.0, None, None)
    assert decode_launch_message(b'{"type":"checkpoint","deadline":1}') == protocol.Checkpoint(1.0, None)


def test_signal_names_may_carry_their_prefix() -> None:
    assert decode_launch_message(b'{"type":"stop","attempt":4,"signal":"SIGINT"}') == protocol.Stop(4, "INT")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "NotJSON"),
        (b"{", "NotJSON"),
        (b'{"type":"stop","attempt":1} x', "NotJSON"),
        (b"\xff\xfe", "NotJSON"),
        (b"[" * 60_000, "NotJSON"),
        (b'{"type":"stop","attempt":' + b"9" * 5000 + b"}", "NotJSON"),
        (b"[]", "NotAnObject"),
        (b"null", "NotAnObject"),
        (b"{}", "MissingField"),
        (b'{"type":5}', "MissingField"),
        (b'{"type":"stop"}', "MissingField"),
        (b'{"type":"start","attempt":1}', "MissingField"),
        (b'{"type":"vouch"}', "MissingField"),
        (b'{"type":"vouch","seconds":-1}', "BadField"),
        (b'{"type":"stop","attempt":"1"}', "BadField"),
        (b'{"type":"stop","attempt":true}', "BadField"),
        (b'{"type":"stop","attempt":-1}', "BadField"),
        (b'{"type":"stop","attempt":1.0}', "BadField"),
        (b'{"type":"stop","attempt":9223372036854775808}', "BadField"),
        (b'{"type":"stop","attempt":1000000000000001}', "BadField"),
        (b'{"type":"heartbeat","attempt":1,"step":1,"totalSteps":4611686018427387904}', "BadField"),
        (b'{"type":"heartbeat","attempt":1,"step":1,"stepTime":1e12}', "BadField"),
        (b'{"type":"heartbeat","attempt":1,"step":1,"time":1e14}', "BadField"),
        (b'{"type":"stop","attempt":1,"signal":"NOPE"}', "BadField"),
        (b'{"type":"stop","attempt":1,"signal":15}', "BadField"),
        (b'{"type":"stop","attempt":1,"grace":-0.5}', "BadField"),
        (b'{"type":"stop","attempt":1,"grace":1e999}', "BadField"),
        (b'{"type":"stop","attempt":1,"rank":-1}', "BadField"),
        (b'{"type":"stop","attempt":1,"checkpointDir":""}', "BadField"),
        (b'{"type":"start","attempt":1,"env":[]}', "BadField"),
        (b'{"type":"start","attempt":1,"env":{"A":1}}', "BadField"),
        (b'{"type":"start","attempt":1,"env":{"A=B":"1"}}', "BadField"),
        (b'{"type":"start","attempt":1,"env":{"":"1"}}', "BadField"),
        (b'{"type":"start","attempt":1,"env":{"A":"\\u0000"}}', "BadField"),
        (b'{"type":"start","attempt":1,"env":{"A":"\\ud800"}}', "BadField"),
        (b'{"type":"hello","pod":"p","uid":"u","pid":1,"attempt":0,"state":"asleep"}', "BadField"),
        (b'{"type":"ready","attempt":1,"checkpoints":[1,"2"]}', "BadField"),
        (b'{"type":"ready","attempt":1,"checkpoints":[' + b",".join([b"1"] * 17) + b"]}", "BadField"),
    ],
)
def test_malformed_messages_are_refused_with_a_reason(line: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_launch_message(line)
    assert caught.value.reason == reason
    assert caught.value.message.endswith(".")
    assert len(caught.value.message) < 300


def test_encode_refuses_what_no_line_can_hold() -> None:
    with pytest.raises(ProtocolError) as caught:
        encode_launch_message(protocol.Start(1, {"A": "x" * protocol.MAX_LINE_BYTES}))
    assert caught.value.reason == "LineTooLong"


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**64) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELD_NAMES = sorted({name for _, wire in EVERY_MESSAGE for name in wire} - {"type"})


@unhurried
@given(
    st.sampled_from([wire["type"] for _, wire in EVERY_MESSAGE]),
    st.dictionaries(st.sampled_from(FIELD_NAMES), JSON_LIKE),
)
def test_any_object_decodes_to_something_that_encodes_or_is_refused(kind: str, fields: dict[str, Any]) -> None:
    try:
        message = decode_launch_message(json.dumps({**fields, "type": kind}).encode())
    except ProtocolError:
        return
    assert message is not None
    assert decode_launch_message(encode_launch_message(message)) == message


@unhurried
@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for parse in (decode_launch_message, decode_user_process_progress):
        with contextlib.suppress(ProtocolError):  # and nothing else
            parse(data)


def test_progress_reports() -> None:
    assert decode_user_process_progress(b'{"step":3,"stepTime":0.5,"extra":1}\n') == Progress(3, 0.5)
    assert decode_user_process_progress(b'{"checkpoint":3,"checkpointTime":2,"attempt":4}') == Progress(
        None, None, None, 3, 2.0, attempt=4
    )
    with pytest.raises(ProtocolError, match="step must be a whole number"):
        decode_user_process_progress(b'{"step":3.5}')


@unhurried
@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_survive_any_cutting(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader = MessageLineReader()
    got: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.feed(stream[start:end])
    assert got == [line for line in lines if line.strip()]


def test_a_line_of_exactly_the_limit_passes_and_one_byte_more_does_not() -> None:
    reader = MessageLineReader(limit=10)
    assert list(reader.feed(b"x" * 10 + b"\n")) == [b"x" * 10]
    lines = reader.feed(b"ok\n" + b"x" * 11 + b"\n")
    assert next(lines) == b"ok"
    with pytest.raises(ProtocolError) as caught:
        next(lines)
    assert caught.value.reason == "LineTooLong"


def test_an_endless_line_is_noticed_before_its_end() -> None:
    reader = MessageLineReader(limit=10)
    assert list(reader.feed(b"xxxxxxx")) == []
    with pytest.raises(ProtocolError, match="LineTooLong"):
        list(reader.feed(b"xxxx"))


def test_the_bounds_are_those_of_everybody_else() -> None:
    assert (protocol.MAX_COUNT, protocol.MAX_SECONDS) == (number_bounds.MAX_COUNT, number_bounds.MAX_SECONDS)


def test_a_total_that_cannot_be_is_refused_in_a_progress_report() -> None:
    with pytest.raises(ProtocolError, match=r"BadField.*totalSteps must be a whole number from 0 to"):
        decode_user_process_progress(b'{"step":1,"totalSteps":4611686018427387904}')
