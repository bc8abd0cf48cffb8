"""`remuda agent --uninstall`: what an agent left on its node goes, and nothing of anybody else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from remuda.api.errors import Refusal
from remuda.runtime.agent_files import remove_agent_files
from remuda.runtime.agent_post import AgentPost


def a_socket(path: Path) -> Path:
    os.mknod(path, stat.S_IFSOCK | 0o600)  # a name may be longer than one that can be bound
    return path


class Machine:
    def __init__(self, root: Path) -> None:
        self.state, self.kubelet, self.cdi = root / "lib" / "remuda", root / "kubelet", root / "cdi"
        self.plugins = self.kubelet / "device-plugins"
        for directory in (
            self.state / "alloc" / "pod-1",
            self.state / "grants",
            self.state / "bin",
            self.state / "checkpoints" / ".remuda" / "homes" / "team~job",
            self.state / "copies" / ".incoming",
            self.state / "copies" / "team" / "job" / "rank-0",
            self.plugins,
            self.cdi,
        ):
            directory.mkdir(parents=True)
        for name in (
            "device-ids.json",
            "kmsg.json",
            "grants/pod-1.json",
            "checkpoints/.remuda/homes/team~job/rank-0",
            "bin/remuda-launch.pyz",
        ):
            (self.state / name).write_text("{}")
        self.post = AgentPost(self.state)
        self.post.take()
        for door in (self.state / "alloc" / "pod-1" / "agent.sock", self.plugins / "remuda-nvidia.com-gpu-1.sock"):
            a_socket(door)
        a_socket(self.plugins / "kubelet.sock")
        (self.plugins / "kubelet_internal_checkpoint").write_text("{}")
        (self.cdi / "remuda.dev-gpu_gpu-0.json").write_text("{}")
        (self.cdi / "nvidia.yaml").write_text("")

    def clean(self, *, keep_launcher: bool = False) -> list[str]:
        self.paused: list[float] = []
        return remove_agent_files(
            str(self.state), str(self.kubelet), str(self.cdi), keep_launcher=keep_launcher, pause=self.paused.append
        )


@pytest.fixture(name="machine")
def a_machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_everything_of_the_agent_goes_and_the_rest_stays(machine: Machine) -> None:
    machine.clean()
    assert not machine.state.exists()
    assert names(machine.plugins) == ["kubelet.sock", "kubelet_internal_checkpoint"]
    assert names(machine.cdi) == ["nvidia.yaml"]


def test_a_second_run_finds_nothing(machine: Machine) -> None:
    machine.clean()
    (machine.cdi / "nvidia.yaml").unlink()
    machine.cdi.rmdir()
    assert machine.clean() == ["Nothing of an agent is here."]


def test_checkpoints_are_the_users(machine: Machine) -> None:
    kept = machine.state / "checkpoints" / "team" / "job" / "step-10"
    kept.mkdir(parents=True)
    said = machine.clean()
    assert kept.is_dir()
    assert said[-1] == f"Left in {machine.state}: checkpoints."
    assert names(machine.state / "checkpoints") == ["team"]


def test_the_directory_of_a_job_that_saved_nothing_goes(machine: Machine) -> None:
    (machine.state / "checkpoints" / "team" / "job-40fb32b6").mkdir(parents=True)
    inside = machine.state / "checkpoints" / "other" / "job-1" / "rank-0"
    inside.mkdir(parents=True)  # made by the job, in what is the job's
    machine.clean()
    assert names(machine.state / "checkpoints") == ["other"]
    assert inside.is_dir()


def test_copies_of_other_nodes_checkpoints_are_the_users_too(machine: Machine) -> None:
    kept = machine.state / "copies" / "team" / "job" / "rank-0" / "step-10.ckpt"
    kept.write_bytes(b"weights")
    said = machine.clean()
    assert said[-1] == f"Left in {machine.state}: copies."
    assert names(machine.state / "copies") == ["team"]
    assert kept.read_bytes() == b"weights"


def test_the_launcher_stays_for_ranks_that_run_on(machine: Machine) -> None:
    machine.clean(keep_launcher=True)
    assert names(machine.state) == ["bin"]
    assert names(machine.state / "bin") == ["remuda-launch.pyz"]


def test_ranks_that_run_on_can_still_save_their_first_checkpoint(machine: Machine) -> None:
    """A directory that is removed while it is mounted takes no file any more."""
    place = machine.state / "checkpoints" / "team" / "job-40fb32b6"
    place.mkdir(parents=True)
    mounted = os.open(place, os.O_RDONLY | os.O_DIRECTORY)  # as a container has it
    try:
        machine.clean(keep_launcher=True)
        os.mkdir("rank-0", dir_fd=mounted)
    finally:
        os.close(mounted)


def test_files_that_somebody_else_put_there_stay(machine: Machine) -> None:
    (machine.state / "notes.txt").write_text("mine")
    machine.clean()
    assert names(machine.state) == ["notes.txt"]


def test_no_link_is_followed(machine: Machine, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    (machine.state / "alloc" / "pod-1" / "link").symlink_to(outside)
    (machine.state / "alloc" / "link").symlink_to(outside)
    (machine.state / "other.json").symlink_to(outside / "precious")
    (machine.plugins / "remuda-x.sock").symlink_to(outside / "precious")
    machine.clean()
    assert (outside / "precious").read_text() == "kept"


def test_an_agent_that_still_runs_there_is_told_to_step_aside(machine: Machine) -> None:
    seen: list[bool] = []
    remove_agent_files(
        str(machine.state),
        str(machine.kubelet),
        "",
        keep_launcher=False,
        pause=lambda seconds: seen.append(machine.post.is_ours),
    )
    assert seen == [False]


def test_a_directory_that_others_can_write_is_refused(machine: Machine) -> None:
    machine.state.chmod(0o777)
    with pytest.raises(Refusal, match="DirectoryOpenToOthers"):
        machine.clean()
    assert (machine.state / "grants").is_dir()
