"""What a user names with -f: a file's text, or standard input's; what cannot be read is refused in words."""

from __future__ import annotations

import sys
from pathlib import Path

from remuda.api.errors import Refusal

STDIN = "-"


def read_named_file(file: str) -> tuple[str, str]:
    """(text, what to call its source). Raises Refusal."""
    source = "standard input" if file == STDIN else file
    try:
        return sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8"), source
    except UnicodeDecodeError:
        raise Refusal("InvalidYaml", f"{source} is not UTF-8 text.", "Give a YAML file.") from None
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        raise Refusal("FileNotReadable", f"Cannot read {source}: {what}.", "Check the path after -f.") from None
