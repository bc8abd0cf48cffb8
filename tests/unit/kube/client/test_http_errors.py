"""What answers mean, when to ask again, how fast to ask, and where a line ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remuda.api.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Expired,
    Invalid,
    NotFound,
    Status,
    TooManyRequests,
    Unavailable,
)
from remuda.kube.client.http_errors import (
    Forbidden,
    Replaced,
    Unauthorized,
    api_error_of_answer,
    api_error_of_status,
    retry_after_s,
)
from remuda.kube.client.request_pacing import (
    Patience,
    Rate,
    RequestFailure,
    RequestTokenBucket,
    http_request_retry_wait,
)
from remuda.kube.client.rest_paths import HttpStreamLines
from remuda.kube.runtime.backoff import Backoff
from tests.builders.http_server import a_status

# Bodies as kube-apiserver 1.37 sends them.


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (a_status(404, "NotFound", 'pods "p" not found'), NotFound),
        (a_status(409, "AlreadyExists"), AlreadyExists),
        (a_status(409, "Conflict"), Conflict),
        (a_status(422, "Invalid"), Invalid),
        (a_status(400, "BadRequest"), BadRequest),
        (a_status(401, "Unauthorized"), Unauthorized),
        (a_status(403, "Forbidden"), Forbidden),
        (a_status(410, "Expired"), Expired),
        (a_status(410, "Gone"), Expired),
        (a_status(429, "TooManyRequests"), TooManyRequests),
        (a_status(503, "ServiceUnavailable"), Unavailable),
        (a_status(500, "InternalError"), ApiError),
        (a_status(500), ApiError),
        (a_status(504, "Timeout"), ApiError),
        (
            a_status(504, "Timeout", details={"causes": [{"reason": "ResourceVersionTooLarge", "message": "m"}]}),
            Expired,
        ),
        (
            a_status(422, "Invalid", details={"causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]}),
            Replaced,
        ),
    ],
)
def test_a_status_is_the_exception_it_stands_for(body: dict[str, Any], error: type[ApiError]) -> None:
    found = api_error_of_answer(body["code"], json.dumps(body).encode())
    assert type(found) is error
    assert body["message"] in found.message
    assert found.code in (body["code"], error.code)


@pytest.mark.parametrize(
    ("code", "body", "error"),
    [
        (404, b"404 page not found\n", NotFound),
        (401, b"", Unauthorized),
        (410, b"gone", Expired),
        (502, b"<html>\n<h1>Bad gateway</h1></html>", Unavailable),
        (503, b"", Unavailable),
        (418, b"teapot", ApiError),
        (500, b'{"error": "not a status"}', ApiError),
        (307, b"", ApiError),
    ],
)
def test_a_body_that_is_no_status_is_judged_by_its_code(code: int, body: bytes, error: type[ApiError]) -> None:
    found = api_error_of_answer(code, body)
    assert type(found) is error
    assert found.code == code
    assert f"the API answered {code}" in found.message
    assert "\n" not in found.message


def test_whoever_is_forbidden_is_told_what_to_do() -> None:
    assert "Role" in api_error_of_answer(403, b"").fix


def test_an_error_inside_a_watch_has_only_its_own_code() -> None:
    assert isinstance(api_error_of_status(Status(code=410, reason="Expired", message="too old")), Expired)
    assert isinstance(api_error_of_status(Status(code=410, reason="Gone", message="too old")), Expired)


@pytest.mark.parametrize(
    ("code", "text", "seconds"),
    [
        (429, "3", 3.0),
        (503, "0", 0.0),
        (500, "1", 1.0),
        (504, " 1 ", 1.0),
        (409, "3", None),
        (200, "3", None),
        (429, "", None),
        (429, "Wed, 21 Oct 2026 07:28:00 GMT", None),
        (429, "-1", None),
        (429, "²", None),
    ],
)
def test_retry_after(code: int, text: str, seconds: float | None) -> None:
    assert retry_after_s(code, {"Retry-After": text} if text else {}) == seconds


# Patience.

PATIENCE = Patience(tries=3, waits=5, longest_s=30.0, backoff=Backoff(base_s=1.0, max_s=8.0))


def wait(failure: RequestFailure, failures: int, *, is_read: bool = False, jitter: float = 0.0) -> float | None:
    return http_request_retry_wait(PATIENCE, failure, failures, is_read=is_read, jitter=lambda: jitter)


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_asks_for_time_gets_it_whatever_the_request(code: int, is_read: bool) -> None:
    assert wait(RequestFailure(code, 20.0), 1, is_read=is_read) == 20.0
    assert wait(RequestFailure(code, 20.0), 1, is_read=is_read, jitter=0.5) == 25.0  # never earlier than it says
    assert wait(RequestFailure(code, 0.0), 3, is_read=is_read) == 4.0  # and never faster than our own back-off
    assert wait(RequestFailure(code, 20.0), 5, is_read=is_read) is not None
    assert wait(RequestFailure(code, 20.0), 6, is_read=is_read) is None
    assert wait(RequestFailure(code, 31.0), 1, is_read=is_read) is None


def test_only_a_read_is_repeated_when_nobody_knows_what_happened() -> None:
    assert [wait(RequestFailure(), n, is_read=True) for n in (1, 2, 3)] == [1.0, 2.0, None]
    assert [wait(RequestFailure(503), n, is_read=True) for n in (1, 2, 3)] == [1.0, 2.0, None]
    assert wait(RequestFailure(), 1) is None
    assert wait(RequestFailure(503), 1) is None


def test_a_request_that_was_turned_away_is_repeated() -> None:
    assert wait(RequestFailure(429), 1) == 1.0
    assert wait(RequestFailure(429), 6) is None


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 410, 422, 500])
def test_an_answer_that_will_not_change_is_final(code: int) -> None:
    assert wait(RequestFailure(code), 1, is_read=True) is None


# The rate limit.


def test_a_burst_goes_at_once_and_the_rest_in_step() -> None:
    bucket = RequestTokenBucket(Rate(per_s=10.0, burst=3))
    waits = [bucket.reserve(100.0) for _ in range(6)]
    assert waits == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2, 0.3])


def test_the_bucket_fills_again_up_to_the_burst() -> None:
    bucket = RequestTokenBucket(Rate(per_s=10.0, burst=3))
    for _ in range(3):
        bucket.reserve(0.0)
    assert bucket.reserve(0.1) == pytest.approx(0.0)
    assert bucket.reserve(0.1) == pytest.approx(0.1)
    waits = [bucket.reserve(1_000.0) for _ in range(4)]
    assert waits == pytest.approx([0.0, 0.0, 0.0, 0.1])


def test_an_unused_token_goes_back() -> None:
    bucket = RequestTokenBucket(Rate(per_s=1.0, burst=1))
    bucket.reserve(0.0)
    assert bucket.reserve(0.0) == pytest.approx(1.0)
    bucket.give_back()
    assert bucket.reserve(0.0) == pytest.approx(1.0)


def test_over_any_time_no_more_than_the_rate_goes() -> None:
    bucket = RequestTokenBucket(Rate(per_s=50.0, burst=5))
    went = sorted(now / 1000 + bucket.reserve(now / 1000) for now in range(2_000))
    for first in range(0, len(went) - 100, 7):
        assert went[first + 100] - went[first] >= (100 - 5) / 50.0 - 1e-9


@pytest.mark.parametrize(("per_s", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_a_rate_that_is_none_is_refused(per_s: float, burst: int) -> None:
    with pytest.raises(ValueError, match="a rate needs"):
        Rate(per_s, burst)


# Lines.


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_come_whole_however_they_are_cut(size: int) -> None:
    text = b'{"a":1}\n\n{"b":2}\n{"c":"\\n"}\nrest'
    lines, found = HttpStreamLines(), []
    for start in range(0, len(text), size):
        found += lines.feed(text[start : start + size])
    assert found == [b'{"a":1}', b'{"b":2}', b'{"c":"\\n"}']
    assert lines.feed(b"\n") == [b"rest"]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    lines = HttpStreamLines(limit=100)
    lines.feed(b"x" * 60 + b"\n" + b"y" * 60)
    with pytest.raises(ApiError, match="more than 100 bytes"):
        lines.feed(b"y" * 60)
