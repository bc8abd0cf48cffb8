"""Files a user names, or is told to: the text of -f or of standard input (what cannot be read is refused in words), and a
train.py to begin with."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from remuda.api.errors import Refusal

STDIN = "-"
_EXAMPLE = Path("examples/01-hello-gang")  # seen from a clone of the repository
_DEMO = Path(__file__).parent / "demo"  # there wherever Remuda is installed


def train_example_with_input_file(options: str, *, is_real: bool = False) -> str:
    """`train <options> ... -- python train.py`, with the directory of a train.py that exists, so that the line works as typed.
    On a real cluster nothing of this machine is in a container: there a file that brings its program, or an image that has it."""
    if is_real:
        file = _EXAMPLE / "job.yaml"
        return f"train -f {file}" if file.is_file() else f"train {options} --image IMAGE -- python3 /app/train.py"
    place = next((place for place in (Path(), _EXAMPLE) if (place / "train.py").is_file()), _DEMO)
    workdir = "" if place == Path() else f" --workdir {shlex.quote(str(place))}"
    return f"train {options}{workdir} -- python train.py"


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
