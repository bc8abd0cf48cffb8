"""`import remuda_train`: alone, and with a launcher's sockets and files around it."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.launch.protocol import Progress, decode_user_process_progress
from remuda.launch.pythonpath import remuda_train


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("REMUDA_") or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remuda_train, "_last", {})
    monkeypatch.setattr(remuda_train, "_sock", [])
    yield
    for sock in remuda_train._sock:
        sock.close()


class Listener:
    def __init__(self, directory: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        handle = os.open(directory, os.O_RDONLY)
        self.socket.bind(f"/proc/self/fd/{handle}/progress.sock")
        os.close(handle)
        self.socket.settimeout(5)

    def next(self) -> Progress:
        return decode_user_process_progress(self.socket.recv(65536))


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    directory = tmp_path / ("d" * 120)  # longer than a socket address may be
    directory.mkdir()
    monkeypatch.setenv("REMUDA_PROGRESS_SOCKET", str(directory / "progress.sock"))
    monkeypatch.setenv("REMUDA_ATTEMPT", "4")
    found = Listener(directory)
    yield found
    found.socket.close()


def test_without_remuda_it_is_rank_zero_of_one_and_reports_to_nobody() -> None:
    assert (remuda_train.rank(), remuda_train.world_size(), remuda_train.attempt()) == (0, 1, 0)
    assert remuda_train.resume_step() is None
    assert remuda_train.checkpoint_requested() is None
    remuda_train.report(1, step_time=0.5)


def test_without_remuda_checkpoints_are_local_files(tmp_path: Path) -> None:
    path = remuda_train.save(5, b"weights")
    assert Path(path).resolve() == tmp_path / "checkpoints/rank-0/step-5.ckpt"
    assert remuda_train.load(5) == b"weights"


def test_the_environment_says_who_and_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "RANK": "3", "REMUDA_RANK": "1", "WORLD_SIZE": "8", "REMUDA_ATTEMPT": "2", "REMUDA_RESUME_STEP": "0",
        "REMUDA_CHECKPOINT_DIR": str(tmp_path / "c"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert (remuda_train.rank(), remuda_train.world_size(), remuda_train.attempt()) == (3, 8, 2)
    assert remuda_train.resume_step() == 0
    remuda_train.save(1, b"")
    assert (tmp_path / "c/rank-3/step-1.json").exists()
    monkeypatch.setenv("REMUDA_RESUME_STEP", "")
    assert remuda_train.resume_step() is None
    monkeypatch.delenv("RANK")
    assert remuda_train.rank() == 1


def test_reports_reach_the_launcher(listener: Listener) -> None:
    remuda_train.report(7, step_time=0.5, self_time=0.25)
    assert listener.next() == Progress(7, 0.5, 0.25, None, None, attempt=4)
    remuda_train.report(8, checkpoint=8)
    assert listener.next().checkpoint == 8


def test_step_time_is_measured_between_reports(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    remuda_train.report(10)
    now[0] += 3
    remuda_train.report(12)
    assert [listener.next().step_time, listener.next().step_time] == [None, 1.5]


def test_save_reports_the_checkpoint_and_every_later_report_says_it_again(listener: Listener) -> None:
    remuda_train.save(20, b"weights")
    saved = listener.next()
    assert (saved.step, saved.checkpoint, saved.attempt) == (None, 20, 4)
    assert saved.checkpoint_time is not None
    remuda_train.report(21)
    assert listener.next().checkpoint == 20


def test_numbers_of_other_kinds_are_taken(listener: Listener) -> None:
    np = pytest.importorskip("numpy")
    remuda_train.report(np.int64(3), step_time=np.float32(0.5))
    assert listener.next() == Progress(3, 0.5, None, None, None, attempt=4)


def test_a_full_or_missing_socket_does_not_stop_training(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(2000):  # nobody reads: far more than any queue holds
        remuda_train.report(step)
    listener.socket.close()
    remuda_train.report(1)
    monkeypatch.setenv("REMUDA_PROGRESS_SOCKET", "/nonexistent/progress.sock")
    remuda_train.report(1)


def test_a_requested_checkpoint_is_asked_for_until_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = tmp_path / "checkpoint-request.json"
    monkeypatch.setenv("REMUDA_CHECKPOINT_REQUEST_FILE", str(request))
    assert remuda_train.checkpoint_requested() is None
    request.write_text(json.dumps({"deadline": 50.5}))
    assert remuda_train.checkpoint_requested() == 50.5
    remuda_train.save(1, b"")
    assert remuda_train.checkpoint_requested() is None
    request.write_text(json.dumps({"deadline": 60.5}))
    assert remuda_train.checkpoint_requested() == 60.5


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"deadline": null}', '{"deadline": "soon"}'])
def test_a_broken_request_is_no_request(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r.json").write_text(content)
    monkeypatch.setenv("REMUDA_CHECKPOINT_REQUEST_FILE", str(tmp_path / "r.json"))
    assert remuda_train.checkpoint_requested() is None


def test_a_corrupt_checkpoint_raises_and_is_not_offered_again(tmp_path: Path) -> None:
    path = Path(remuda_train.save(5, b"weights"))
    path.write_bytes(b"weightz")
    with pytest.raises(remuda_train.CorruptCheckpoint):
        remuda_train.load(5)
    assert path.with_suffix(".bad").exists()


def test_it_keeps_the_last_three_by_default() -> None:
    paths = [Path(remuda_train.save(step, b"")) for step in range(6)]
    assert sorted(path.name for path in paths[0].parent.glob("*.ckpt")) == ["step-3.ckpt", "step-4.ckpt", "step-5.ckpt"]


def test_a_request_may_name_the_first_step_it_is_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ranks hear of it at different moments; all save the same step."""
    request = tmp_path / "request.json"
    request.write_text('{"deadline": 70.5, "step": 12}')
    monkeypatch.setenv("REMUDA_CHECKPOINT_REQUEST_FILE", str(request))
    monkeypatch.setenv("REMUDA_CHECKPOINT_DIR", str(tmp_path))
    asked = []
    for step in (10, 11, 12):
        remuda_train.report(step)
        asked.append(remuda_train.checkpoint_requested())
    assert asked == [None, None, 70.5]
    remuda_train.save(12, b"x")
    assert remuda_train.checkpoint_requested() is None


def test_a_rank_that_is_new_loads_what_another_one_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REMUDA_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("REMUDA_CHECKPOINT_RANKS", "2")
    remuda_train.write_checkpoint(str(tmp_path), 1, 5, b"of rank 1")
    remuda_train.write_checkpoint(str(tmp_path), 3, 5, b"of a history given up")
    monkeypatch.setenv("RANK", "3")
    assert remuda_train.load(5) == b"of rank 1"
    monkeypatch.setenv("RANK", "1")
    assert remuda_train.load(5) == b"of rank 1"


def test_the_total_is_said_along_with_every_report(listener: Listener) -> None:
    remuda_train.report(1)
    assert listener.next().total_steps is None
    remuda_train.init(total_steps=900)
    remuda_train.report(2, loss=0.25)
    assert listener.next().total_steps == 900


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_ends_the_step_before_it_is_told(listener: Listener, loss: float) -> None:
    with pytest.raises(remuda_train.LossNotFinite, match="at step 7"):
        remuda_train.report(7, loss=loss)
    remuda_train.report(8, loss=1.0)
    assert listener.next().step == 8
