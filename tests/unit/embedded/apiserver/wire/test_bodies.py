from __future__ import annotations

import pytest

from remuda.api.errors import BadRequest, Invalid
from remuda.embedded.apiserver.wire.bodies import (
    UnsupportedMediaType,
    duplicate_fields,
    parse_deletion,
    parse_object_body,
    parse_patch_media_and_body,
)
from remuda.embedded.apiserver.write_rules import FOREGROUND, ORPHAN

YAML = "application/yaml"
APPLY = "application/apply-patch+yaml"


def test_yaml_is_read_as_far_as_json_goes() -> None:
    assert parse_object_body(YAML, b"a: 2020-01-01\nb: [1, yes]\nc: '3'\n") == {
        "a": "2020-01-01",
        "b": [1, True],
        "c": "3",
    }
    assert parse_object_body(YAML, b'{"a": 1}') == {"a": 1}
    assert parse_object_body(YAML, b"{a: 1}") == {"a": 1}
    assert parse_patch_media_and_body(APPLY, b"kind: Pod\n") == (APPLY, {"kind": "Pod"})


@pytest.mark.parametrize(
    "body", [b"a: &x [1]\nb: *x\n", b"a: !!python/object:os.system x\n", b"- a\n", b"a: [", b"\x00"]
)
def test_what_yaml_has_beyond_that_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_object_body(YAML, body)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"a":' * 100_000])
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_object_body("application/json", body)


def test_media_types_are_compared_without_parameters() -> None:
    assert parse_object_body("Application/JSON; charset=utf-8", b"{}") == {}
    with pytest.raises(UnsupportedMediaType):
        parse_patch_media_and_body("application/json", b"{}")


def test_propagation_policies_become_finalizers() -> None:
    assert parse_deletion({}, {}).finalizer is None
    assert parse_deletion({"propagationPolicy": "Background"}, {}).finalizer == ""
    assert parse_deletion({"propagationPolicy": "Foreground"}, {}).finalizer == FOREGROUND
    assert parse_deletion({}, {"propagationPolicy": "Orphan"}).finalizer == ORPHAN
    assert parse_deletion({"orphanDependents": True}, {}).finalizer == ORPHAN
    with pytest.raises(Invalid, match="propagationPolicy"):
        parse_deletion({"propagationPolicy": "Sometimes"}, {})


def test_text_that_is_none_is_refused_in_keys_too() -> None:
    for media in ("application/json", YAML):
        with pytest.raises(BadRequest):
            parse_object_body(media, b'{"\xff": 1}')


def test_a_body_that_is_too_deep_to_walk_is_refused() -> None:
    with pytest.raises(BadRequest, match="levels deep"):
        parse_object_body("application/json", b'{"a":' * 300 + b"1" + b"}" * 300)


@pytest.mark.parametrize(
    ("media", "body", "paths"),
    [
        ("application/json", b'{"a":{"b":1,"b":2},"c":[{"d":1,"d":2,"d":3}]}', {"a.b", "c[0].d"}),
        ("application/json", b'{"a":1,"a":2}', {"a"}),
        ("application/json", b'{"a":{"b":1},"c":{"b":1}}', set()),
        (APPLY, b'{"a":1,"a":2}', {"a"}),
        (YAML, b"a: {b: 1, b: 2}\na: 3\n", {"a", "b"}),
        (YAML, b"a: {b: 1}\n", set()),
        ("application/json", b'{"a":' * 100_000, set()),
    ],
)
def test_fields_that_are_there_twice_are_found(media: str, body: bytes, paths: set[str]) -> None:
    assert set(duplicate_fields(media, body)) == paths
