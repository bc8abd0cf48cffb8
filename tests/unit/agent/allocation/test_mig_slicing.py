"""What users may write as a layout."""

from __future__ import annotations

import pytest

from remuda.agent.allocation.mig_slicing import parse_mig_slicing
from remuda.api.errors import Refusal


def test_layouts() -> None:
    assert parse_mig_slicing(["gpu-0=3g.40gb,3g.40gb", "all=1g.10gb*7", "gpu-1=", "gpu-2=2g.20gb*2, 1g.10gb"]) == {
        "gpu-0": ("3g.40gb", "3g.40gb"),
        "all": ("1g.10gb",) * 7,
        "gpu-1": (),
        "gpu-2": ("2g.20gb", "2g.20gb", "1g.10gb"),
    }


@pytest.mark.parametrize("text", ["", "gpu-0", "=1g.10gb", "gpu-0=1g.10gb*x", "gpu-0=1g.10gb*0", "gpu-0=*2", "a=b*99"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(Refusal, match="InvalidMigLayout"):
        parse_mig_slicing([text])
