"""What the agent believes outlives it, in a directory of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remuda.agent.allocation.allocation_table import Grant
from remuda.agent.allocation.grant_records import GrantRecords
from remuda.api.errors import Refusal

ONE = Grant(("gpu-0",), "a", "default/pod-a")


def test_a_record_is_read_back_and_can_be_written_over(tmp_path: Path) -> None:
    records = GrantRecords(tmp_path / "grants")
    assert (records.read("gpu-0"), records.all()) == (None, [])
    records.write(Grant(("gpu-0",)))
    records.write(ONE)
    assert GrantRecords(tmp_path / "grants").all() == [ONE] == [records.read("gpu-0")]
    assert os.listdir(tmp_path / "grants") == ["gpu-0.json"]
    records.remove("gpu-0")
    records.remove("gpu-0")
    assert records.all() == []


def test_nobody_else_gets_in(tmp_path: Path) -> None:
    (tmp_path / "grants").mkdir()
    (tmp_path / "grants").chmod(0o777)
    GrantRecords(tmp_path / "grants").write(ONE)
    assert (tmp_path / "grants").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "grants" / "gpu-0.json").stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "grants").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refusal) as caught:
        GrantRecords(tmp_path / "grants").write(ONE)
    assert caught.value.reason == "DirectoryNotOurs"
    assert os.listdir(tmp_path / "elsewhere") == []


def test_what_cannot_be_read_or_has_another_s_name_is_no_grant(tmp_path: Path) -> None:
    records = GrantRecords(tmp_path)
    records.write(ONE)
    (tmp_path / "gpu-1.json").write_text("{")
    os.link(tmp_path / "gpu-0.json", tmp_path / "gpu-2.json")
    assert records.all() == [ONE]


@pytest.mark.parametrize("name", ["../x", ".hidden", "a/b"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        GrantRecords(tmp_path).read(name)
