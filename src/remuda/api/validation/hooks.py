"""What a hook may be: one command or one object, that can really be run or made. Shared by policies and roll-outs."""

from __future__ import annotations

import re
from collections.abc import Collection

from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject
from remuda.api.remedies import Hook

MAX_WORDS = 64
MAX_WORD = 4096
MAX_OBJECT = 65_536  # characters of text in an object's template
MAX_DEPTH = 32

_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_FILLED_IN = re.compile(r"(?<!\$)\{(\w+)\}")  # ${node} is a variable of the shell
_VERSION = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9][a-z0-9]*")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")


def check_hook(hook: Hook, where: str, placeholders: Collection[str]) -> None:
    """Raises Refusal. `placeholders`: what is filled into an object."""
    if bool(hook.command) == bool(hook.object):
        both = "both a command and an object" if hook.command else "neither a command nor an object"
        raise Refusal("InvalidHook", f"The hook has {both}.", "Give it exactly one of the two.", where)
    if hook.command:
        _check_hook_command(hook.command, f"{where}.command", placeholders)
        return
    _check_hook_object(hook.object, f"{where}.object", placeholders)
    if not hook.success_condition or hook.success_condition == hook.failure_condition:
        raise Refusal(
            "InvalidHook",
            f"successCondition `{hook.success_condition}` is empty, or the same as failureCondition.",
            "Name two different conditions.",
            f"{where}.failureCondition",
        )


def _check_hook_command(command: list[str], where: str, placeholders: Collection[str]) -> None:
    if not command[0].startswith("/"):
        raise Refusal(
            "InvalidHook",
            f"The command `{command[0]:.100}` is not an absolute path, and the agent does not search PATH.",
            "Write the program's whole path.",
            where,
        )
    if len(command) > MAX_WORDS or any(len(word) > MAX_WORD for word in command):
        raise Refusal(
            "InvalidHook",
            f"The command has {len(command)} words, the longest of {max(map(len, command))} characters.",
            f"Use at most {MAX_WORDS} words of {MAX_WORD}; put the rest into a script.",
            where,
        )
    if any("\0" in word for word in command):
        raise Refusal("InvalidHook", "A word of the command contains a NUL character.", "Remove it.", where)
    for name in (name for word in command for name in _FILLED_IN.findall(word)):
        if name in placeholders:
            raise Refusal(
                "InvalidHook",
                f"Nothing is filled into a command, so {{{name}}} would be passed on as written.",
                f"Let the program read its environment: REMUDA_{name.upper()}.",
                where,
            )


def _check_hook_object(body: JsonObject, where: str, placeholders: Collection[str]) -> None:
    for field, form in (("apiVersion", _VERSION), ("kind", _KIND)):
        value = body.get(field)
        if not isinstance(value, str) or not value:
            raise Refusal("InvalidHook", f"The object has no {field}.", f"Set {field}.", f"{where}.{field}")
        if not form.fullmatch(value):
            raise Refusal(
                "InvalidHook",
                f"`{value:.100}` cannot be the {field} of an object.",
                "Write it as Kubernetes does, say batch/v1 and Job.",
                f"{where}.{field}",
            )
    meta = body.get("metadata", {})
    if not isinstance(meta, dict):
        raise Refusal(
            "InvalidHook",
            "The object's metadata is not an object.",
            "Give it a name, or leave it out.",
            f"{where}.metadata",
        )
    texts = _texts_in_hook_object(body, where, MAX_DEPTH)
    if sum(map(len, texts)) > MAX_OBJECT:
        raise Refusal("InvalidHook", "The object is too large.", f"Use at most {MAX_OBJECT} characters.", where)
    for name in sorted({name for text in texts for name in _PLACEHOLDER.findall(text)}):
        if name not in placeholders:
            known = ", ".join(f"{{{p}}}" for p in placeholders)
            raise Refusal("InvalidHook", f"{{{name:.100}}} is not a placeholder.", f"Known: {known}.", where)


def _texts_in_hook_object(body: object, where: str, depth: int) -> list[str]:
    """All text below, names left out."""
    if depth == 0:
        raise Refusal("InvalidHook", "The object is nested too deeply.", f"Use at most {MAX_DEPTH} levels.", where)
    if isinstance(body, str):
        return [body]
    inner = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return [text for value in inner for text in _texts_in_hook_object(value, where, depth - 1)]
