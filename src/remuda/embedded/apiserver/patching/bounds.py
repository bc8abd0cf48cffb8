"""Limits that keep a small request from costing a lot, and what exceeding them is answered with."""

from __future__ import annotations

from typing import Any, Final

from remuda.api.errors import ApiError, BadRequest

MAX_DEPTH: Final = 200  # every walk over a body is recursive; Kubernetes' own kinds stay below 40
MAX_OPERATIONS: Final = 10_000
CONTAINERS: Final = (dict, list)  # isinstance with a union type is four times slower, and these walks are hot
MAX_COPIED: Final = 3 * 1024 * 1024  # bytes of JSON; each `copy` of a JSON patch could double the document


class PatchTooLarge(ApiError):
    code, reason = 413, "RequestEntityTooLarge"


def check_nesting_depth(value: Any, above: int = 0) -> None:
    """Refuse a value that is nested too deeply, or would be where it has `above` levels over it.

    Level by level, because a bomb would exhaust the stack of a recursive look.
    """
    level: list[Any] = [value] if isinstance(value, CONTAINERS) else []
    for _ in range(MAX_DEPTH + 1 - above):
        level = [
            below
            for each in level
            for below in (each.values() if isinstance(each, dict) else each)
            if isinstance(below, CONTAINERS)
        ]
        if not level:
            return
    raise BadRequest(f"the body is nested more than {MAX_DEPTH} levels deep; flatten it")
