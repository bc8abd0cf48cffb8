"""What others wrote never steers the terminal."""

from __future__ import annotations

import io
from unittest.mock import patch

import pytest

from remuda.api.errors import Invalid, Refusal
from remuda.cli.errors import explain_error
from remuda.cli.output import make_console, plain_table
from remuda.cli.safe_text import printable, printable_line

EVIL = "\x1b[2Jgone\x07 \x9b31m \u202eevil\r\nerror: forged"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\x07", "\x08", "\r", "\x7f", "\x9b", "\u202e", "\u2066"])
def test_what_would_steer_the_terminal_is_shown(char: str) -> None:
    assert printable(f"a{char}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_other_text_stays() -> None:
    text = "Überhitzt: 91 °C\nzweite Zeile 温度 ✓"
    assert printable(text) == text
    assert "\n" not in printable_line(text)


def test_a_table_of_evil_texts_steers_nothing() -> None:
    stream = Terminal()
    with patch("sys.stdout", stream):
        console = make_console()
        table = plain_table("NAME", "MESSAGE")
        table.add_row(EVIL, EVIL)
        console.print(table, EVIL)
    shown = stream.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")  # the heading's own
    assert not set(shown) & set("\x1b\x07\x9b\u202e\r")
    assert "gone" in shown


@pytest.mark.parametrize("error", [Refusal("Odd", EVIL, EVIL), Invalid(EVIL), ValueError(EVIL), OSError(EVIL)])
def test_an_error_is_one_line_that_steers_nothing(error: Exception) -> None:
    _, line = explain_error(error)
    assert not set(line) & set("\x1b\x07\x9b\u202e\r\n")
