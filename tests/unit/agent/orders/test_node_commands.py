"""Which commands a node lets itself be told to run."""

from __future__ import annotations

import pytest

from remuda.agent.orders.node_commands import is_node_command_order_allowed, parse_node_hooks
from remuda.api.errors import Refusal


@pytest.mark.parametrize(
    ("pattern", "command", "allowed"),
    [
        ("/opt/recycle", ["/opt/recycle"], True),
        ("/opt/recycle", ["/opt/recycle", "--force"], False),
        ("/opt/recycle ...", ["/opt/recycle", "--force", "now"], True),
        ("/opt/recycle ...", ["/opt/recycle"], True),
        ("/opt/recycle --reason * ...", ["/opt/recycle", "--reason", "xid 79", "x"], True),
        ("/opt/recycle --reason *", ["/opt/recycle", "--reason"], False),
        ("/opt/hooks/*", ["/opt/hooks/a"], True),
        ("/opt/hooks/*", ["/opt/hooks/deep/a"], False),
        ("/opt/hooks/*", ["/opt/hooks/../../bin/sh"], False),
        ("/opt/hooks/*", ["/opt/hooks/.."], False),
        ("/*/recycle", ["/opt/recycle"], True),
        ("/opt/recycle", ["opt/recycle"], False),
        ("/opt/recycle", ["/opt//recycle"], False),
        ("/opt/recycle", [], False),
        ("/opt/recycle a", ["/opt/recycle", "a b"], False),
    ],
)
def test_a_pattern_allows_what_it_says_and_no_more(pattern: str, command: list[str], allowed: bool) -> None:
    assert is_node_command_order_allowed(command, parse_node_hooks([pattern])) is allowed


def test_without_patterns_nothing_is_allowed() -> None:
    assert not is_node_command_order_allowed(["/bin/true"], parse_node_hooks([]))


@pytest.mark.parametrize("pattern", ["", "recycle", "./recycle", "/opt/../bin/sh", "/opt/x 'open", "*"])
def test_a_pattern_names_a_program_by_its_full_path(pattern: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_node_hooks([pattern])
    assert refused.value.reason == "InvalidHookPattern"
