"""`remuda suspend` and `remuda resume`, the flags of `remuda train` beside them, and how such jobs look."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from remuda.api.meta import to_time
from remuda.api.training import Progress, ResumeFrom, TrainingJob
from tests.unit.cli.scenes import NOW, Cli, a_job, machines, pods


@pytest.fixture
def busy(tmp_path: Path) -> Cli:
    return Cli(tmp_path, [*machines(), *pods(), a_job()])


def test_suspend_and_resume_change_one_field(busy: Cli) -> None:
    result = busy.run("suspend", "hello")
    assert (result.code, result.out.split(".")[0]) == (0, "Job hello saves a checkpoint and stops")
    (job,) = busy.objects(TrainingJob)
    assert job.spec.suspend
    assert job.status.phase == "Running", "what becomes of it is the controller's to say"
    assert busy.run("suspend", "hello").out == "Job hello is already suspended.\n"
    assert busy.run("resume", "hello").code == 0
    assert not busy.objects(TrainingJob)[0].spec.suspend
    assert busy.run("resume", "hello").out == "Job hello is not suspended.\n"


def test_resuming_from_a_step_is_consent_for_the_next_start(tmp_path: Path) -> None:
    cli = Cli(tmp_path, [*machines(), *pods(), a_job(phase="Recovering", barrier="Closed", attempt=7)])
    result = cli.run("resume", "hello", "--from-step", "1200")
    assert (result.code, result.out.split(".")[0]) == (0, "Job hello continues from the checkpoint of step 1200")
    (job,) = cli.objects(TrainingJob)
    assert job.spec.checkpoint.resume_from == ResumeFrom(step=1200, attempt=7)
    assert not job.spec.suspend


def test_resuming_a_running_job_from_a_step_is_refused(busy: Cli) -> None:
    result = busy.run("resume", "hello", "--from-step", "0")
    assert result.code == 2
    assert result.err.startswith("error: JobRuns: Job hello is running")
    assert busy.objects(TrainingJob)[0].spec.checkpoint.resume_from is None


def test_as_a_document(busy: Cli) -> None:
    assert busy.run("suspend", "hello", "-o", "json").document == {"suspended": ["hello"]}
    assert busy.run("resume", "hello", "-o", "json").document == {"resumed": ["hello"]}


def test_all_names_are_looked_at_before_any_is_touched(busy: Cli) -> None:
    assert busy.run("suspend", "hello", "nobody").code == 2
    assert not busy.objects(TrainingJob)[0].spec.suspend


def test_a_job_that_has_ended_is_refused(tmp_path: Path) -> None:
    cli = Cli(tmp_path, [*machines(), *pods(), a_job(phase="Failed")])
    result = cli.run("resume", "hello")
    assert result.code == 2
    assert result.err.startswith("error: JobFinished: Job hello has ended (Failed).")
    assert "with the same --checkpoint it continues" in result.err
    done = Cli(tmp_path / "done", [*machines(), *pods(), a_job(phase="Succeeded")]).run("resume", "hello")
    assert done.err.endswith("has ended (Succeeded). Start a new job with `remuda train`.\n")


def test_the_flags_of_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    cli = Cli(tmp_path, machines())
    flags = ["--total-steps", "500", "--deadline", "3600", "--ttl", "0", "--suspend"]
    result = cli.run("train", "hello", *flags, "--", "python", "train.py")
    assert result.code == 0, result.err
    (job,) = cli.objects(TrainingJob)
    spec = job.spec
    assert (spec.total_steps, spec.active_deadline_seconds, spec.ttl_seconds_after_finished) == (500, 3600.0, 0.0)
    assert spec.suspend
    refused = cli.run("train", "other", "--ttl", "-1", "--", "python", "train.py")
    assert refused.code == 2
    assert "--ttl is -1 seconds" in refused.err


def test_progress_and_eta_are_shown(tmp_path: Path) -> None:
    progress = Progress(step=140, total_steps=560, eta=to_time(NOW + 725.0), step_seconds=1.0)
    cli = Cli(tmp_path, [*machines(), *pods(), a_job(progress=progress)])
    head, line = cli.run("jobs").out.splitlines()
    assert "ETA" in head.split()
    assert "140/560" in line
    assert "12m05s" in line
    assert "step 140 of 560 (25.0%)" in cli.run("job", "hello").out
    assert "done in 12m05s" in cli.run("job", "hello").out


def test_the_rule_of_a_recovery_is_named(tmp_path: Path) -> None:
    job = a_job()
    told = msgspec.structs.replace(job.status.recoveries[0], rule="flaky", charged="")
    cli = Cli(tmp_path, [*machines(), *pods(), a_job(recoveries=[told])])
    assert "by the job's rule flaky, charged to nobody" in cli.run("job", "hello").out
