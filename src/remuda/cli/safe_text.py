"""Text of others on this terminal: what would steer it is shown as what it is.

Messages come from kernels, containers and whoever may write an object. An escape sequence in one could hide lines, retitle a
window or forge a prompt; so could the marks that turn the direction of writing round. Logs are the one exception: `remuda logs`
prints what the container wrote.
"""

from __future__ import annotations

import re

# C0 without the newline, DEL, C1, and the marks for the direction of text.
_STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Every such character as one visible character, so that columns stay where they are."""
    return _STEERING.sub("\N{REPLACEMENT CHARACTER}", text)


def printable_line(text: str) -> str:
    """The same on one line."""
    return printable(" ".join(text.splitlines()))
