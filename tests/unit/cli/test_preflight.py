"""What would certainly fail later is refused before anything is created."""

import os
from pathlib import Path

import pytest

from remuda.api.devices import NodeDevices
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.training import TrainingJob
from remuda.cli.jobs.manifest import JobRequest, build_job
from remuda.cli.jobs.preflight import (
    check_job_image,
    preflight_default_topology,
    preflight_job_checkpoint,
    preflight_job_command,
    preflight_job_gpus,
    preflight_job_workdir,
)
from remuda.runtime.up_config import RACK_LABEL
from tests.unit.cli.scenes import a_node, devices_of_node, machines


def job(*command: str, **changes: object) -> TrainingJob:
    asked = {"command": command or ("python", "train.py"), "name": "hello", **changes}
    return build_job(JobRequest(**asked))  # type: ignore[arg-type]


def refusal(check: object, *arguments: object) -> Refusal:
    assert callable(check)
    with pytest.raises(Refusal) as caught:
        check(*arguments)
    return caught.value


def test_a_cluster_that_runs_containers_wants_an_image() -> None:
    check_job_image(job(image="python:3.12-slim"))
    said = refusal(check_job_image, job())
    assert said.reason == "NoImage"
    assert "--image NAME" in said.fix


def test_more_gpus_than_any_node_has() -> None:
    devices = [devices_of_node(1)]
    preflight_job_gpus(job(gpus=8), devices)
    said = refusal(preflight_job_gpus, job(gpus=16, replicas=2), devices)
    assert said.reason == "GpusExceedNode"
    assert said.message == "Each worker pod asks for 16 GPUs; the largest node has 8."
    assert "--replicas 4 --gpus 8" in said.fix


def test_before_nodes_have_reported_nobody_can_tell() -> None:
    preflight_job_gpus(job(gpus=1000), [])


# --- the default topology ------------------------------------------------------------------------------------------------


def cluster() -> tuple[list[Node], list[NodeDevices]]:
    made = machines()  # five nodes in rack-1, one in rack-2
    return [m for m in made if isinstance(m, Node)], [m for m in made if isinstance(m, NodeDevices)]


@pytest.mark.parametrize(
    ("replicas", "spares", "gpus", "fits"),
    [(4, 1, 8, True), (5, 0, 8, True), (5, 1, 8, False), (10, 0, 4, True), (11, 0, 4, False), (99, 9, 0, True)],
)
def test_a_rack_is_required_when_one_can_hold_the_gang_and_its_spares(
    replicas: int, spares: int, gpus: int, fits: bool
) -> None:
    label, note = preflight_default_topology(replicas, spares, gpus, RACK_LABEL, *cluster())
    assert label == (RACK_LABEL if fits else "")
    assert bool(note) is not fits


def test_without_racks_nothing_is_required_and_nothing_said() -> None:
    node = Node(metadata=a_node(1).metadata.__class__(name="node-01"))
    assert preflight_default_topology(1, 0, 1, RACK_LABEL, [node], [devices_of_node(1)]) == ("", "")


# --- the command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "trainer"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (tmp_path / "bin" / "python3").symlink_to("/bin/sh")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "reason", "words"),
    [
        (("no-such-tool",), "CommandNotFound", "There is no command `no-such-tool` on the PATH."),
        (("train.py",), "CommandNotFound", "write `python train.py`"),
        (("run.sh",), "CommandNotFound", "write `./run.sh`"),
        (("./run.sh",), "CommandNotExecutable", "chmod +x"),
        (("./missing.sh",), "CommandNotFound", "missing.sh does not exist"),
        (("/no/such/tool",), "CommandNotFound", "/no/such/tool does not exist"),
        (("python3", "missing.py"), "CommandNotFound", "missing.py does not exist"),
    ],
)
def test_commands_that_do_not_exist(place: Path, command: tuple[str, ...], reason: str, words: str) -> None:
    said = refusal(preflight_job_command, job(*command, workdir=str(place)), {"PATH": ""}, str(place / "bin"))
    assert said.reason == reason
    assert words in f"{said.message} {said.fix}"


@pytest.mark.parametrize(
    "command",
    [("trainer",), ("./bin/trainer",), ("python3", "train.py"), ("python3", "-m", "pkg"), ("$(TOOL)",), ("python3",)],
)
def test_commands_that_do(place: Path, command: tuple[str, ...]) -> None:
    preflight_job_command(job(*command, workdir=str(place)), {"PATH": ""}, str(place / "bin"))


def test_the_jobs_own_path_counts_and_images_are_not_looked_into(place: Path) -> None:
    preflight_job_command(job("trainer", env={"PATH": str(place / "bin")}), {"PATH": ""}, "/nowhere")
    preflight_job_command(job("anything", image="trainer:1"), {"PATH": ""}, "/nowhere")


def test_the_working_directory_must_be_there(tmp_path: Path) -> None:
    preflight_job_workdir(job(workdir=str(tmp_path)))
    assert refusal(preflight_job_workdir, job(workdir=str(tmp_path / "x"))).reason == "WorkdirNotFound"


# --- checkpoints ---------------------------------------------------------------------------------------------------------


def test_a_checkpoint_path_is_tried_and_nothing_is_left(tmp_path: Path) -> None:
    preflight_job_checkpoint(job())
    preflight_job_checkpoint(job(checkpoint=str(tmp_path)))
    preflight_job_checkpoint(job(checkpoint=str(tmp_path / "not" / "there" / "yet")))
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_path_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refusal(preflight_job_checkpoint, job(checkpoint=str(tmp_path / "file" / "deep")))
    assert said.reason == "CheckpointPathNotWritable"
    assert "is not a directory" in said.message


def test_a_checkpoint_path_that_takes_no_files(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    path = (
        str(closed) if os.geteuid() else "/proc/checkpoints"
    )  # nothing is closed to root but what is no real directory
    said = refusal(preflight_job_checkpoint, job(checkpoint=path))
    assert said.reason == "CheckpointPathNotWritable"
    assert "--checkpoint" in said.fix
