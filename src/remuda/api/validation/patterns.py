r"""Regular expressions that users give: the `logPattern` of a failure rule, the `pattern` of a schema in a CRD. RE2 matches them.

A pattern comes from a user and meets text from a user, on the loop that serves everybody. RE2 needs time linear in the text,
whatever the two are, and its memory is bounded here. Its language is that of Go's regexp, which API servers use: no look-around
and no back-references, because they cannot be matched in linear time.

Linear is not free. RE2 compiles counts side by side (`\d{1,1000}\d{1,1000}`) in time that grows with the square of their sum,
so that sum is bounded before it is asked to. Where its tables do not fit into memory, a match costs the length of the text
times the size of the program: `validation_pattern_price` says so beforehand, for the caller to judge.

`re` is for patterns that stand in this source.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import re2

MAX_LOG_PATTERN = 256  # characters
MAX_LOG_TEXT = 4096  # characters that are looked at: the last ones
MAX_SCHEMA_PATTERN = 16_384  # characters
MAX_REPEATS = 2_000  # the sum of a pattern's counts; `?`, `*` and `+` are one each

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
_SCHEMA_OPTIONS = _re2_options(2 << 20)
_MOST_OF_ONE = 1_000
_REPEATS = re.compile(r"\{(\d{1,4})(?:,(\d{0,4}))?\}|[?*+]")


def check_log_pattern(pattern: str) -> None:
    """Raises BadPattern."""
    _compile_log_pattern(pattern)


def matches_validated_log_pattern(pattern: str, text: str) -> bool:
    """Whether the pattern occurs in the end of the text. `^` and `$` are the ends of a line."""
    return _is_found(_compile_log_pattern(pattern), text[-MAX_LOG_TEXT:])


def check_validation_pattern(pattern: str) -> None:
    """Raises BadPattern."""
    _compile_schema_pattern(pattern)


def fits_validation_pattern(pattern: str, value: str) -> bool:
    """As an API server matches: anywhere in the value; `^` and `$` are its two ends. Raises BadPattern."""
    return _is_found(_compile_schema_pattern(pattern), value)


@lru_cache(maxsize=1024)
def validation_pattern_repeats(pattern: str) -> int:
    """How often its parts may repeat, added up; at least: what is quoted or in a class is counted, too."""
    counts = (max(int(low or 1), int(high or 0)) for low, high in _REPEATS.findall(pattern))
    return sum(count for count in counts if count <= _MOST_OF_ONE)  # a larger one RE2 refuses by itself


def validation_pattern_price(pattern: str, value: str) -> int:
    """What a match may cost in the worst case, compiling included, in steps of a microsecond or so. Raises BadPattern."""
    size: int = _compile_schema_pattern(pattern).programsize
    return 1 + len(value) * size // 200 + validation_pattern_repeats(pattern) ** 2 // 500


def _compile_log_pattern(pattern: str) -> Any:
    return _compile_pattern(pattern, MAX_LOG_PATTERN, _LOG_OPTIONS, flags="(?m)")


def _compile_schema_pattern(pattern: str) -> Any:
    return _compile_pattern(pattern, MAX_SCHEMA_PATTERN, _SCHEMA_OPTIONS)


def _compile_pattern(pattern: str, longest: int, options: Any, flags: str = "") -> Any:
    if len(pattern) > longest:
        raise BadPattern(f"it has {len(pattern)} characters (limit {longest})")
    if validation_pattern_repeats(pattern) > MAX_REPEATS:
        raise BadPattern(f"expression too large: its counts add up to more than {MAX_REPEATS}")
    try:
        return re2.compile(f"{flags}{pattern}".encode(errors="replace"), options)
    except re2.error as bad:
        what, _, where = bad.args[0].decode(errors="replace").partition(": ")
        part = where.removeprefix(flags)
        raise BadPattern(_IN_GO.get(what, what) + (f": `{part}`" if part else "")) from None


def _is_found(compiled: Any, text: str) -> bool:
    return compiled.search(text.encode(errors="replace")) is not None
