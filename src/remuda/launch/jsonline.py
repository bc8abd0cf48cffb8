"""JSON without `import json`.

Every training container starts a launcher, 64 of them together on a small machine. One start takes 14 ms of CPU (8 ms of them the
bare interpreter); `import json` adds 10 ms, nearly all of it for `re`, and 20 ms together with `dataclasses`. CPython's C scanner
and string escaper in `_json` do the real work and need none of that. Where `_json` is missing (other implementations) the
ordinary package is used; results are the same, which a test checks against `json` itself.

Only finite numbers are accepted in either direction: NaN and Infinity are not JSON.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _refuse_json_constant(name: str) -> "Any":
    raise ValueError(f"{name} is not JSON")


class _ScannerContext:
    """The options the C scanner reads from its argument."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse_json_constant)
    memo: "dict[str, str]" = {}


try:
    from _json import encode_basestring_ascii as _quote
    from _json import make_scanner as _make_scanner

    _scan: "Any" = _make_scanner(_ScannerContext())  # type: ignore[arg-type]
except ImportError:  # not CPython
    import json

    _scan = json.JSONDecoder(parse_constant=_refuse_json_constant).scan_once  # type: ignore[attr-defined]
    _quote = json.dumps


def parse_json_line(text: str | bytes) -> "Any":
    """Parse one JSON document; ValueError says what is wrong with it."""
    if not isinstance(text, str):
        text = str(text, "utf-8")
    text = text.strip(" \t\r\n")
    try:
        value, end = _scan(text, 0)
    except StopIteration as stop:
        raise ValueError(f"no JSON value at character {stop.value}") from None
    except SystemError:  # CPython 3.11 words its error with `json.decoder`, and gives up where that is not loaded
        raise ValueError("not well-formed JSON") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if end != len(text):
        raise ValueError(f"extra text after the JSON value at character {end}")
    return value


def encode_launch_json_line(value: object) -> str:
    """Render str, int, float, bool, None, and dicts, lists and tuples of them."""
    if isinstance(value, str):
        return _quote(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if value - value != 0.0:  # NaN and both infinities
            raise ValueError(f"{value} cannot be written as JSON")
        return float.__repr__(value)
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{_quote(str(key))}:{encode_launch_json_line(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(encode_launch_json_line, value)) + "]"
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
