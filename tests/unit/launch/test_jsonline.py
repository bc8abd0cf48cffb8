"""Our JSON against the library's."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remuda.launch import jsonline

# A busy machine is no failure of the code.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@unhurried
@given(VALUES)
def test_what_we_write_the_library_reads(value: Any) -> None:
    assert json.loads(jsonline.encode_launch_json_line(value)) == value


@unhurried
@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_what_the_library_writes_we_read(value: Any, indent: int | None, is_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    assert jsonline.parse_json_line(f" {text}\r\n") == value


@unhurried
@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn\\u \t') | st.text())
def test_both_refuse_the_same_text(text: str) -> None:
    def verdict(parse: Any) -> Any:
        try:
            return ("value", parse(text))
        except ValueError:
            return "refused"

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    assert verdict(jsonline.parse_json_line) == verdict(lambda text: json.loads(text, parse_constant=refuse))


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "", "{", "[1] 2", "[" * 60_000, b'"\xff"'])
def test_what_is_not_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        jsonline.parse_json_line(text)


BROKEN = [
    "{", "}", "[", "[1", "[1,", "[1,]", "[,]", '{"a', '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', "{1:2}", '"', '"\\',
    '"\\u12"', '"\\ud800\\u12"', '"\\x"', '"\n"', "-", "+1", ".5", "1.", "1e", "01", "tru", "nul", "'a'", "1 1", "{}{}",
    '{"a":1 "b":2}', "[" * 5000, '{"a":' * 5000, "9" * 5000, "NaN", "\\", "é", "",
]  # fmt: skip


def test_without_the_library_loaded_errors_are_still_value_errors() -> None:
    """In a launcher `json` is not imported, and the C scanner behaves differently then."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from remuda.launch import jsonline\n"
        "assert 'json' not in sys.modules\n"
        "for text in sys.argv[2:]:\n"
        "    try: print('read', ascii(text), jsonline.parse_json_line(text))\n"
        "    except ValueError: pass\n"
        'print(jsonline.encode_launch_json_line(jsonline.parse_json_line(\'{"a": [1, 2.5, null, true, "x"]}\')))'
    )
    source = str(Path(jsonline.__file__).parents[2])
    argv = [sys.executable, "-I", "-S", "-c", code, source, *BROKEN]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == '{"a":[1,2.5,null,true,"x"]}\n'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_json_cannot_say_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        jsonline.encode_launch_json_line({"x": value})


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError):
        jsonline.encode_launch_json_line({"x": {1, 2}})
