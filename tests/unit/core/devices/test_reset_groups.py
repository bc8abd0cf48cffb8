"""Which devices a reset takes with it."""

from __future__ import annotations

import pytest

from remuda.api.devices import ObservedLink
from remuda.core.devices.reset_groups import reset_group

EIGHT = [f"gpu-{n}" for n in range(8)]


@pytest.mark.parametrize(
    ("links", "family", "group"),
    [
        ([], "ampere", ["gpu-0"]),
        ([ObservedLink("nv12", EIGHT)], "ampere", ["gpu-0"]),  # behind switches
        ([ObservedLink("nv12", EIGHT[:4])], "ampere", EIGHT[:4]),
        ([ObservedLink("nv18", EIGHT[:4])], "hopper", ["gpu-0"]),
        ([ObservedLink("nv4", EIGHT[:2]), ObservedLink("nv4", EIGHT[1:3])], "volta", EIGHT[:3]),
        ([ObservedLink("nv4", EIGHT[2:4])], "ampere", ["gpu-0"]),
        ([ObservedLink("xgmi", EIGHT)], "gfx942", EIGHT),
        ([ObservedLink("PIX", EIGHT[:2])], "ampere", ["gpu-0"]),
    ],
)
def test_a_reset_takes_along_what_is_wired_to_the_device(
    links: list[ObservedLink], family: str, group: list[str]
) -> None:
    assert reset_group("gpu-0", links, family) == tuple(group)
