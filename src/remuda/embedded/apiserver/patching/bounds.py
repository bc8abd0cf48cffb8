"""Limits that keep a small request from costing a lot, and what exceeding them is answered with.

A body is bounded three ways: its depth, because every walk over it is recursive; its values, because every walk visits them; and
the length of the paths to them, because messages and sets of fields spell paths out. What a request makes of a body that is there
already is paid from a `WorkBudget`, in steps: a value visited, a list's item looked at or moved.
"""

from __future__ import annotations

from typing import Any, Final

from remuda.api.errors import ApiError, BadRequest

MAX_DEPTH: Final = 200  # Kubernetes' own kinds stay below 40
MAX_VALUES: Final = 200_000  # of an object; a definition of a custom kind with a megabyte of schema has 50,000
MAX_PATH_BYTES: Final = 64 * 1024 * 1024  # of all paths together; those of 200,000 values in a deep object have 20 MB
MAX_OPERATIONS: Final = 10_000
CONTAINERS: Final = (dict, list)  # isinstance with a union type is four times slower, and these walks are hot
MAX_COPIED: Final = 3 * 1024 * 1024  # bytes of JSON; each `copy` of a JSON patch could double the document
MAX_STEPS: Final = 500_000  # half a second, at worst


class BodyTooLarge(ApiError):
    code, reason = 413, "RequestEntityTooLarge"


class WorkBudget:
    """How many steps a request may still take."""

    __slots__ = ("_fix", "left")

    def __init__(self, fix: str, steps: int = MAX_STEPS) -> None:
        self._fix = fix
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise BodyTooLarge(f"the request takes more than {MAX_STEPS} steps; {self._fix}")


def check_body_bounds(value: Any) -> None:
    """Refuse a value that is nested too deeply, has too many values, or names so long that their paths cannot be written.

    Level by level, because a bomb would exhaust the stack of a recursive look.
    """
    level: list[tuple[Any, int]] = [(value, 0)] if isinstance(value, CONTAINERS) else []
    values = spelt = 0
    for _ in range(MAX_DEPTH + 1):
        below: list[tuple[Any, int]] = []
        for each, path in level:
            values += len(each)
            spelt += len(each) * (path + 8)
            if isinstance(each, dict):
                for name, of in each.items():
                    spelt += len(name)
                    if isinstance(of, CONTAINERS):
                        below.append((of, path + len(name)))
            else:
                below.extend((of, path + 8) for of in each if isinstance(of, CONTAINERS))
        if values > MAX_VALUES:
            raise BodyTooLarge(f"the object has more than {MAX_VALUES} values; make several objects of it")
        if spelt > MAX_PATH_BYTES:
            raise BodyTooLarge("the names in the object are too long for so many values below them; shorten them")
        if not below:
            return
        level = below
    raise BadRequest(f"the body is nested more than {MAX_DEPTH} levels deep; flatten it")
