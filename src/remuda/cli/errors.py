"""From an exception to the one line a user gets: `error: <Reason>: <sentence> <fix>`, and the exit code. Pure.

A refusal (2) means: nothing was done, change what you asked for. A failure (1) means: it was tried and did not work.
"""

from __future__ import annotations

import difflib
import re

import click

from remuda.api.errors import AlreadyExists, ApiError, BadRequest, Invalid, NotFound, Refusal
from remuda.cli.safe_text import printable_line

REFUSED, FAILED, INTERRUPTED = 2, 1, 130
_NOT_SERVED = "404 page not found"  # what an API server says of a path that belongs to no kind
_RIGHT = re.compile(r'cannot (?P<verb>\w+) resource "(?P<resource>[\w/]+)" in API group "(?P<group>[\w.]*)"')


class Failed(Refusal):
    """Asked for rightly, but it did not come about."""


class Quiet(Exception):
    """Ends the command with a code; everything has been said already."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def explain_error(error: BaseException) -> tuple[int, str]:
    """(exit code, the line or "")."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code, ""
        case Quiet():
            return error.code, ""
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED, ""
        case click.exceptions.NoArgsIsHelpError():
            return REFUSED, error.format_message()
        case click.ClickException():
            return REFUSED, _usage_line(error)
        case Failed():
            return FAILED, _error_line(error.reason, error.message, error.fix)
        case Refusal():
            return REFUSED, _error_line(error.reason, error.message, error.fix)
        case NotFound() if _NOT_SERVED in error.message:
            fix = "Install Remuda on it (deploy/README.md), or name another cluster: --kubeconfig, --context."
            return REFUSED, _error_line("NotInstalled", "The cluster does not serve Remuda's kinds.", fix)
        case ApiError():
            bad_input = isinstance(error, NotFound | AlreadyExists | Invalid | BadRequest)
            # The server puts the fix into the message as well, so that other clients see it.
            fix = "" if error.fix and error.fix in error.message else error.fix
            if error.reason == "Forbidden":
                fix = _missing_right(error.message) or fix
            return (REFUSED if bad_input else FAILED), _error_line(error.reason, _as_sentence(error.message), fix)
        case TimeoutError():
            return FAILED, _error_line(
                "TimedOut", "The cluster did not answer in time.", "Check that it is running: remuda status"
            )
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return FAILED, _error_line(type(error).__name__, _as_sentence(f"{where}{error.strerror or error}"), "")
        case _:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            fix = "This is a bug in Remuda; REMUDA_DEBUG=1 shows where."
            return FAILED, _error_line("InternalError", _as_sentence(what), fix)


def _missing_right(message: str) -> str:
    """The fix for what RBAC does not allow; "" when somebody else refused."""
    found = _RIGHT.search(message)
    if found is None:
        return ""
    what, group = found["resource"], f".{found['group']}" if found["group"] else ""
    return f"Ask for the verb `{found['verb']}` on {what}{group}; deploy/roles.yaml has roles for it."


def _error_line(reason: str, message: str, fix: str) -> str:
    return printable_line("error: " + " ".join(part for part in (f"{reason}: {message}", fix) if part))


def _as_sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _usage_line(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "remuda"
    see = f"See `{path} --help`."
    match error:
        case click.NoSuchOption():
            near = list(error.possibilities or ())[:1]
            fix = f"Did you mean `{near[0]}`?" if near else see
            return _error_line("UnknownOption", f"`{error.option_name}` is not an option of `{path}`.", fix)
        case click.MissingParameter():
            what = error.param.get_error_hint(context) if error.param and context else "An argument"
            return _error_line("MissingArgument", f"`{path}` needs {what.replace(chr(39), '`')}.", see)
        case click.BadParameter():
            hint = error.param.get_error_hint(context) if error.param and context else error.param_hint
            where = f"{hint}: ".replace("'", "`") if hint else ""
            return _error_line("InvalidArgument", _as_sentence(f"{where}{error.message}".replace("'", "`")), see)
    return _error_line("InvalidUsage", _as_sentence(error.format_message().replace("'", "`")), see)


def unknown_command(name: str, path: str, known: list[str], hint: str = "") -> Refusal:
    """`hint`: the right command, where the word is one of other tools."""
    near = difflib.get_close_matches(name, known, n=1)
    fix = hint or (f"Did you mean `{path} {near[0]}`?" if near else f"See `{path} --help`.")
    return Refusal("UnknownCommand", f"`{name}` is not a command of `{path}`.", fix)
