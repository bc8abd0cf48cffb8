"""YAML bodies: what they mean, and what a small one may not cost."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml

from remuda.api.errors import BadRequest
from remuda.embedded.apiserver.patching import BodyTooLarge
from remuda.embedded.apiserver.wire import yaml_bodies
from remuda.embedded.apiserver.wire.bodies import parse_object_body, parse_patch_media_and_body
from remuda.embedded.apiserver.wire.yaml_bodies import MAX_YAML_NODES, parse_yaml_body

YAML = "application/yaml"
APPLY = "application/apply-patch+yaml"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: b", {"a": "b"}),
        ("a: [1, 0x1f, 0o17, 017, 0b11, 1_000, -3, +4]", {"a": [1, 31, "0o17", 15, 3, 1000, -3, 4]}),
        ("a: [1.5, 1e3, .5, -2.5e-3, 1_0.5]", {"a": [1.5, "1e3", 0.5, -0.0025, 10.5]}),
        ("a: [yes, No, TRUE, off, y, n]", {"a": [True, False, True, False, "y", "n"]}),
        ("a: [~, null, Null, '', 'null', '1']", {"a": [None, None, None, "", "null", "1"]}),
        ("a:\nb: 2020-01-01\nc: 22:22\nd: 1:30", {"a": None, "b": "2020-01-01", "c": "22:22", "d": "1:30"}),
        (
            "a: !!str 1\nb: !!int '7'\nc: !!float 1\nd: !!bool 'yes'\ne: ! 3",
            {"a": "1", "b": 7, "c": 1.0, "d": True, "e": "3"},
        ),
        ("a: !!map {b: !!seq [c]}\nd: !!null ''", {"a": {"b": ["c"]}, "d": None}),
        ("1: a\ntrue: b\n1.5: c", {"1": "a", "true": "b", "1.5": "c"}),
        ("a: |\n  one\n  two\nb: >-\n  one\n  two", {"a": "one\ntwo\n", "b": "one two"}),
        ("a: &x b", {"a": "b"}),
        ("a: 99999999999999999999", {"a": 1e20}),
        ("--- \na: b\n...\n", {"a": "b"}),
        ("a: 1\na: 2", {"a": 2}),
        ("", None),
    ],
)
def test_what_a_text_means(text: str, value: Any) -> None:
    assert parse_yaml_body(text.encode()).value == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: !!bool foo\n", "`foo` is no bool"),
        (b"%TAG ! tag:yaml.org,2002:\n---\na: !bool foo\n", "`foo` is no bool"),
        (b"a: !!int foo\n", "`foo` is no int"),
        (b"a: !!float foo\n", "`foo` is no float"),
        (b"a: !!null foo\n", "`foo` is no null"),
        (b"a: !!timestamp foo\n", "tag"),
        (b"a: !!set {b: c}\n", "tag"),
        (b"a: !!omap [b]\n", "tag"),
        (b"a: !!binary 'eA=='\n", "tag"),
        (b"a: !!python/object:os.system x\n", "tag"),
        (b"a: !mine [b]\n", "tag"),
        (b"a: !!seq b\n", "tag"),
        (b"a: !!str [b]\n", "tag"),
        (b"a: &x [1]\nb: *x\n", "alias"),
        (b"a: {<<: {b: c}}\n", "merge"),
        (b"? [a]\n: b\n", "key"),
        (b"? {a: b}\n: b\n", "key"),
        (b"~: b\n", "key"),
        (b"a: .nan\n", "number"),
        (b"a: -.inf\n", "number"),
        (b"a: 1" + b"0" * 400 + b"\n", "number"),
        (b"a: b\n---\nc: d\n", "one document"),
        (b'a: "\\ud800"\n', "not YAML"),
        (b"a: \x00\n", "not YAML"),
        (b"a: \xff\n", "not YAML"),
        (b"a: [", "not YAML"),
        (b"a: " + b"[" * 300 + b"]" * 300, "levels deep"),
        (b"a: " + b"{a: " * 300 + b"}" * 300, "levels deep"),
        (b"a:\n" + b"".join(b" " * depth + b"a:\n" for depth in range(1, 300)), "levels deep"),
        (b"[" * 100_000, "levels deep"),
    ],
)
def test_what_goes_beyond_json_is_a_bad_request_with_the_reason(text: bytes, said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_object_body(YAML, text)
    assert refused.value.code == 400
    assert said in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("open_", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("depth", [250, 900, 50_000])
def test_a_deep_body_is_a_bad_request_in_every_media(open_: bytes, depth: int) -> None:
    body = b'{"a":' + open_ * depth
    with pytest.raises(BadRequest):
        parse_object_body(YAML, body)
    with pytest.raises(BadRequest):
        parse_patch_media_and_body(APPLY, body)
    whole = body + b"1" + {b"[": b"]", b'{"a":': b"}", b'[{"a":': b"}]"}[open_] * depth + b"}"
    for media in (APPLY, "application/merge-patch+json", "application/strategic-merge-patch+json"):
        with pytest.raises(BadRequest, match=r"levels deep|not JSON"):
            parse_patch_media_and_body(media, whole)


def test_a_body_of_many_small_values_ends_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is the number of values, whatever their size: nothing is read beyond the bound."""
    monkeypatch.setattr(yaml_bodies, "MAX_YAML_NODES", 100)
    assert len(parse_yaml_body(b"a: [" + b"b," * 90 + b"]").value["a"]) == 90
    seen = 0
    real = yaml_bodies.new_yaml_body_parser

    def counting(data: bytes) -> Any:
        parser = real(data)

        class Counting:
            def get_event(self) -> Any:
                nonlocal seen
                seen += 1
                return parser.get_event()

        return Counting()

    monkeypatch.setattr(yaml_bodies, "new_yaml_body_parser", counting)
    with pytest.raises(BodyTooLarge) as refused:
        parse_yaml_body(b"a: [" + b"b," * 100_000 + b"]")
    assert refused.value.code == 413
    assert "JSON" in refused.value.message  # the fix
    assert seen < 120


def test_a_yaml_body_as_large_as_a_request_may_be_is_read() -> None:
    data = {f"file-{n}": "x" * 1000 for n in range(2900)}
    text = yaml.dump({"data": data}, Dumper=yaml.CSafeDumper).encode()
    assert parse_yaml_body(text).value == {"data": data}
    assert MAX_YAML_NODES >= 100_000


def test_it_is_the_c_parser() -> None:
    """The one in Python takes 10 s for a megabyte."""
    assert isinstance(yaml_bodies.new_yaml_body_parser(b"a: b"), yaml.CSafeLoader)


def test_random_bodies_mean_what_json_means() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    def value(depth: int) -> Any:
        match chance.randrange(8 if depth else 6):
            case 0:
                return chance.randrange(-(2**40), 2**40)
            case 1:
                return chance.random()
            case 2:
                return chance.choice([True, False, None])
            case 3 | 4 | 5:
                return "".join(chance.choice("ab: -#'\"\n\t[]{},!&*|>%@`1.~é") for _ in range(chance.randrange(12)))
            case 6:
                return [value(depth - 1) for _ in range(chance.randrange(4))]
        return {f"k{n}": value(depth - 1) for n in range(chance.randrange(4))}

    for _ in range(200):
        body = {"a": value(4)}
        for style in (None, True, False):
            text = yaml.dump(body, Dumper=yaml.CSafeDumper, default_flow_style=style, allow_unicode=True).encode()
            assert parse_yaml_body(text).value == body, text
