"""Directories of an earlier agent, which kept its records where containers could write them: taken over, and not believed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from remuda.agent.allocation.allocation_table import Grant
from remuda.agent.allocation.grant_records import GrantRecords
from remuda.api.devices import Holding
from remuda.api.meta import to_time
from remuda.api.names import RESOURCE_GPU
from tests.unit.agent.scene import NOW, Scene, a_pod


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, shared=True)
    made.launchers.open(())
    made.root.mkdir(mode=0o700)
    yield made
    made.close()


def old_directory(scene: Scene, grant: Grant, name: str = "") -> Path:
    made = scene.root / (name or grant.name)
    made.mkdir()
    made.chmod(0o777)
    (made / "progress.json").write_text("{}")
    (made / "allocation.json").write_bytes(msgspec.json.encode(grant))
    return made


def a_holding(uid: str, *devices: str) -> Holding:
    return Holding(f"default/{uid}", "main", RESOURCE_GPU, list(devices), uid, since=to_time(NOW - 60))


def an_old_grant(uid: str, *devices: str) -> Grant:
    return Grant(devices, uid, f"default/{uid}", RESOURCE_GPU, "main", at=NOW - 60)


async def test_what_the_agent_s_own_report_agrees_with_is_the_pod_s_as_before(scene: Scene) -> None:
    directory = old_directory(scene, an_old_grant("a", "gpu-0"))
    scene.grants.inherit([a_holding("a", "gpu-0")])
    await scene.grants.restore()
    assert scene.grants.table.holders() == {"gpu-0": "a"}
    assert (directory / "agent.sock").is_socket()
    assert (directory / "progress.json").exists()  # its launcher is alive in there
    assert directory.stat().st_mode & 0o777 == 0o777  # and goes on writing
    assert GrantRecords(scene.root.parent / "grants").read("gpu-0") == an_old_grant("a", "gpu-0")


@pytest.mark.parametrize(
    "forged",
    [
        Grant(("gpu-0",), "other", "default/other", RESOURCE_GPU, "main"),
        Grant(("gpu-0",), "a", "default/other", RESOURCE_GPU, "main"),
        Grant(("gpu-0",), "a", "default/a", "nvidia.com/mig-1g.10gb", "main"),
    ],
)
async def test_what_a_marker_says_beyond_that_counts_for_nothing(scene: Scene, forged: Grant) -> None:
    old_directory(scene, forged)
    scene.grants.inherit([a_holding("a", "gpu-0"), a_holding("other", "gpu-1")])
    await scene.grants.restore()
    assert scene.grants.table.grants["gpu-0"] == Grant(("gpu-0",), resource=RESOURCE_GPU, at=NOW)
    await scene.grants.attach(a_pod("a", uid="a"), "main", RESOURCE_GPU, ["gpu-0"])  # as podresources says
    assert scene.grants.table.holders() == {"gpu-0": "a"}


@pytest.mark.parametrize(
    "marker", [msgspec.json.encode(an_old_grant("a", "gpu-7")), b"{", b"[" * 60_000, b"x" * 70_000]
)
async def test_without_a_marker_that_fits_the_directory_s_name_says_which_devices(scene: Scene, marker: bytes) -> None:
    for name in ("gpu-0_gpu-1", "nothing_of_ours"):
        (old_directory(scene, an_old_grant("a"), name) / "allocation.json").write_bytes(marker)
    await scene.grants.restore()
    nobody_s = Grant(("gpu-0", "gpu-1"), resource=RESOURCE_GPU, at=NOW)
    assert scene.grants.table.grants == {nobody_s.name: nobody_s}


async def test_a_pod_without_devices_is_known_by_its_directory(scene: Scene) -> None:
    directory = old_directory(scene, Grant((), "a", "default/somebody-else"))
    await scene.grants.restore()
    assert scene.grants.table.grants == {"pod-a": Grant((), "a", at=NOW)}
    await scene.grants.allocate(a_pod("a", 0, uid="a"), [])
    assert (directory / "progress.json").exists()


async def test_the_next_owner_gets_a_directory_that_it_cannot_write(scene: Scene) -> None:
    directory = old_directory(scene, Grant(("gpu-0",), resource=RESOURCE_GPU))
    await scene.grants.restore()
    await scene.plugin().allocate(["gpu-0"])
    assert os.listdir(directory) == ["agent.sock"]
    assert directory.stat().st_mode & 0o777 == 0o755


async def test_what_a_pod_left_while_no_agent_was_here_goes_with_its_release(scene: Scene) -> None:
    directory = old_directory(scene, an_old_grant("a", "gpu-0"))
    scene.grants.release("a")
    assert not directory.exists()


async def test_a_door_that_cannot_be_opened_is_one_pod_s_trouble(scene: Scene) -> None:
    bad, good = old_directory(scene, an_old_grant("a", "gpu-0")), old_directory(scene, an_old_grant("b", "gpu-1"))
    (bad / "agent.sock").mkdir()
    (bad / "agent.sock" / "something").mkdir()
    gone = old_directory(scene, an_old_grant("c", "gpu-2"))
    await scene.grants.restore()
    assert (bad / "agent.sock").is_socket()  # what was in its way was moved
    scene.close()
    for path in gone.iterdir():
        path.unlink()
    gone.rmdir()
    again = Scene(scene.root.parent, shared=True)
    again.launchers.open(())
    await again.grants.restore()
    assert set(again.grants.table.grants) == {"gpu-0", "gpu-1", "gpu-2"}
    assert (good / "agent.sock").is_socket()
    again.close()
