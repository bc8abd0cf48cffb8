"""Keys of remedy records: made and read here, nowhere else. A key is unique in its incident.

attempt-2            a workload remedy: the gang's second attempt
attempt-2@ns/train   the same, where another gang of the incident has that key already
reset-1              a rung of the device ladder: the first reset
drain-reboot-1       before it: its node is emptied
probe-reset-1        after it: whether it has cured
recheck-1            another probe that an operator asked for, after the ladder has ended
"""

from __future__ import annotations

import re

import msgspec

from remuda.api.remedies import Action

_WORKLOAD, _RECHECK = "attempt-", "recheck-"
_RUNG = re.compile(rf"(?:(?P<step>drain|probe)-)?(?P<action>{'|'.join(Action)})-(?P<number>[0-9]+)")


class RungKey(msgspec.Struct, frozen=True):
    """`step`: "" for the rung itself, else what goes before or after it."""

    action: Action
    number: int
    step: str = ""  # drain | probe

    @property
    def rung(self) -> str:
        """The key of the rung itself."""
        return rung_key(self.action, self.number)


def workload_remedy_key(attempt: int) -> str:
    return f"{_WORKLOAD}{attempt}"


def remedy_key_of_gang(key: str, gang: str) -> str:
    """Of two gangs on one device the second one's key."""
    return f"{key}@{gang}"


def is_workload_remedy_key(key: str) -> bool:
    """Every other key is the device ladder's."""
    return key.startswith(_WORKLOAD)


def rung_key(action: Action, number: int) -> str:
    return f"{action}-{number}"


def drain_rung_key(rung: str) -> str:
    return f"drain-{rung}"


def remedy_key_of_probe(rung: str) -> str:
    return f"probe-{rung}"


def parse_rung_key(key: str) -> RungKey | None:
    """None for the key of no rung."""
    found = _RUNG.fullmatch(key)
    if found is None:
        return None
    return RungKey(Action(found["action"]), int(found["number"]), found["step"] or "")


def is_verify_key(key: str) -> bool:
    """Of the probe after a rung; not of a rung that is a probe."""
    parsed = parse_rung_key(key)
    return parsed is not None and parsed.step == "probe"


def names_action(key: str, action: str) -> bool:
    """Whether the key begins with the action it stands for, so that the action need not be said beside it."""
    return key.startswith(f"{action}-")


def remedy_key_of_recheck(number: int) -> str:
    return f"{_RECHECK}{number}"


def is_remedy_key_of_recheck(key: str) -> bool:
    return key.startswith(_RECHECK)
