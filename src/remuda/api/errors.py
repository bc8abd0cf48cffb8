"""What went wrong, in the words a user gets: `Refusal` for a decision, `ApiError` for an answer of the API.

A refusal is a stable CamelCase reason, one human sentence, and the smallest change that would admit the request. The same
three go to conditions, events, the CLI and the dashboard, so they are made once, here.
"""

from __future__ import annotations

import msgspec


class Refusal(Exception):
    """A request that cannot be granted, with the reason and the fix."""

    def __init__(self, reason: str, message: str, fix: str = "", field: str = "") -> None:
        super().__init__(f"{reason}: {message}" + (f" {fix}" if fix else ""))
        self.reason = reason
        self.message = message
        self.fix = fix
        self.field = field


class StatusCause(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One field that was wrong: Kubernetes' word for how, the sentence, and the path."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str = ""
    kind: str = ""
    group: str = ""
    causes: list[StatusCause] = []
    retry_after_seconds: int = 0
    uid: str = ""


class Status(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The body of an error answer, as Kubernetes writes it."""

    api_version: str = "v1"
    kind: str = "Status"
    status: str = "Failure"
    message: str = ""
    reason: str = ""
    code: int = 500
    details: StatusDetails | None = None


class ApiError(Exception):
    """An error answer of the API; `reason` is Kubernetes' machine word, `code` the HTTP status."""

    code = 500
    reason = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        code: int | None = None,
        fix: str = "",
        details: StatusDetails | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.details = details
        if reason is not None:
            self.reason = reason
        if code is not None:
            self.code = code

    @property
    def is_refusal(self) -> bool:
        """Forbidden or invalid: the same write is refused again until somebody changes something."""
        return self.code in (403, 422)

    def as_status(self) -> Status:
        return Status(message=self.message, reason=self.reason, code=self.code, details=self.details)


class NotFound(ApiError):
    """An object is not there, or the path is nobody's: of a kind that is not served, or of a server in between."""

    code, reason = 404, "NotFound"

    def is_about_object(self, plural: str, group: str, name: str) -> bool:
        """Whether the server says that it serves the kind and has no object of that name."""
        said = self.details
        return said is not None and (said.kind, said.group, said.name) == (plural, group, name)


class AlreadyExists(ApiError):
    code, reason = 409, "AlreadyExists"


class Conflict(ApiError):
    code, reason = 409, "Conflict"


class Invalid(ApiError):
    code, reason = 422, "Invalid"


class BadRequest(ApiError):
    code, reason = 400, "BadRequest"


class Expired(ApiError):
    """The watch history no longer reaches back that far: list again."""

    code, reason = 410, "Expired"


class TooManyRequests(ApiError):
    """Turned away for now: the server is busy, or a PodDisruptionBudget does not allow an eviction."""

    code, reason = 429, "TooManyRequests"


class Unavailable(ApiError):
    code, reason = 503, "ServiceUnavailable"


_BY_REASON: dict[str, type[ApiError]] = {
    cls.reason: cls for cls in (NotFound, AlreadyExists, Conflict, Invalid, BadRequest, Expired, Unavailable)
}


def api_error_from_status(status: Status) -> ApiError:
    """The exception an error answer stands for, so that both transports raise the same."""
    cls = _BY_REASON.get(status.reason, ApiError)
    return cls(status.message, reason=status.reason or None, code=status.code, details=status.details)
