"""What an HTTP answer means: the exception it stands for, and whether the server asks for patience. Pure.

A Kubernetes API answers errors with a Status body; a load balancer before it answers with whatever it likes, so the code
alone must be enough.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from remuda.api.codec import decode
from remuda.api.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Expired,
    Invalid,
    NotFound,
    Status,
    StatusCause,
    TooManyRequests,
    Unavailable,
    api_error_from_status,
)

_SHOWN = 200  # characters of a body that is not a Status


class Unauthorized(ApiError):
    """The API does not know us: no credentials, wrong ones, or ones that have run out."""

    code, reason = 401, "Unauthorized"


class Forbidden(ApiError):
    """The API knows us and does not let us."""

    code, reason = 403, "Forbidden"

    def __init__(self, message: str, *, fix: str = "", **rest: Any) -> None:
        super().__init__(message, fix=fix or "Grant it with a Role or ClusterRole and a binding.", **rest)


class Undecodable(ApiError):
    """An object that does not fit its kind: somebody wrote it past all checks, or our projection is wrong."""

    code, reason = 422, "Undecodable"


_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
# Of these a body's reason says less than (or something else than) the code: 410 is Gone or Expired, 401 is always the same.
_CODE_DECIDES = frozenset((401, 403, 410, 429))


def api_error_of_answer(code: int, body: bytes) -> ApiError:
    """The exception for an answer that is not a success."""
    try:
        answer = decode(Status, body)
    except msgspec.MsgspecError:
        text = " ".join(body[:_SHOWN].decode(errors="replace").split())
        return _BY_CODE.get(code, ApiError)(f"the API answered {code}" + (f": {text}" if text else ""), code=code)
    return api_error_of_status(msgspec.structs.replace(answer, code=code))


def api_error_of_status(answer: Status) -> ApiError:
    """The same for a Status that came inside a watch, where its own code is the only one."""
    message = answer.message or f"the API answered {answer.code}"
    if answer.code == 504 and is_status_caused_by(answer, "ResourceVersionTooLarge"):
        return Expired(f"{message}: the history was set back; list again")
    if answer.code in _CODE_DECIDES or not answer.reason:
        return _BY_CODE.get(answer.code, ApiError)(message, code=answer.code)
    if answer.code == 422 and any(cause.field == "metadata.uid" for cause in _status_causes(answer)):
        return Replaced(message)
    return api_error_from_status(answer)


class Replaced(Invalid):
    """A patch named another uid than the object has: for kube-apiserver an attempt to change a fixed field."""


def is_status_caused_by(answer: Status, reason: str) -> bool:
    return any(cause.reason == reason for cause in _status_causes(answer))


def _status_causes(answer: Status) -> list[StatusCause]:
    return answer.details.causes if answer.details is not None else []


def retry_after_s(code: int, headers: Mapping[str, str]) -> float | None:
    """How long the server asks us to stay away; None = it does not. Given in seconds; a date counts as not given."""
    if code != 429 and code < 500:
        return None
    text = headers.get("Retry-After", "").strip()
    return float(text) if text.isascii() and text.isdigit() else None


_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


def api_warning_of_answer_header(header: str) -> str:
    """What a Warning header of an API server says (`299 - "..."`); "" for one of another kind."""
    match = _WARNING.match(header)
    return re.sub(r"\\(.)", r"\1", match[1]) if match is not None else ""
