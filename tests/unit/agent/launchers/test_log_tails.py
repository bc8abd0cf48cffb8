"""The end of what a rank wrote, out of the log files of a kubelet's runtime."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from remuda.agent.launchers import log_tails
from remuda.agent.launchers.log_tails import (
    LauncherPodLogTails,
    container_running_launcher_process,
    launcher_log_tail,
    read_launcher_log_tail_window,
)
from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Pod
from remuda.launch.protocol import MAX_TAIL

AT = "2026-11-15T20:00:00.123456789Z"


def cri(*lines: str, stream: str = "stderr", tag: str = "F") -> bytes:
    return "".join(f"{AT} {stream} {tag} {line}\n" for line in lines).encode()


def marker(attempt: int, before: str = "", stream: str = "stdout") -> bytes:
    return cri(f"{before}--- remuda attempt={attempt} rank=0 host=job-worker-0 time=1763236800.123 ---", stream=stream)


def words_first(old: bytes, new: bytes) -> bytes:
    """Two attempts whose words on one stream the runtime wrote before the marker on the other."""
    error = marker(1, stream="stderr") + old + marker(2, stream="stderr") + new
    return marker(1) + error + marker(2)


@pytest.mark.parametrize(
    ("window", "found"),
    [
        (marker(2) + cri("start", stream="stdout") + cri("out of memory"), "start\nout of memory\n"),
        (marker(1) + cri("old") + marker(2) + cri("new"), "new\n"),
        (marker(1) + cri("old"), None),  # its own first line is not there yet
        (marker(2), ""),
        (b"", ""),
        (cri("so long that its marker is further up"), "so long that its marker is further up\n"),
        (marker(2) + cri("CUDA out ", tag="P") + cri("of memory"), "CUDA out of memory\n"),
        (marker(1) + marker(2, before="cut off") + cri("new"), "new\n"),
        (b"half a line of memory\n" + cri("whole"), "whole\n"),
        (cri("tagged", tag="F:x"), "tagged\n"),
        (marker(2) + cri("caf\u00e9") + f"{AT} stderr F ".encode() + b"\xff\n", "caf\u00e9\n\ufffd\n"),
        (marker(2) + cri("", "  indented"), "\n  indented\n"),
        (words_first(cri("old"), cri("new")), "new\n"),
        (words_first(cri("old"), b""), ""),
        (marker(1) + marker(1, stream="stderr") + cri("old") + marker(2), ""),  # the other stream's is still to come
        (
            cri("CUDA out ", tag="P") + cri("between", stream="stdout") + cri("of memory"),
            "between\nCUDA out of memory\n",
        ),
        (marker(2) + cri("done") + f"{AT} stderr F half of the la".encode(), "done\nhalf of the la\n"),
    ],
)
def test_what_an_attempt_wrote_last(window: bytes, found: str | None) -> None:
    assert launcher_log_tail(window, attempt=2) == found


def test_it_is_bounded_from_the_front() -> None:
    found = launcher_log_tail(marker(2) + cri(*["x" * 99] * 100, "last"), 2)
    assert found is not None
    assert len(found) == MAX_TAIL
    assert found.endswith("x\nlast\n")


def test_the_newest_file_is_read_and_the_one_before_it_when_it_is_short(tmp_path: Path) -> None:
    assert read_launcher_log_tail_window(tmp_path / "none") == b""
    assert read_launcher_log_tail_window(tmp_path) == b""
    (tmp_path / "9.log").write_bytes(b"run 9\n")
    (tmp_path / "10.log").write_bytes(b"run 10\n")
    assert read_launcher_log_tail_window(tmp_path) == b"run 10\n"
    (tmp_path / "10.log.20261115-200000").write_bytes(b"older\n")
    (tmp_path / "10.log.20261115-210000").write_bytes(b"before\n")
    (tmp_path / "10.log.20261115-220000.gz").write_bytes(b"packed\n")
    (tmp_path / "10.log.20261115-230000.tmp").write_bytes(b"unfinished\n")
    assert read_launcher_log_tail_window(tmp_path) == b"before\nrun 10\n"
    (tmp_path / "10.log").write_bytes(b"x" * log_tails.WINDOW_BYTES + b"end")
    assert (
        read_launcher_log_tail_window(tmp_path) == (b"x" * log_tails.WINDOW_BYTES + b"end")[-log_tails.WINDOW_BYTES :]
    )


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    """A log that is a link is another runtime's; a pipe would never end."""
    (tmp_path / "secret").write_bytes(b"not a log\n")
    (tmp_path / "0.log").symlink_to(tmp_path / "secret")
    assert read_launcher_log_tail_window(tmp_path) == b""
    os.mkfifo(tmp_path / "1.log")
    assert read_launcher_log_tail_window(tmp_path) == b""


def test_which_container_the_launcher_is_in() -> None:
    def pod(*commands: list[str]) -> Pod:
        containers = [{"name": f"c{i}", "command": command} for i, command in enumerate(commands)]
        return from_wire(Pod, {"metadata": {"name": "p"}, "spec": {"containers": containers}})

    wrapped = ["python3", "/run/remuda/bin/remuda-launch.pyz", "--", "train"]
    assert container_running_launcher_process(pod(wrapped, ["sidecar"])) == "c0"
    assert container_running_launcher_process(pod(["injected"], wrapped)) == "c1"
    assert container_running_launcher_process(pod(["one"], ["two"])) == "c0"
    assert container_running_launcher_process(pod()) == ""


def ask(root: Path, attempt: int = 2, container: str = "main") -> str:
    return asyncio.run(LauncherPodLogTails(str(root)).read("job-worker-0", "uid-0", "default", container, attempt))


def test_a_file_is_found_by_pod_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_tails, "SETTLE_S", 0.0)
    assert ask(tmp_path) == ""
    place = tmp_path / "default_job-worker-0_uid-0" / "main"
    place.mkdir(parents=True)
    assert ask(tmp_path) == ""
    (place / "0.log").write_bytes(marker(1) + cri("old") + marker(2) + cri("new"))
    assert ask(tmp_path) == "new\n"
    assert ask(tmp_path, attempt=3) == "", "never came"
    assert ask(tmp_path, container="other") == ""
    assert ask(tmp_path, container="") == ""


@pytest.mark.parametrize(
    ("looks", "want"),
    [
        ([marker(2), marker(2) + cri("late")], "late\n"),
        ([marker(1) + cri("old"), marker(2) + cri("late")], "late\n"),
        ([marker(2) + cri("one"), marker(2) + cri("one") + cri("two")], "one\ntwo\n"),
        ([marker(2)], ""),
    ],
    ids=["the words come after the marker", "the marker comes late", "more words come", "no word ever comes"],
)
def test_words_that_the_runtime_still_holds_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[bytes], want: str
) -> None:
    monkeypatch.setattr(log_tails, "SETTLE_S", 0.0)
    (tmp_path / "default_job-worker-0_uid-0" / "main").mkdir(parents=True)
    left = list(looks)
    monkeypatch.setattr(
        log_tails, "read_launcher_log_tail_window", lambda directory: left.pop(0) if len(left) > 1 else left[0]
    )
    assert ask(tmp_path) == want
