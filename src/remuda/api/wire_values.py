"""Reading wire values of which nobody has checked the types yet: a wrong type reads as empty.

Defaults and plug-ins run before the validators, who then refuse the value by its path.
"""

from __future__ import annotations

from typing import Any

from remuda.api.meta import JsonObject


def as_map(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def maps(value: Any) -> list[JsonObject]:
    """The objects in a list of them."""
    return [item for item in as_list(value) if isinstance(item, dict)]
