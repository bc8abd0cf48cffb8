"""Patterns of failure rules: the same answers as `re` where both understand them, and never slow."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.patterns import MAX_PATTERN, MAX_TEXT, BadPattern, compile_pattern, found_in


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
    ],
)
def test_what_is_found(pattern: str, text: str, found: bool) -> None:
    assert found_in(pattern, text) is found


TOO_BIG = ["x" * (MAX_PATTERN + 1), "a{3000}", "((a{40}){40}){40}", "(" * 30 + ")" * 30]
PIECES = st.sampled_from([*"ab1.|()*+?^$", "[ab]", "[^a]", r"\d", r"\w", r"\b", "{2}", "{1,2}", "(?:", "\n", " "])


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join), st.text(alphabet="ab1 \n", max_size=10))
def test_the_answers_are_those_of_the_standard_library(pattern: str, text: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = re.search(pattern, text, re.MULTILINE) is not None
        mine = found_in(pattern, text)
    except (re.error, BadPattern):
        return
    assert mine is expected


def test_what_makes_other_engines_hang_is_nothing_special() -> None:
    """A backtracking engine would not end in the age of the universe; here a step costs the size of the program at most."""
    assert not found_in("(a+)+$", "a" * MAX_TEXT + "b")
    assert not found_in("(a|a)*(a|a)*(a|a)*c", "a" * MAX_TEXT)


def test_only_the_end_of_the_text_is_looked_at() -> None:
    assert not found_in("needle", "needle" + "x" * MAX_TEXT)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "[a", "*", "a**", r"(a)\1", "(?=a)", "(?P<x>a)", "a{", "a{3,1}", "[z-a]", r"\q", *TOO_BIG],
)
def test_what_is_refused_says_why(pattern: str) -> None:
    with pytest.raises(BadPattern) as refused:
        compile_pattern(pattern)
    assert str(refused.value)
