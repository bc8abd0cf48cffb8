"""`remuda train` from the command line to the object in the API."""

import io
import re
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from remuda.api.devices import NodeDevices
from remuda.api.meta import KObject
from remuda.api.training import TrainingJob
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import RACK_LABEL, ClusterConfig
from tests.unit.cli.scenes import Cli, RealSession, Result, machines
from tests.unit.cli.test_manifest import GOOD


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (place / "train.py").write_text("")
    (place / "job.yaml").write_text(GOOD)
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def cluster(tmp_path: Path, here: Path) -> Cli:
    return Cli(tmp_path, machines())


def train(cli: Cli, *argv: str) -> Result:
    return cli.run("train", *argv)


def jobs(cli: Cli) -> list[TrainingJob]:
    return cli.objects(TrainingJob)


def test_a_job_without_yaml(cluster: Cli, here: Path) -> None:
    result = train(
        cluster, "hello", "--replicas", "4", "--gpus", "8", "--spares", "1", "--", "python", "train.py", "--lr", "1"
    )
    assert result.code == 0, result.err
    assert "Created job hello: 4 ranks with 32 GPUs and 1 spare, all in one rack." in result.out
    assert "remuda job hello -w" in result.out
    (job,) = jobs(cluster)
    container = job.spec.roles[0].template.spec["containers"][0]
    assert container["command"] == ["python", "train.py", "--lr", "1"]
    assert container["workingDir"] == str(here)
    assert job.spec.topology.required == RACK_LABEL


def test_a_name_is_made_up_when_none_is_given(cluster: Cli) -> None:
    first = train(cluster, "-o", "json", "--", "python", "train.py").document["metadata"]["name"]
    second = train(cluster, "-o", "json", "--", "python", "train.py").document["metadata"]["name"]
    assert first.startswith("train-")
    assert first != second


def test_a_gang_no_rack_can_hold_may_span_racks(cluster: Cli) -> None:
    result = train(cluster, "wide", "--replicas", "6", "--gpus", "8", "--", "python", "train.py")
    assert result.code == 0
    assert result.err.startswith("note: No rack is big enough for 6 pods with 8 GPUs each")
    assert jobs(cluster)[0].spec.topology.required == ""
    insisted = train(
        cluster, "insists", "--replicas", "6", "--gpus", "8", "--topology", "rack", "--", "python", "train.py"
    )
    assert insisted.err == (
        "note: No rack is big enough for 6 pods with 8 GPUs each (the largest has room for 5), so the job waits. "
        "Ask for fewer pods, or use --topology none.\n"
    )
    assert {j.name: j.spec.topology.required for j in jobs(cluster)}["insists"] == RACK_LABEL


def test_a_topology_that_no_node_has_is_noted(cluster: Cli, here: Path) -> None:
    result = train(cluster, "x", "--topology", "racks", "--", "python", "train.py")
    assert result.code == 0
    assert result.err.startswith("note: No node has the label racks, so the job waits. ")
    (here / "tight.yaml").write_text(GOOD.replace("spec:", f"spec:\n  topology: {{required: {RACK_LABEL}}}", 1))
    assert train(cluster, "-f", "tight.yaml").err == ""


@pytest.mark.parametrize("topology", [(), ("--topology", "none"), ("--topology", "rack")])
def test_a_gang_the_whole_cluster_cannot_hold_is_told_so(cluster: Cli, topology: tuple[str, ...]) -> None:
    result = train(cluster, "huge", "--replicas", "400", "--gpus", "8", *topology, "--", "python", "train.py")
    assert result.code == 0
    assert result.err == (
        "note: Role worker needs 400 pods of 8 GPUs; the cluster (48 GPUs on 6 nodes) has room for 6, were it empty. "
        "Ask for at most 6 replicas, or add nodes for 394 more.\n"
    )
    assert "It cannot start on the nodes that there are now" in result.out
    assert "follow it" not in result.out
    assert "remuda delete huge" in result.out


def test_a_gang_that_no_rack_can_hold_is_not_followed_either(cluster: Cli) -> None:
    result = train(cluster, "x", "--replicas", "6", "--gpus", "8", "--topology", "rack", "--", "python", "train.py")
    assert "It cannot start on the nodes that there are now" in result.out
    assert "follow it" not in result.out


def test_before_nodes_have_reported_nobody_says_that_a_job_cannot_start(tmp_path: Path, here: Path) -> None:
    result = train(Cli(tmp_path / "empty"), "x", "--replicas", "400", "--", "python", "train.py")
    assert (result.code, result.err) == (0, "")
    assert "follow it" in result.out


def test_a_file(cluster: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    result = train(cluster, "-f", str(here / "job.yaml"))
    assert result.code == 0, result.err
    (job,) = jobs(cluster)
    assert job.name == "hello"
    assert job.spec.roles[0].template.spec["containers"][0]["workingDir"] == str(here)
    assert train(cluster, "again", "-f", str(here / "job.yaml")).code == 0


def test_standard_input(cluster: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(GOOD))
    assert train(cluster, "-f", "-").code == 0
    assert jobs(cluster)[0].spec.roles[0].template.spec["containers"][0]["workingDir"] == str(here)


def test_a_dry_run_prints_a_job_that_could_be_sent_and_creates_nothing(cluster: Cli) -> None:
    result = train(cluster, "hello", "--replicas", "2", "--dry-run", "--", "python", "train.py")
    assert result.code == 0
    body = yaml.safe_load(result.out)
    assert (body["kind"], body["spec"]["roles"][0]["replicas"]) == ("TrainingJob", 2)
    assert jobs(cluster) == []
    Path("dry.yaml").write_text(result.out)
    assert train(cluster, "-f", "dry.yaml").code == 0


COMMAND = ("--", "python", "train.py")


@pytest.mark.parametrize(
    ("argv", "reason", "words"),
    [
        (("x", "--replicas", "-1", *COMMAND), "InvalidReplicas", ": --replicas is -1. Give a number from 1 "),
        (("x", "--gpus", "2000", *COMMAND), "InvalidGpus", ": --gpus is 2000. Give a number from 0 to 1024."),
        (("x", "--spares", "-1", *COMMAND), "InvalidSpares", ": --spares is -1."),
        (("x", "--total-steps", "-1", *COMMAND), "InvalidSteps", ": --total-steps is -1."),
        (("x", "--budget", "code=9999999", *COMMAND), "InvalidBudget", ": --budget code is 9999999."),
        (
            ("x", "--hang-after", "30h", *COMMAND),
            "InvalidSeconds",
            ": --hang-after is 108000 seconds. Give a time from 0 to 86400 seconds.",
        ),
        (
            ("x", "--env", "REMUDA_RANK=1", *COMMAND),
            "InjectedField",
            ": --env sets the variable `REMUDA_RANK`, which Remuda sets itself. Give it another name.",
        ),
        (("-f", "few.yaml"), "InvalidReplicas", ": spec.roles[0].replicas is 0."),
        (("x", "--gpus", "64", *COMMAND), "GpusExceedNode", "the largest node has 8"),
        (("x", "--", "no-such-program"), "CommandNotFound", "There is no command `no-such-program` on the PATH."),
        (("x", "--", "python", "missing.py"), "CommandNotFound", "missing.py does not exist"),
        (("x", "--checkpoint", "train.py/deep", *COMMAND), "CheckpointPathNotWritable", "is not a directory"),
        (("x", "--workdir", "nowhere", *COMMAND), "WorkdirNotFound", "nowhere does not exist"),
        (("x",), "NoCommand", "after `--`"),
        (("x", "--"), "NoCommand", "after `--`"),
        ((), "NoCommand", "after `--`"),
        (("python", "train.py"), "MisplacedCommand", "remuda train ... -- python train.py"),
        (("t1", "--replicas", "2", "python", "train.py"), "MisplacedCommand", "remuda train t1 ... -- python train.py"),
        (("X_1", *COMMAND), "InvalidName", "lower-case"),
        (("x", "--budget", "cod=1", *COMMAND), "InvalidBudget", "Did you mean `code`?"),
        (("x", "--env", "A B=1", *COMMAND), "InvalidEnv", "--env NAME=VALUE"),
        (("-f", "nowhere.yaml"), "FileNotReadable", "no such file or directory"),
        (("-f", "."), "FileNotReadable", "is a directory"),
        (("-f", "job.yaml", "--gpus", "4", "--hang-after", "3"), "FileAndFlags", "by -f and by --gpus, --hang-after"),
        (("-f", "job.yaml", *COMMAND), "FileAndFlags", "-- COMMAND"),
        (("-f", "broken.yaml"), "InvalidYaml", "broken.yaml line 2, column 8: mapping values are not allowed here"),
        (("-f", "typo.yaml"), "UnknownField", "`spec.roles[0].replica` is not a field. Did you mean `replicas`?"),
        (("-f", "latin.yaml"), "InvalidYaml", "not UTF-8"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_created(
    cluster: Cli, here: Path, argv: tuple[str, ...], reason: str, words: str
) -> None:
    (here / "broken.yaml").write_text("kind: TrainingJob\nspec: a: b")
    (here / "typo.yaml").write_text(GOOD.replace("replicas", "replica"))
    (here / "latin.yaml").write_bytes(b"name: \xff\xfe")
    (here / "few.yaml").write_text(re.sub(r"replicas: \d+", "replicas: 0", GOOD))
    result = train(cluster, *argv)
    assert result.code == 2, result.out
    assert result.err.startswith(f"error: {reason}: "), result.err
    assert words in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""
    assert jobs(cluster) == []
    files = ["broken.yaml", "few.yaml", "job.yaml", "latin.yaml", "train.py", "typo.yaml"]
    assert sorted(p.name for p in here.iterdir()) == files


def test_a_taken_name(cluster: Cli) -> None:
    assert train(cluster, "hello", *COMMAND).code == 0
    result = train(cluster, "hello", "--replicas", "2", *COMMAND)
    assert result.code == 2
    assert result.err == (
        "error: JobNameTaken: There is already a job `hello` in namespace default. "
        "Choose another name, or delete that job first: remuda delete hello\n"
    )
    assert [j.spec.roles[0].replicas for j in jobs(cluster)] == [1]
    assert train(cluster, "hello", "-n", "other", *COMMAND).code == 0, "names are per namespace"


def test_checkpoints_of_an_earlier_job_are_mentioned(cluster: Cli, here: Path) -> None:
    for place in (cluster.state / "checkpoints" / "default" / "hello", here / "mine"):
        (place / "rank-0").mkdir(parents=True)
        (place / "rank-0" / "step-10.json").write_text("{}")
    own = train(cluster, "hello", *COMMAND)
    assert own.err.startswith(f"note: Found checkpoints in {cluster.state}/checkpoints/default/hello:")
    named = train(cluster, "other", "--checkpoint", "mine", *COMMAND)
    assert f"Found checkpoints in {here}/mine:" in named.err
    assert train(cluster, "third", *COMMAND).err == ""


def test_simulated_pods_need_no_command_on_this_machine(cluster: Cli) -> None:
    StateDir(cluster.state).remember(ClusterConfig(runtime="simulated"))
    result = train(cluster, "x", "--workdir", "/no/such/place", "--checkpoint", "/proc/x", "--", "no-such-program")
    assert result.code == 0, result.err


def test_a_dry_run_without_a_cluster_checks_what_it_can(
    tmp_path: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from remuda.cli.app import main

    argv = ["--state", str(tmp_path / "none"), "train", "x", "--dry-run", *COMMAND]
    assert main(argv) == 0
    out, err = capfd.readouterr()
    assert yaml.safe_load(out)["metadata"]["name"] == "x"
    assert "note: No cluster is running" in err
    assert main([*argv[:-1], "missing.py"]) == 2


def with_doors(count: int) -> list[KObject]:
    """The agents of so many nodes listen for others."""
    made = machines()
    for index, node in enumerate([m for m in made if isinstance(m, NodeDevices)]):
        if index < count:
            observed = msgspec.structs.replace(node.observed, door="10.0.0.1:9444")
            made[made.index(node)] = msgspec.structs.replace(node, observed=observed)
    return made


@pytest.mark.parametrize(
    ("doors", "words"),
    [
        (6, "and its agent copies each to one other node where it can:"),
        (4, "and the agents of 2 of 6 nodes copy none: a node that is lost takes its checkpoints with it"),
        (1, "and no two agents here meet to copy them: a node that is lost takes its checkpoints with it"),
        (0, "and no two agents here meet to copy them: a node that is lost takes its checkpoints with it"),
    ],
)
def test_a_job_whose_checkpoints_stay_on_the_disks_of_nodes_is_told_who_copies_them(
    tmp_path: Path, here: Path, doors: int, words: str
) -> None:
    cluster, asked = Cli(tmp_path, with_doors(doors)), ("x", "--dry-run", "--image", "i", "--", "python", "train.py")
    assert "note: Each node" not in train(cluster, *asked).err, "one machine is one disk"
    cluster.session = RealSession
    result = train(cluster, *asked)
    assert f"note: Each node keeps the checkpoints of its own ranks on its disk, {words}" in result.err
    assert "spec.checkpoint.volume" in result.err


def test_a_job_whose_checkpoints_are_shared_is_told_nothing(cluster: Cli, here: Path) -> None:
    shared = "spec:\n  checkpoint: {volume: {nfs: {server: s, path: /p}}}"
    named = GOOD.replace("spec:", shared, 1).replace("- command:", "- image: i\n              command:")
    (here / "shared.yaml").write_text(named)
    result = train(cluster, "-f", "shared.yaml", "--dry-run")
    assert (result.code, "note: Each node" in result.err) == (0, False), result.err


def test_a_real_cluster_is_not_sent_a_job_without_an_image(cluster: Cli) -> None:
    cluster.session = RealSession
    result = train(cluster, "x", "--", "python", "train.py")
    assert (result.code, jobs(cluster)) == (2, [])
    assert "NoImage" in result.err
    assert train(cluster, "x", "--image", "python:3.12-slim", "--", "python", "train.py").code == 0
