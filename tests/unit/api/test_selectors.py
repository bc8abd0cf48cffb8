"""Selectors: what matches, what is refused, and that rendering keeps the meaning."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.errors import BadRequest
from remuda.api.selectors import EVERYTHING, parse_field_selector, parse_selector, where

LABELS = {"app": "web", "tier": "front", "remuda.dev/gang": "j"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app!=web", False),
        ("app=db", False),
        ("missing!=x", True),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("app notin (db)", True),
        ("missing notin (db)", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("app=web,tier=front", True),
        ("app=web,tier=back", False),
        ("remuda.dev/gang=j", True),
        ("app=", False),
    ],
)
def test_matches(text: str, matches: bool) -> None:
    assert parse_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", ["app=web,", "=x", "a in b", "a in (b", "a=b c", "a=-b", "a,,b", "a in (b d)", "*"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_selector(text)


keys = st.sampled_from(["a", "b", "x.y/z"])
values = st.sampled_from(["", "1", "v", "w-2"])
terms = st.one_of(
    st.tuples(keys, st.sampled_from(["=", "!="]), values).map("".join),
    keys,
    keys.map("!{}".format),
    st.tuples(keys, st.sampled_from(["in", "notin"]), st.lists(values, min_size=1)).map(
        lambda t: f"{t[0]} {t[1]} ({','.join(t[2])})"
    ),
)


@settings(deadline=None)
@given(st.lists(terms).map(",".join), st.dictionaries(keys, values))
def test_rendering_keeps_the_meaning(text: str, labels: dict[str, str]) -> None:
    selector = parse_selector(text)
    assert parse_selector(str(selector)).matches(labels) == selector.matches(labels)


def test_where_means_exactly_these() -> None:
    assert where({"a": "1"}).matches({"a": "1", "b": "2"})
    assert not where({"a": "1"}).matches({"a": "2"})
    assert EVERYTHING.matches({})


POD = {
    "metadata": {"name": "p"},
    "spec": {"nodeName": "n1", "unschedulable": True, "priority": 3},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("metadata.name=p", True),
        ("spec.nodeName=n1,status.phase!=Failed", True),
        ("spec.nodeName!=n1", False),
        ("spec.absent=", True),
        ("spec.unschedulable=true", True),
        ("spec.unschedulable!=true", False),
        ("spec.priority=3", True),
    ],
)
def test_field_selector(text: str, matches: bool) -> None:
    assert parse_field_selector(text).matches(POD) is matches


@pytest.mark.parametrize("text", ["metadata.name", "=x", "a b=c"])
def test_bad_field_selector(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_field_selector(text)
