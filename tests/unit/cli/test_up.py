"""What `remuda up` and `remuda down` say when there is nothing to start or to stop."""

import re
import subprocess
from pathlib import Path

import pytest

from remuda.api.errors import Refusal
from remuda.cli.app import main
from remuda.cli.cluster.up import describe_cluster, merge_up_command_line_options, up_hint_gpus_per_node, up_log_tail
from remuda.runtime.device_sharing import (
    cluster_config_mig_words,
    cluster_config_replica_words,
    resources_after_device_sharing,
)
from remuda.runtime.machine_model_files import resolve_machine_model_file
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import ClusterConfig, check_cluster_config
from tests.builders.waiting import PATIENCE_S

MADE = ClusterConfig(nodes=4, racks=1, lease_seconds=3.0)


def test_options_win_over_the_directory_and_that_over_defaults() -> None:
    unset = {"nodes": None, "racks": None, "lease": None}
    assert merge_up_command_line_options(None, unset) == ClusterConfig()
    assert merge_up_command_line_options(MADE, unset) == MADE
    assert merge_up_command_line_options(MADE, {"nodes": 8, "lease": 2.0}) == ClusterConfig(
        nodes=8, racks=1, lease_seconds=2.0
    )


def test_no_more_racks_than_nodes_unless_asked_for() -> None:
    assert check_cluster_config(merge_up_command_line_options(None, {"nodes": 1})).racks == 1
    assert merge_up_command_line_options(None, {"nodes": 3}).racks == 2
    made = ClusterConfig(nodes=4, racks=4)
    assert merge_up_command_line_options(made, {"nodes": 4}) == made
    assert check_cluster_config(merge_up_command_line_options(made, {"nodes": 2})).nodes == 2, (
        "the contradiction is for `agree` to name"
    )
    with pytest.raises(Refusal, match="InvalidRacks"):
        check_cluster_config(merge_up_command_line_options(None, {"nodes": 1, "racks": 2}))


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_file_is_no_state_directory(tmp_path: Path, capfd: pytest.CaptureFixture[str], detach: list[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["--state", str(tmp_path / "file"), "up", *detach]) == 2
    err = capfd.readouterr().err
    assert err.startswith(
        f"error: StateNotReadable: {tmp_path}/file cannot be used as the state directory: Not a direct"
    )
    assert "--state" in err


def test_devices_cut_and_shared_are_said_as_they_are_asked_for() -> None:
    asked = {"mig": ("gpu-0=3g.40gb,3g.40gb", "all=1g.10gb*7"), "replicas": ("nvidia.com/mig-1g.10gb=2",)}
    config = check_cluster_config(merge_up_command_line_options(None, asked))
    assert config.mig == {"gpu-0": ("3g.40gb",) * 2, "all": ("1g.10gb",) * 7}
    assert config.replicas == {"nvidia.com/mig-1g.10gb": 2}
    assert "; cut gpu-0=3g.40gb*2, all=1g.10gb*7; shared nvidia.com/mig-1g.10gb=2 (" in describe_cluster(config)
    again = merge_up_command_line_options(
        None,
        {
            "mig": tuple(cluster_config_mig_words(config.mig)),
            "replicas": tuple(cluster_config_replica_words(config.replicas)),
        },
    )
    assert again == config
    assert resources_after_device_sharing(resolve_machine_model_file("dgx-h100"), config.mig) == [
        "nvidia.com/mig-3g.40gb",
        "nvidia.com/mig-1g.10gb",
    ]
    assert (
        up_hint_gpus_per_node(config),
        up_hint_gpus_per_node(ClusterConfig()),
        up_hint_gpus_per_node(ClusterConfig(model="mi300x-8x")),
    ) == (0, 8, 0)


def test_the_cluster_in_one_line() -> None:
    words = describe_cluster(ClusterConfig())
    assert words.startswith("16 nodes x 8 ")
    assert words.endswith("in 2 racks: 128 GPUs (real processes)")


@pytest.mark.parametrize("detach", [[], ["--detach"]])
@pytest.mark.parametrize(
    ("argv", "reason", "words"),
    [
        (["--nodes", "0"], "InvalidNodes", "--nodes is 0."),
        (["--racks", "99"], "InvalidRacks", "from 1 to"),
        (["--model", "toaster"], "UnknownMachineModel", "Known: "),
        (["--runtime", "magic"], "InvalidRuntime", "process or simulated"),
        (["--lease", "0"], "InvalidLease", "1 to 3600"),
        (["--mig", "gpu-0"], "InvalidMigLayout", "gpu-0=3g.40gb*2"),
        (["--mig", "gpu-0=3g.40gb", "--mig", "gpu-0=1g.10gb"], "InvalidMigLayout", "`gpu-0` is given two layouts"),
        (["--mig", "gpu-0=3g.30gb"], "UnknownMigProfile", "Near: 3g.40gb"),
        (["--mig", "all=3g.40gb*3"], "IllegalMigLayout", "2 x 3g.40gb would fit"),
        (["--mig", "gpu-8=3g.40gb"], "UnknownDevice", "gpu-0, gpu-1"),
        (["--mig", "gpu-0=3g.40gb", "--model", "l40s-4x-pcie"], "MigNotSupported", "gpu-0 cannot be cut"),
        (["--mig", "gpu-0=3g.40gb"], "StateMadeDifferently", "no --mig, not with --mig gpu-0=3g.40gb"),
        (["--replicas", "gpu=2"], "InvalidReplicas", "nvidia.com/gpu=4"),
        (["--replicas", "nvidia.com/gpu=0"], "InvalidReplicas", "from 1 to 64"),
        (["--replicas", "amd.com/gpu=2"], "InvalidReplicas", "There are: nvidia.com/gpu"),
        (["--nodes", "5"], "StateMadeDifferently", "--nodes 4, not with --nodes 5. Use --nodes 4, or another"),
        (
            ["--nodes", "5", "--racks", "2"],
            "StateMadeDifferently",
            "--nodes 4 --racks 1, not with --nodes 5 --racks 2.",
        ),
    ],
)
def test_a_cluster_that_cannot_be_made(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], detach: list[str], argv: list[str], reason: str, words: str
) -> None:
    StateDir(tmp_path).remember(MADE)
    assert main(["--state", str(tmp_path), "up", *argv, *detach]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"error: {reason}: ")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "store.db").exists()


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_second_cluster_on_one_directory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], detach: list[str]
) -> None:
    with StateDir(tmp_path).locked():
        assert main(["--state", str(tmp_path), "up", *detach]) == 2
    assert capfd.readouterr().err.startswith(f"error: StateInUse: A cluster is already running in {tmp_path} (pid ")


def test_down_without_a_cluster_is_no_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--state", str(tmp_path), "down"]) == 0
    assert capfd.readouterr().out == f"No cluster is running in {tmp_path}.\n"


HOLDER = """
import signal, sys, time
from pathlib import Path
from remuda.runtime.state_dir import StateDir
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[2] == "deaf" else lambda *_: sys.exit(0))
with StateDir(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(60)
"""


def holder(state: Path, manner: str) -> "subprocess.Popen[str]":
    import sys

    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(state), manner], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_down_ends_the_holder_and_waits_for_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with holder(tmp_path, "obeys") as child:
        assert main(["--state", str(tmp_path), "down"]) == 0
        assert child.wait(timeout=PATIENCE_S) == 0
    shown = capfd.readouterr().out
    assert re.search(rf"Stopping the cluster \(pid {child.pid}\)\.* done after", shown), shown  # a dot a second
    assert StateDir(tmp_path).holder() is None


def test_down_gives_up_on_one_that_does_not_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with holder(tmp_path, "deaf") as child:
        assert main(["--state", str(tmp_path), "down", "--wait", "0"]) == 1
        assert f"kill -9 {child.pid}" in capfd.readouterr().err
        child.kill()


def test_a_background_cluster_that_dies_shows_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "up.log").write_text("an old line\n")
    (tmp_path / "store.db").write_text("this is no database" * 100)
    assert main(["--state", str(tmp_path), "up", "--detach", "--nodes", "1", "--racks", "1"]) == 1
    err = capfd.readouterr().err
    assert err.splitlines()[0] == f"--- {tmp_path}/up.log"
    assert "an old line" not in err
    assert "error: " in err.splitlines()[1]
    assert err.splitlines()[-1].startswith("error: ClusterNotStarted: The cluster ended with code ")


def test_the_end_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert up_log_tail(path, 0, 3) == ""
    path.write_text("a\nb\nc\nd\n")
    assert up_log_tail(path, 0, 3) == "b\nc\nd"
    assert up_log_tail(path, 6, 3) == "d"
