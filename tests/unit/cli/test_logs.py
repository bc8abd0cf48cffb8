"""Logs by rank and attempt, from files that outlive their pods."""

from pathlib import Path

import pytest

from remuda.cli.jobs.logs import LogFollower, ShownLogLines
from remuda.link.rank_logs import RankLogIndex
from tests.unit.cli.scenes import Cli, a_job


def marker(attempt: int, rank: int, pod: str) -> str:
    return f"--- remuda attempt={attempt} rank={rank} host={pod} time=1.0 ---\n"


def write(state: Path, pod: str, text: str, job: str = "hello", uid: str = "made-1") -> Path:
    path = state / "logs" / "default" / f"{job}_{uid}" / f"{pod}_uid" / "main.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
    return path


@pytest.fixture
def written(tmp_path: Path) -> Cli:
    """Rank 1 moved from pod-1 to the spare in attempt 2; pod-1 is gone."""
    write(tmp_path, "pod-0", marker(1, 0, "pod-0") + "zero one\n" + marker(2, 0, "pod-0") + "zero two\nzero more\n")
    write(tmp_path, "pod-1", marker(1, 1, "pod-1") + "one one\nunfinished")
    write(tmp_path, "spare", marker(2, 1, "spare") + "one two\n")
    return Cli(tmp_path, [a_job()])


def test_the_newest_attempt_of_all_ranks(written: Cli) -> None:
    assert written.run("logs", "hello").out == "[rank 0] zero two\n[rank 0] zero more\n[rank 1] one two\n"


def test_one_rank_has_no_prefix(written: Cli) -> None:
    assert written.run("logs", "hello", "--rank", "0").out == "zero two\nzero more\n"


def test_an_old_attempt_of_a_pod_that_is_gone(written: Cli) -> None:
    assert written.run("logs", "hello", "--rank", "1", "--attempt", "1").out == "one one\nunfinished\n"


def test_tail_counts_lines_of_each_rank(written: Cli) -> None:
    assert written.run("logs", "hello", "--tail", "1").out == "[rank 0] zero more\n[rank 1] one two\n"
    assert written.run("logs", "hello", "--tail", "0").out == ""


def test_lines_as_objects(written: Cli) -> None:
    result = written.run("logs", "hello", "--rank", "1", "-o", "json")
    assert result.document == {"attempt": 2, "rank": 1, "pod": "spare", "line": "one two"}


@pytest.mark.parametrize(
    ("argv", "reason", "words"),
    [
        (("hello", "--attempt", "7"), "AttemptNotFound", "Attempts with logs: 1-2."),
        (("hello", "--rank", "7"), "RankNotFound", "no rank 7 in attempt 2. Ranks with logs: 0-1."),
        (("hello", "--rank", "7", "-f"), "RankNotFound", "Ranks with logs: 0-1."),
        (("helo",), "JobNotFound", "Did you mean `hello`?"),
        (("quiet",), "NoLogs", "`quiet` has printed nothing yet."),
    ],
)
def test_what_is_not_there_is_named_with_what_is(written: Cli, argv: tuple[str, ...], reason: str, words: str) -> None:
    written._objects.append(a_job("quiet"))
    result = written.run("logs", *argv)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {reason}: ")
    assert words in result.err


def test_a_new_job_does_not_show_the_lines_of_its_predecessor(tmp_path: Path) -> None:
    write(tmp_path, "pod-0", marker(1, 0, "pod-0") + "of the job before\n", uid="old")
    cluster = Cli(tmp_path, [a_job()])
    assert cluster.run("logs", "hello").err.startswith("error: NoLogs: ")
    write(tmp_path, "pod-0", marker(1, 0, "pod-0") + "of this one\n")
    assert cluster.run("logs", "hello").out == "of this one\n"


def test_without_a_cluster_logs_are_read_all_the_same(written: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    from remuda.cli.app import main

    assert main(["--state", str(written.state), "logs", "hello", "--rank", "0"]) == 0
    assert capsys.readouterr().out == "zero two\nzero more\n"
    assert main(["--state", str(written.state), "logs", "hello", "-f"]) == 0
    assert "[rank 1] one two" in capsys.readouterr().out
    assert main(["--state", str(written.state), "logs", "helo"]) == 2
    assert "Did you mean `hello`?" in capsys.readouterr().err


def test_following_ends_with_the_job_and_prints_the_last_half_line(tmp_path: Path) -> None:
    write(tmp_path, "pod-0", marker(2, 0, "pod-0") + "first\nno newline")
    cluster = Cli(tmp_path, [a_job(phase="Succeeded")])
    assert cluster.run("logs", "hello", "-f").out == "[rank 0] first\n[rank 0] no newline\n"


def test_following_goes_on_over_restarts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed() -> str:
        return capsys.readouterr().out

    write(tmp_path, "pod-0", marker(1, 0, "pod-0") + "old\n" + marker(2, 0, "pod-0") + "a\nb\nc")
    follower = LogFollower(
        RankLogIndex(tmp_path / "logs", "default", "hello"), None, None, since=2, tail=None, form="table"
    )
    assert follower.print_new(last=False)
    assert printed() == "[rank 0] a\n[rank 0] b\n", "whole lines of the newest attempt"
    assert not follower.print_new(last=False)
    write(tmp_path, "pod-0", "c\n")
    write(tmp_path, "spare", marker(3, 1, "spare") + "moved\n")
    assert follower.print_new(last=False)
    assert printed() == "[rank 0] cc\n[rank 1] moved\n"


def test_following_with_tail_starts_near_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "pod-0", marker(1, 0, "pod-0") + "a\nb\n")
    follower = LogFollower(RankLogIndex(tmp_path / "logs", "default", "hello"), 0, 1, since=1, tail=1, form="table")
    follower.print_new(last=False)
    with path.open("a") as file:
        file.write("c\n")
    follower.print_new(last=False)
    assert capsys.readouterr().out == "[rank 0] b\n[rank 0] c\n".replace("[rank 0] ", "")


def test_pieces_join_to_lines() -> None:
    lines = ShownLogLines()
    assert lines.feed(b"one\ntw") == [b"one"]
    assert lines.feed(b"o\n\n") == [b"two", b""]
    assert lines.rest() == []
    assert lines.feed(b"end") == []
    assert lines.rest() == [b"end"]
