"""Selectors: what matches, what is refused, and that rendering keeps the meaning."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.errors import BadRequest
from remuda.api.selectors import EVERYTHING, FieldSelector, labels_equal, parse_api_field_selector, parse_selector

LABELS = {"app": "web", "tier": "front", "remuda.dev/gang": "j", "n": "5"}


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
        ("n>4", True),
        ("n > 5", False),
        ("n<05,n>3", False),
        ("n<6,n>3", True),
        ("app>1", False),
        ("missing<1", False),
    ],
)
def test_matches(text: str, matches: bool) -> None:
    assert parse_selector(text).matches(LABELS) is matches


NO_NUMBERS = ("a>b", "a>", "a>=1", "a>-1", "a>9223372036854775808")


@pytest.mark.parametrize(
    "text", [*NO_NUMBERS, "app=web,", "=x", "a in b", "a in (b", "a=b c", "a=-b", "a,,b", "a in (b d)", "*"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_selector(text)


keys = st.sampled_from(["a", "b", "x.y/z"])
values = st.sampled_from(["", "1", "v", "w-2"])
terms = st.one_of(
    st.tuples(keys, st.sampled_from(["=", "!="]), values).map("".join),
    st.tuples(keys, st.sampled_from([">", "<"]), st.integers(0, 3).map(str)).map("".join),
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
    assert labels_equal({"a": "1"}).matches({"a": "1", "b": "2"})
    assert not labels_equal({"a": "1"}).matches({"a": "2"})
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
        (r"spec.priority=3\,4", False),
        ("=,spec.priority=3,", True),
    ],
)
def test_field_selector(text: str, matches: bool) -> None:
    assert parse_api_field_selector(text).matches(POD) is matches


@pytest.mark.parametrize("text", ["metadata.name", "=x", "a b=c", "a=b=c", "a=b\\", r"a=\n", " a=b"])
def test_bad_field_selector(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_api_field_selector(text)


@given(st.text(r"ab\=,", max_size=8))
def test_any_value_can_be_written_in_a_field_selector(value: str) -> None:
    selector = FieldSelector((("spec.nodeName", True, value),))
    assert parse_api_field_selector(str(selector)) == selector
