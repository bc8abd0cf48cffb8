"""jobs, job, delete, get, version and the root command, run against a small cluster."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from remuda import __version__
from remuda.api.training import TrainingJob
from remuda.cli.app import OTHER_NAMES, SECTIONS, TWO_MEANINGS, main
from tests.unit.cli.scenes import Cli, RealSession, a_job, machines, pods


def test_the_help_begins_with_ten_everyday_commands() -> None:
    titles = list(SECTIONS)
    assert titles[0] == "Every day"
    assert len(SECTIONS["Every day"]) == 10
    assert {"drill", "probe", "quarantine", "approve", "policies"} <= set(SECTIONS["Faults"])
    long = [line for section in SECTIONS.values() for _, line in section.values() if len(line) > 66]
    assert not long, "a line of the help fits a terminal of 80 columns"


def test_words_of_other_tools_lead_to_commands_there_are() -> None:
    known = {name for section in SECTIONS.values() for name in section}
    assert set(OTHER_NAMES.values()) <= known
    assert not known & (set(OTHER_NAMES) | set(TWO_MEANINGS))


def test_help_names_every_command_and_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for section in SECTIONS.values():
        for name, (_, line) in section.items():
            assert f"\n  {name} " in text
            assert line.split()[0] in text
    assert "_REMUDA_COMPLETE=bash_source" in text


def test_every_command_of_the_table_is_there_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for section in SECTIONS.values():
        for name in section:
            assert main([name, "--help"]) == 0
            assert "Usage: remuda" in capsys.readouterr().out


def test_help_loads_no_library_it_does_not_need() -> None:
    """What makes `remuda --help` quick; the time itself depends on the machine."""
    heavy = ("aiohttp", "asyncio", "msgspec", "numpy", "rich", "structlog", "uvicorn", "yaml")
    program = (
        "import sys; from remuda.cli.app import main; main(['--help']);"
        f"print('LOADED', [m for m in {heavy!r} if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "LOADED []"


def test_no_command_at_all_shows_the_help(cli: Cli) -> None:
    result = cli.run()
    assert result.code == 2
    assert "Usage: remuda" in result.err


def test_shell_completion(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_REMUDA_COMPLETE", "bash_source")
    assert main([]) == 0
    assert "_remuda_completion" in capsys.readouterr().out
    monkeypatch.setenv("_REMUDA_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "remuda drill process-")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert main([]) == 0
    assert capsys.readouterr().out.split() == ["plain,process-hang", "plain,process-kill"]


def test_jobs(busy: Cli) -> None:
    result = busy.run("jobs")
    assert result.code == 0
    assert result.out.splitlines()[1].split()[:8] == ["hello", "Running", "2", "3/3", "140", "140", "97.1%", "1/1"]
    assert all(line == line.rstrip() for line in result.out.splitlines())


def test_jobs_as_a_list_of_objects(busy: Cli) -> None:
    document = busy.run("jobs", "-o", "json").document
    assert (document["apiVersion"], document["kind"]) == ("v1", "List")
    (item,) = document["items"]
    assert (item["apiVersion"], item["kind"]) == ("remuda.dev/v1alpha1", "TrainingJob")
    assert item["status"]["goodput"]["ettr"] == 0.9712
    assert yaml.safe_load(busy.run("jobs", "-o", "yaml").out) == document


def test_no_jobs_says_how_to_start_one_with_a_script_that_is_there(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = cli.run("jobs").out.split()
    assert (Path(words[words.index("--workdir") + 1]) / "train.py").is_file()
    (tmp_path / "examples" / "01-hello-gang").mkdir(parents=True)
    (tmp_path / "examples" / "01-hello-gang" / "train.py").touch()
    hint = "No jobs. Start one: remuda train --gpus 1{} -- python train.py\n"
    assert cli.run("jobs").out == hint.format(" --workdir examples/01-hello-gang")
    (tmp_path / "train.py").touch()
    assert cli.run("jobs").out == hint.format("")


def test_no_jobs_on_a_real_cluster_names_what_runs_there(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a command without an image is refused."""
    monkeypatch.chdir(tmp_path)
    cli.session = RealSession
    assert "train --gpus 1 --image IMAGE -- python3 /app/train.py\n" in cli.run("jobs").out
    (tmp_path / "examples" / "01-hello-gang").mkdir(parents=True)
    (tmp_path / "examples" / "01-hello-gang" / "job.yaml").touch()
    assert "train -f examples/01-hello-gang/job.yaml\n" in cli.run("jobs").out


def test_jobs_of_another_namespace_and_of_all(busy: Cli) -> None:
    assert busy.run("jobs", "-n", "other", "-o", "json").document["items"] == []
    assert busy.run("-n", "other", "jobs").out.startswith("No jobs.")
    everywhere = busy.run("jobs", "-A").out
    assert everywhere.startswith("NAMESPACE")
    assert "default" in everywhere


def test_job(busy: Cli) -> None:
    result = busy.run("job", "hello")
    assert result.code == 0
    assert "hello  Running  attempt 2" in result.out
    assert "spare  hello-worker-4  node-05  rack-1  gpu-0..7     -  parked" in result.out
    assert "not RestartInPlace" in result.out


def test_job_as_the_object(busy: Cli) -> None:
    document = busy.run("job", "hello", "-o", "json").document
    assert document["kind"] == "TrainingJob"
    assert [m["rank"] for m in document["status"]["members"]] == [0, 1, 2]
    assert document["status"]["recoveries"][0]["signalAt"].endswith("Z")


@pytest.mark.parametrize(
    "argv", [["job", "helo"], ["job", "helo", "-w"], ["delete", "helo"], ["job", "helo", "-o", "json"]]
)
def test_a_job_that_is_not_there(busy: Cli, argv: list[str]) -> None:
    result = busy.run(*argv)
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: JobNotFound: There is no job `helo` in namespace default. Did you mean `hello`?\n"


def test_without_any_job_the_fix_is_to_start_one(cli: Cli) -> None:
    assert "remuda train" in cli.run("job", "x").err


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_watching_a_job_that_has_ended_tells_how(tmp_path: Path, phase: str, code: int) -> None:
    job = a_job(phase=phase, reason="TheReason", message="The message.")
    cluster = Cli(tmp_path, [*machines(), *pods(), job])
    result = cluster.run("job", "hello", "-w")
    assert result.code == code
    assert f"hello attempt 2 {phase} - TheReason: The message." in result.out
    assert cluster.run("job", "hello", "-w", "-o", "json").document["status"]["phase"] == phase


def test_delete(busy: Cli) -> None:
    result = busy.run("delete", "hello")
    assert (result.code, result.out) == (0, "Deleted job hello; pods of it that still run are being stopped.\n")
    assert busy.objects(TrainingJob) == []


def test_delete_looks_at_all_names_before_it_touches_any(busy: Cli) -> None:
    assert busy.run("delete", "hello", "nobody").code == 2
    assert len(busy.objects(TrainingJob)) == 1
    assert busy.run("delete", "hello", "-o", "json").document == {"deleted": ["hello"]}


@pytest.mark.parametrize("kind", ["pods", "pod", "po", "Pod"])
def test_get_knows_kinds_by_all_their_names(busy: Cli, kind: str) -> None:
    names = [p["metadata"]["name"] for p in busy.run("get", kind, "-o", "json").document["items"]]
    assert names == ["hello-worker-0", "hello-worker-2", "hello-worker-3", "hello-worker-4"]


def test_get_one(busy: Cli) -> None:
    assert busy.run("get", "nodes", "node-02", "-o", "json").document["metadata"]["name"] == "node-02"
    assert busy.run("get", "jobs", "hello", "-o", "yaml").out.startswith(
        "apiVersion: remuda.dev/v1alpha1\nkind: TrainingJob\n"
    )
    assert busy.run("get", "nd").out.splitlines()[1].split()[:2] == ["-", "node-01"]
    missing = busy.run("get", "nodes", "node-99")
    assert missing.code == 2
    assert missing.err.startswith("error: NotFound: ")


def test_get_unknown_kinds(busy: Cli) -> None:
    result = busy.run("get", "podz")
    assert result.code == 2
    assert result.err == "error: UnknownKind: `podz` is not a kind Remuda serves. Did you mean `pods`?\n"


def test_version(cli: Cli) -> None:
    assert cli.run("version").out == f"remuda {__version__}\n"
    assert cli.run("version", "-o", "json").document["version"] == __version__


def test_no_cluster_is_one_clear_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for argv in (
        ["jobs"],
        ["job", "x"],
        ["devices"],
        ["nodes"],
        ["drill", "node-lost", "n"],
        ["get", "pods"],
        ["delete", "x"],
    ):
        assert main(["--state", f"{tmp_path}/none", *argv]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err == (
            f"error: ClusterNotRunning: No cluster is running in {tmp_path}/none. "
            f"Start one with `remuda --state {tmp_path}/none up -d`, choose another state directory with --state, "
            "or name a real cluster with --kubeconfig.\n"
        )


def test_a_traceback_only_when_asked_for(monkeypatch: pytest.MonkeyPatch, busy: Cli) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr("remuda.cli.jobs.job_screen.render_jobs", broken)
    result = busy.run("jobs")
    assert result.code == 1
    assert result.err.startswith("error: InternalError: ValueError: odd.")
    monkeypatch.setenv("REMUDA_DEBUG", "1")
    with pytest.raises(ValueError, match="odd"):
        busy.run("jobs")


def test_a_job_that_is_not_named_is_answered_with_those_there_are(busy: Cli, cli: Cli) -> None:
    said = "error: MissingArgument: `remuda job` needs `NAME`. "
    assert busy.run("job").err == f"{said}Choose from: hello.\n"
    assert busy.run("-n", "other", "job").err == f"{said}There are no jobs: start one with `remuda train`.\n"


def test_the_version_is_printed_as_an_option_too(cli: Cli) -> None:
    result = cli.run("--version")
    assert (result.code, result.out, result.err) == (0, cli.run("version").out, "")
    assert result.out.startswith("remuda ")


def test_a_name_alone_is_nothing_to_explain(busy: Cli) -> None:
    result = busy.run("explain", "hello")
    assert result.code == 2
    assert result.err == (
        "error: UnknownCommand: There is nothing to explain called `hello`. A pod: remuda explain pod POD "
        "(remuda job hello lists those of a job).\n"
    )


def test_a_pod_that_was_replaced_is_answered_with_the_pods_of_its_job(busy: Cli) -> None:
    gone = busy.run("explain", "pod", "hello-worker-1")
    assert gone.code == 2
    assert gone.err == (
        "error: PodNotFound: Namespace default has no pod `hello-worker-1`: it is gone, or there never was one. "
        "The pods of hello now: hello-worker-0,2..4.\n"
    )
    assert busy.run("explain", "pod", "helo-worker-0").err.endswith("Did you mean `hello-worker-0`?\n")
