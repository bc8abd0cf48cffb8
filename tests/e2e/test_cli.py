"""The command line from `up` to `down`: real processes, real sockets, fake GPUs.

One cluster for the whole module; every test brings its own job. Nothing sleeps: `remuda job -w -o json` prints an object on
every change, and tests read it until what they wait for is there.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
HELLO = EXAMPLES / "01-hello-gang"
# The example's ranks do not wait for each other and keep three checkpoints. These lie far apart: ranks of which one was stopped
# seconds before the other still have one in common.
QUICK = ("--env", "HELLO_STEP_SECONDS=0.05", "--env", "HELLO_CHECKPOINT_EVERY=100", "--env", "HELLO_STEPS=100000")

Job = dict[str, Any]


class Remuda:
    """`remuda` on one state directory."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._argv = [sys.executable, "-m", "remuda.cli", "--state", str(state)]

    def run(self, *argv: str, code: int = 0, cwd: Path = HELLO) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            [*self._argv, *argv], capture_output=True, text=True, timeout=PATIENCE_S, cwd=cwd, stdin=subprocess.DEVNULL
        )
        assert ran.returncode == code, f"{argv}: code {ran.returncode}\n{ran.stdout}\n{ran.stderr}\n{self.log()}"
        return ran

    def out(self, *argv: str) -> str:
        return self.run(*argv).stdout

    def document(self, *argv: str) -> Any:
        return json.loads(self.out(*argv, "-o", "json"))

    def refused(self, *argv: str) -> str:
        """The one line of a refusal."""
        ran = self.run(*argv, code=2)
        assert ran.stderr.startswith("error: ")
        assert ran.stderr.count("\n") == 1
        return ran.stderr

    def until(self, name: str, reached: Callable[[Job], bool], what: str) -> Job:
        """The job as it is when `reached` first holds."""
        last: Job = {}
        with (
            subprocess.Popen(
                [*self._argv, "job", name, "-w", "-o", "json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as watch,
            selectors.DefaultSelector() as ready,
        ):
            assert watch.stdout is not None
            ready.register(watch.stdout, selectors.EVENT_READ)
            try:
                end = time.monotonic() + PATIENCE_S
                while ready.select(max(0.0, end - time.monotonic())):
                    line = watch.stdout.readline()
                    if not line:
                        break
                    last = json.loads(line)
                    if reached(last["status"]):
                        return last
            finally:
                watch.kill()
        pytest.fail(f"{name} did not get to {what}: {json.dumps(last.get('status'), indent=1)}\n{self.log()}")

    def running(self, name: str, attempt: int = 1) -> Job:
        """On that attempt, with a checkpoint to come back to and its spares parked."""

        def reached(status: Job) -> bool:
            parked = all(spare.get("parked") for spare in status.get("spares", ()))
            saved = status.get("progress", {}).get("checkpointStep", 0) > 0
            is_there = (
                status.get("attempt", 0) - status.get("stage", 0) == attempt
            )  # each stage is an attempt of its own
            return bool(status.get("phase") == "Running" and is_there and parked and saved)

        return self.until(name, reached, f"attempt {attempt}")

    def recovered(self, name: str, attempt: int) -> Job:
        def reached(status: Job) -> bool:
            return any(r["attempt"] == attempt and "firstStepAt" in r for r in status.get("recoveries", ()))

        return self.until(name, reached, f"the first step of attempt {attempt}")

    def log(self) -> str:
        path = self.state / "up.log"
        return path.read_text()[-4000:] if path.exists() else "(no up.log)"


def left_over(state: Path) -> list[str]:
    """Command lines of processes that still belong to the cluster: ours, launchers, and the users' below them."""
    mark = str(state).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
                if mark in command or mark in (entry / "environ").read_bytes():
                    found.append(f"{entry.name}: {command.replace(bytes(1), b' ').decode(errors='replace')}")
            except OSError:
                continue  # it ended while we looked
    return found


def members(job: Job) -> dict[int, tuple[str, tuple[str, ...]]]:
    """rank -> (uid, devices); rank 0 is left out on the wire like every other zero."""
    return {m.get("rank", 0): (m["uid"], tuple(m["devices"])) for m in job["status"]["members"]}


@pytest.fixture(scope="module")
def remuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remuda]:
    cluster = Remuda(tmp_path_factory.mktemp("state"))
    started = cluster.out("up", "--detach", "--nodes", "12", "--racks", "2", "--lease", "10")
    try:
        assert "The cluster is ready: 12 nodes x 8 " in started
        assert "remuda train" in started
        yield cluster
    finally:
        stopped = cluster.run("down", "--wait", "30")
    assert "done after" in stopped.stdout
    assert left_over(cluster.state) == []


@pytest.fixture
def hello(remuda: Remuda, request: pytest.FixtureRequest) -> Iterator[str]:
    """Two ranks of four GPUs and a spare, training."""
    name = request.node.name.replace("_", "-").removeprefix("test-")[:40].strip("-")
    argv = ("--replicas", "2", "--gpus", "4", "--spares", "1", *QUICK, "--", "python", "train.py")
    assert f"Created job {name}: 2 ranks with 8 GPUs and 1 spare" in remuda.out("train", name, *argv)
    remuda.running(name)
    yield name
    remuda.run("delete", name)


def test_a_killed_process(remuda: Remuda, hello: str) -> None:
    before = members(remuda.document("job", hello))
    said = remuda.out("drill", "process-kill", hello, "--rank", "1")
    assert f"Done: rank 1 of {hello}: SIGKILL" in said
    job = remuda.recovered(hello, 2)
    assert members(job) == before, "a process that dies costs no pod and no device"
    screen = remuda.out("job", hello)
    assert "RestartInPlace" in screen
    assert "not PromoteSpare" in screen
    old, new = (remuda.out("logs", hello, "--rank", "1", "--attempt", str(n)) for n in (1, 2))
    assert "attempt 1, continues after step 0" in old
    resumed = job["status"].get("resumeStep", 0)  # absent: it was killed before its first checkpoint
    assert f"attempt 2, continues after step {resumed}" in new
    both = remuda.out("logs", hello, "--tail", "1")
    assert {line.split("]")[0] for line in both.splitlines()} == {"[rank 0", "[rank 1"}


def test_a_failed_device(remuda: Remuda, hello: str) -> None:
    before = remuda.document("job", hello)
    lost = next(m for m in before["status"]["members"] if m.get("rank", 0) == 1)
    remuda.run("drill", "device-fail", hello, "--rank", "1", "--device", lost["devices"][1], "--code", "79")
    job = remuda.recovered(hello, 2)
    kept, moved = members(job)[0], members(job)[1]
    assert kept == members(before)[0]
    assert moved[0] == before["status"]["spares"][0]["uid"], "the parked spare took the rank over"
    bad = [d for d in remuda.document("devices")["devices"] if d["state"] != "Healthy" and d["node"] == lost["node"]]
    assert [(d["device"], d["reason"]) for d in bad] == [(lost["devices"][1], "Xid79")]
    ledger = remuda.out("devices")
    assert "Xid79" in ledger
    assert "✗" in ledger or "X" in ledger
    assert "no rank 7" in remuda.refused("drill", "process-kill", hello, "--rank", "7")


def test_what_programs_read(remuda: Remuda, hello: str) -> None:
    jobs = remuda.document("jobs")
    assert (jobs["kind"], [j["metadata"]["name"] for j in jobs["items"]]) == ("List", [hello])
    assert remuda.document("job", hello)["kind"] == "TrainingJob"
    nodes = remuda.document("nodes")["items"]
    assert [n["metadata"]["name"] for n in nodes] == [f"node-{n:02d}" for n in range(1, 13)]
    devices = remuda.document("devices")["devices"]
    assert len(devices) == 96
    assert set(devices[0]) >= {
        *("node", "rack", "device", "type", "state", "reason", "message", "since", "holder", "draining")
    }
    held = [d["holder"] for d in devices if d["holder"].startswith(f"default/{hello}-")]
    assert len(held) == 12
    pods = remuda.document("get", "pods")["items"]
    assert sum(p["metadata"]["labels"]["remuda.dev/gang"] == hello for p in pods) == 3
    entries = [json.loads(line) for line in remuda.out("logs", hello, "-o", "json", "--tail", "1").splitlines()]
    assert sorted(entry["rank"] for entry in entries) == [0, 1]


def test_bad_input(remuda: Remuda, hello: str) -> None:
    before = remuda.document("jobs")["items"]
    command = ("--", "python", "train.py")
    assert "JobNameTaken" in remuda.refused("train", hello, *command)
    assert "GpusExceedNode" in remuda.refused("train", "x", "--gpus", "9", *command)
    assert "CommandNotFound" in remuda.refused("train", "x", "--", "no-such-program")
    assert "CheckpointPathNotWritable" in remuda.refused("train", "x", "--checkpoint", "/proc/x", *command)
    assert "InvalidReplicas" in remuda.refused("train", "x", "--replicas", "-1", *command)
    assert [j["metadata"]["name"] for j in remuda.document("jobs")["items"]] == [j["metadata"]["name"] for j in before]


def test_a_second_cluster_is_refused(remuda: Remuda) -> None:
    assert "StateInUse" in remuda.refused("up")
    assert "StateInUse" in remuda.refused("up", "--detach")


def test_following_to_the_end(remuda: Remuda) -> None:
    short = ("--env", "HELLO_STEPS=6", "--env", "HELLO_STEP_SECONDS=0.05", "--env", "HELLO_CHECKPOINT_EVERY=3")
    ran = remuda.out("train", "short", "--gpus", "1", *short, "-w", "--", "python", "train.py")
    assert "short attempt 1 Running" in ran
    assert "short attempt 1 Succeeded" in ran
    assert "step 6 loss" in remuda.out("logs", "short", "-f")
    remuda.run("delete", "short")
    assert "step 6 loss" in remuda.out("logs", "short"), "logs outlive their job"


@pytest.mark.parametrize("example", sorted(p.name for p in EXAMPLES.iterdir() if (p / "job.yaml").exists()))
def test_examples_train_from_their_file(remuda: Remuda, example: str) -> None:
    file = EXAMPLES / example / "job.yaml"
    made = json.loads(remuda.run("train", "-f", str(file), "-o", "json", cwd=Path("/")).stdout)
    name = made["metadata"]["name"]
    attempt = remuda.running(name)["status"]["attempt"]
    remuda.run("drill", "process-kill", name, "--rank", "0")
    job = remuda.recovered(name, attempt + 1)
    assert job["status"]["recoveries"][0]["resumeStep"] > 0
    remuda.run("delete", name)


# The others show what only Remuda gives, or need a framework that this Python does not have.
@pytest.mark.parametrize("example", ["01-hello-gang", "02-progress-file"])
def test_examples_run_without_remuda(tmp_path: Path, example: str) -> None:
    quick = {
        f"{word}_{what}": value
        for word in ("HELLO", "TRAIN")
        for what, value in (("STEPS", "12"), ("STEP_SECONDS", "0"))
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("REMUDA", "PYTHON"))}
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / example / "train.py")],
        env={**clean, **quick},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "step 10 loss" in ran.stdout


def test_down_ends_every_process_and_up_goes_on(tmp_path: Path) -> None:
    remuda = Remuda(tmp_path / "state")
    try:
        remuda.run("up", "--detach", "--nodes", "1", "--racks", "1", "--lease", "10")
        remuda.run("train", "stays", "--gpus", "2", *QUICK, "--", "python", "train.py")
        remuda.running("stays")
        remuda.run("down")
        assert left_over(remuda.state) == []
        assert "ClusterNotRunning" in remuda.refused("jobs")
        assert "StateMadeDifferently" in remuda.refused("up", "--nodes", "2")
        remuda.run("up", "--detach")
        step = remuda.document("job", "stays")["status"]["progress"]["checkpointStep"]
        remuda.until("stays", lambda s: s.get("phase") == "Running" and s["progress"]["step"] > step, "further steps")
    finally:
        remuda.run("down")
    assert left_over(remuda.state) == []
    assert remuda.out("down") == f"No cluster is running in {remuda.state}.\n"
