"""Patterns that users give: RE2's language, bounded, never slow, and refused with a reason."""

from __future__ import annotations

import pytest

from remuda.api.validation.patterns import (
    MAX_LOG_PATTERN,
    MAX_LOG_TEXT,
    MAX_SCHEMA_PATTERN,
    BadPattern,
    check_log_pattern,
    check_validation_pattern,
    fits_validation_pattern,
    matches_validated_log_pattern,
)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("CUDA out of memory", "x CUDA out of memory y", True),
        ("(?i)nan|inf", "loss is NaN", True),
        (r"\bNaN\b", "banana NaNs", False),
        ("^Error: .*disk", "Warning\nError: no disk left\n", True),
        ("^disk", "no disk", False),
        ("exit$", "exit\nbye", True),
        ("x{2,3}y", "axxxy", True),
        ("x{3}", "xx", False),
        ("[^a-c]z", "bz", False),
        (r"rank \d+ of \d+", "rank 3 of 8", True),
        ("a.c", "a\nc", False),
        ("grüße", "viele grüße", True),
        ("a.c", "a\udc80c", True),  # bytes that are no text come as lone surrogates
    ],
)
def test_what_is_found_in_a_log(pattern: str, text: str, found: bool) -> None:
    assert matches_validated_log_pattern(pattern, text) is found


def test_what_makes_other_engines_hang_is_nothing_special() -> None:
    """A backtracking engine would not end in the age of the universe."""
    assert not matches_validated_log_pattern("(a+)+$", "a" * (MAX_LOG_TEXT - 1) + "b")
    assert not matches_validated_log_pattern("(a|a)*(a|a)*(a|a)*c", "a" * MAX_LOG_TEXT)
    assert not fits_validation_pattern("^(a+)+$", "a" * 100_000 + "b")


def test_only_the_end_of_the_text_is_looked_at() -> None:
    assert not matches_validated_log_pattern("needle", "needle" + "x" * MAX_LOG_TEXT)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing closing ): `(`"),
        (")", "unexpected ): `)`"),
        ("[a", "missing closing ]: `[a`"),
        ("*", "missing argument to repetition operator: `*`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a{3,1}", "invalid repeat count: `{3,1}`"),
        ("a{3000}", "invalid repeat count: `{3000}`"),
        ("[z-a]", "invalid character class range: `z-a`"),
        ("a\\", "trailing backslash at end of expression"),
        (r"\q", r"invalid escape sequence: `\q`"),
        (r"(a)\1", r"invalid escape sequence: `\1`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?<!a)b", "invalid or unsupported Perl syntax: `(?<!`"),
    ],
)
def test_what_is_refused_says_why_in_the_words_of_go(pattern: str, why: str) -> None:
    for check in (check_log_pattern, check_validation_pattern):
        with pytest.raises(BadPattern) as refused:
            check(pattern)
        assert str(refused.value) == why


def test_patterns_are_bounded() -> None:
    with pytest.raises(BadPattern, match=rf"limit {MAX_LOG_PATTERN}\)"):
        check_log_pattern("x" * (MAX_LOG_PATTERN + 1))
    with pytest.raises(BadPattern, match="expression too large"):
        check_log_pattern(r"\pL{1,900}")
    check_validation_pattern("x" * (MAX_LOG_PATTERN + 1))
    check_validation_pattern("^.{1,1000}$")
    with pytest.raises(BadPattern, match=rf"limit {MAX_SCHEMA_PATTERN}\)"):
        check_validation_pattern("x" * (MAX_SCHEMA_PATTERN + 1))


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("^[a-z]+$", "abc", True),
        ("^[a-z]+$", "abc\n", False),  # `re` says yes: its $ also stands before a last line's end
        ("^b$", "a\nb\nc", False),
        (r"^\pL+$", "Ünï", True),
        (r"^[[:alpha:]]+\z", "abc", True),
        (r"^\d+$", "٣", False),  # digits are ASCII, as in Go
        (r"^\w+$", "é", False),
        ("(?P<year>[0-9]{4})", "in 2024", True),
        (r"\Qa.b\E", "a.b", True),
    ],
)
def test_schema_patterns_are_those_of_go(pattern: str, value: str, fits: bool) -> None:
    assert fits_validation_pattern(pattern, value) is fits
