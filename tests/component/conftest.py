"""Component tests run real sockets and child processes: one that fails is tried once more, and named (tests/conftest.py).

Random schedules run in virtual time and depend on their seed alone; a second try could only hide what they found."""

from __future__ import annotations

import pytest

IN_VIRTUAL_TIME = ("test_random_", "test_scenarios_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "component" in item.path.parts and not item.path.stem.startswith(IN_VIRTUAL_TIME):
            item.add_marker(pytest.mark.flaky(reruns=1))
