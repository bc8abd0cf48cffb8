"""Checklist row 23: a pod that needs a driver is never placed below it, and the refusal names attribute, want and have."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from remuda.core.scheduling.driver_version import explain_min_driver_unmet, is_node_driver_too_old, node_driver_version

FULL = "nvidia.com/cuda.driver-version.full"


@pytest.mark.parametrize(
    ("have", "want", "older"),
    [
        ("550.54.15", "550.54", False),
        ("550.54", "550.54.15", True),
        ("560", "550.54", False),
        ("550.40.7", "550.54", True),
        ("99.1", "550", True),
        ("550.9", "550.54", True),
        ("", "550", True),
        ("unknown", "550", True),
    ],
)
def test_versions_are_compared_number_by_number(have: str, want: str, older: bool) -> None:
    assert is_node_driver_too_old(have, want) is older


def test_the_driver_of_a_node_is_what_its_labels_say() -> None:
    assert node_driver_version({FULL: "570.124.06"}) == "570.124.06"
    parts = {f"nvidia.com/cuda.driver.{name}": value for name, value in (("major", "550"), ("minor", "54"))}
    assert node_driver_version(parts) == "550.54"
    assert node_driver_version({}) == ""


@pytest.mark.parametrize(
    ("want", "nodes", "reason", "words"),
    [
        ("550.54", [{FULL: "535.1"}, {FULL: "545.23.8"}], "DriverTooOld", "the newest of any node is 545.23.8"),
        ("550.54", [{}], "DriverTooOld", "no node reports its driver"),
        ("newest", [{FULL: "535.1"}], "InvalidMinDriver", "not a driver version"),
        ("550.54", [{FULL: "535.1"}, {FULL: "550.54.15"}], "", ""),
        ("", [{}], "", ""),
        ("550.54", [], "", ""),
    ],
)
def test_the_refusal_names_attribute_want_and_have(
    want: str, nodes: list[Mapping[str, str]], reason: str, words: str
) -> None:
    found = explain_min_driver_unmet(want, nodes)
    assert (found.reason if found else "") == reason
    if found is not None:
        assert words in found.message
        assert reason != "DriverTooOld" or (FULL in found.message and want in found.message)
        assert found.fix
