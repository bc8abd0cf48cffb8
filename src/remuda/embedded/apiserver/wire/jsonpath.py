"""The part of Kubernetes' JSONPath that printer columns use: `.a.b`, `['a']`, `[0]`, `[*]`, `[?(@.type=="Ready")]`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_STEP = re.compile(
    r"""\.(?P<name>(?:[^.\[\\]|\\.)+)
      | \[(?P<index>-?\d+)\]
      | \[(?P<all>\*)\]
      | \[(['"])(?P<quoted>.*?)\4\]
      | \[\?\(@\.(?P<field>[\w.]+)\s*(?P<op>==|!=)\s*(['"]?)(?P<value>.*?)\8\)\]
    """,
    re.VERBOSE,
)

PathStep = Callable[[Any], list[Any]]


@lru_cache(maxsize=1024)
def compile_jsonpath(path: str) -> tuple[PathStep, ...] | None:
    """The steps of a path, None when it is not one that is understood here."""
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    steps: list[PathStep] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            return None
        position = match.end()
        steps.append(_jsonpath_step(match))
    return tuple(steps)


def find_by_jsonpath(body: Any, path: str) -> list[Any]:
    """Every value at the path; empty when there is none or the path is not understood."""
    steps = compile_jsonpath(path)
    found = [] if steps is None else [body]
    for step in steps or ():
        found = [value for each in found for value in step(each)]
    return found


def _jsonpath_step(match: re.Match[str]) -> PathStep:
    if match["name"] is not None:
        return _field_step(match["name"].replace("\\", ""))
    if match["quoted"] is not None:
        return _field_step(match["quoted"])
    if match["index"] is not None:
        index = int(match["index"])
        return lambda value: [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []
    if match["all"]:
        return lambda value: list(value) if isinstance(value, list) else []
    names, wanted, is_equal = match["field"].split("."), match["value"], match["op"] == "=="

    def chosen(value: Any) -> list[Any]:
        return (
            [v for v in value if (_jsonpath_text(_value_below(v, names)) == wanted) is is_equal]
            if isinstance(value, list)
            else []
        )

    return chosen


def _field_step(name: str) -> PathStep:
    if name == "*":
        return lambda value: list(value.values()) if isinstance(value, dict) else []
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _value_below(value: Any, names: list[str]) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _jsonpath_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
