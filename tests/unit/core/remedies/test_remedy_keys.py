"""Keys of remedy records read as they are made."""

from __future__ import annotations

import pytest

from remuda.api.remedies import Action
from remuda.core.remedies.remedy_keys import (
    RungKey,
    drain_rung_key,
    is_remedy_key_of_recheck,
    is_verify_key,
    is_workload_remedy_key,
    parse_rung_key,
    remedy_key_of_gang,
    remedy_key_of_probe,
    remedy_key_of_recheck,
    rung_key,
    workload_remedy_key,
)


@pytest.mark.parametrize("action", Action)
def test_every_rung_reads_back(action: Action) -> None:
    key = rung_key(action, 12)
    assert parse_rung_key(key) == RungKey(action, 12)
    assert parse_rung_key(drain_rung_key(key)) == RungKey(action, 12, "drain")
    assert parse_rung_key(remedy_key_of_probe(key)) == RungKey(action, 12, "probe")
    assert {
        parsed.rung for made in (key, drain_rung_key(key), remedy_key_of_probe(key)) if (parsed := parse_rung_key(made))
    } == {key}
    assert [is_verify_key(made) for made in (key, drain_rung_key(key), remedy_key_of_probe(key))] == [
        False,
        False,
        True,
    ]


def test_keys_of_no_rung() -> None:
    second = workload_remedy_key(2)
    assert (second, remedy_key_of_gang(second, "ns/train"), remedy_key_of_recheck(1)) == (
        "attempt-2",
        "attempt-2@ns/train",
        "recheck-1",
    )
    for key in (
        second,
        remedy_key_of_gang(second, "ns/train"),
        remedy_key_of_recheck(1),
        "",
        "reset",
        "reset-",
        "mend-1",
        "drain-1",
    ):
        assert parse_rung_key(key) is None, key
    assert is_workload_remedy_key(second)
    assert is_workload_remedy_key(remedy_key_of_gang(second, "ns/train"))
    assert is_remedy_key_of_recheck(remedy_key_of_recheck(1))
    assert not is_workload_remedy_key(remedy_key_of_recheck(1))
