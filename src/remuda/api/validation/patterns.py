"""Regular expressions that users give: the `logPattern` of a failure rule, the `pattern` of a schema in a CRD. RE2 matches them.

A pattern comes from a user and meets text from a user, on the loop that serves everybody. RE2 needs time linear in the text,
whatever the two are, and its memory is bounded here. Its language is that of Go's regexp, which API servers use: no look-around
and no back-references, because they cannot be matched in linear time.

`re` is for patterns that stand in this source.
"""

from __future__ import annotations

from typing import Any

import re2

MAX_LOG_PATTERN = 256  # characters
MAX_LOG_TEXT = 4096  # characters that are looked at: the last ones
MAX_SCHEMA_PATTERN = 16_384  # characters

SYNTAX = "https://github.com/google/re2/wiki/Syntax"

# As Go's regexp says what RE2 says in other words.
_IN_GO: dict[str, str] = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "pattern too large - compile failed": "expression too large",
    "trailing \\": "trailing backslash at end of expression",
}


class BadPattern(ValueError):
    """RE2 cannot match the pattern; the message says why, in the words of Go's regexp."""


def _re2_options(max_memory: int) -> Any:
    options = re2.Options()
    options.max_mem = max_memory  # of one compiled pattern with its caches; `re2` keeps the 128 used last
    options.log_errors = False
    options.never_capture = True
    return options


_LOG_OPTIONS = _re2_options(1 << 20)
_SCHEMA_OPTIONS = _re2_options(8 << 20)


def check_log_pattern(pattern: str) -> None:
    """Raises BadPattern."""
    _compile_log_pattern(pattern)


def is_in_log(pattern: str, text: str) -> bool:
    """Whether the pattern occurs in the end of the text. `^` and `$` are the ends of a line."""
    return _is_found(_compile_log_pattern(pattern), text[-MAX_LOG_TEXT:])


def check_schema_pattern(pattern: str) -> None:
    """Raises BadPattern."""
    _compile_schema_pattern(pattern)


def fits_schema_pattern(pattern: str, value: str) -> bool:
    """As an API server matches: anywhere in the value; `^` and `$` are its two ends. Raises BadPattern."""
    return _is_found(_compile_schema_pattern(pattern), value)


def _compile_log_pattern(pattern: str) -> Any:
    return _compile_pattern(pattern, MAX_LOG_PATTERN, _LOG_OPTIONS, flags="(?m)")


def _compile_schema_pattern(pattern: str) -> Any:
    return _compile_pattern(pattern, MAX_SCHEMA_PATTERN, _SCHEMA_OPTIONS)


def _compile_pattern(pattern: str, longest: int, options: Any, flags: str = "") -> Any:
    if len(pattern) > longest:
        raise BadPattern(f"it has {len(pattern)} characters (limit {longest})")
    try:
        return re2.compile(f"{flags}{pattern}".encode(errors="replace"), options)
    except re2.error as bad:
        what, _, where = bad.args[0].decode(errors="replace").partition(": ")
        part = where.removeprefix(flags)
        raise BadPattern(_IN_GO.get(what, what) + (f": `{part}`" if part else "")) from None


def _is_found(compiled: Any, text: str) -> bool:
    return compiled.search(text.encode(errors="replace")) is not None
