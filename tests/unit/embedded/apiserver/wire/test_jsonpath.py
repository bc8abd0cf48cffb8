from __future__ import annotations

from typing import Any

import pytest

from remuda.embedded.apiserver.wire.jsonpath import find_by_jsonpath

BODY = {
    "a": {"b": [1, {"c": "x"}], "with.dot": 5},
    "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}],
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b[0]", [1]),
        (".a.b[-1].c", ["x"]),
        (".a.b[*]", [1, {"c": "x"}]),
        (".a['with.dot']", [5]),
        (r".a.with\.dot", [5]),
        ('.conditions[?(@.type=="Ready")].status', ["True"]),
        (".conditions[?(@.type!='Ready')].status", ["False"]),
        ("{.a.b[0]}", [1]),
        (".none.at.all", []),
        (".a.b.c", []),
        (".a.b[9]", []),
        (".a..b", []),
        (".a[?(@.x in y)]", []),
    ],
)
def test_paths_of_printer_columns(path: str, found: list[Any]) -> None:
    assert find_by_jsonpath(BODY, path) == found
