"""Talk to Remuda from a training script. Standard library only; without Remuda everything still works, locally.

    import remuda_train as remuda

    remuda.init(total_steps=steps)                    # for progress and ETA; may be left out
    step = remuda.resume_step()                       # None: start from the beginning
    model = decode(remuda.load(step)) if step is not None else fresh()
    for step in range((step or 0) + 1, steps + 1):
        ...
        remuda.report(step)                           # says that the rank is alive, and how fast
        if step % 100 == 0 or remuda.checkpoint_requested():
            remuda.save(step, encode(model))          # durable, verified on load, reported

A script may do without it: write {"step": N, "stepTime": s, "selfTime": s, "checkpoint": N, "totalSteps": N} as JSON to
$REMUDA_PROGRESS_FILE (write another file, then rename it over).

A checkpoint of rank R is <dir>/rank-R/step-N.ckpt; its side file step-N.json, written last, is what makes it count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import signal
import socket
import threading
import time

KEEP = 3  # newest good checkpoints kept of a rank: two to fall back to when the newest is corrupt
_last: dict[str, float] = {}  # the step and time of the previous report, the newest checkpoint, the request served
_sock: list[socket.socket] = []


class CorruptCheckpoint(ValueError):
    """The checkpoint does not match its side file. It has been marked bad: the next attempt falls back to an older one."""


class LossNotFinite(ArithmeticError):
    """The loss is NaN or infinite. Left uncaught it ends the process, and Remuda blames the code, not the device."""


def init(total_steps: int | None = None) -> None:
    """How many steps there will be. Said along with every report."""
    if total_steps is not None:
        _last["total"] = int(total_steps)


def rank() -> int:
    return int(os.environ.get("RANK") or os.environ.get("REMUDA_RANK") or 0)


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


def attempt() -> int:
    return int(os.environ.get("REMUDA_ATTEMPT") or 0)


def resume_step() -> int | None:
    """The step to `load` and go on after; None to start from the beginning."""
    text = os.environ.get("REMUDA_RESUME_STEP", "")
    return int(text) if text else None


def checkpoint_dir() -> str:
    return os.environ.get("REMUDA_CHECKPOINT_DIR") or "checkpoints"


def report(
    step: int,
    step_time: float | None = None,
    self_time: float | None = None,
    checkpoint: int | None = None,
    loss: float | None = None,
) -> None:
    """Say which step is done. `step_time` is measured between reports when not given; `self_time` is the part of it
    spent on own work before waiting for the other ranks, which is what tells the slow rank from those it holds up.
    A `loss` that is not finite raises LossNotFinite before anything is said of the step."""
    if loss is not None and not math.isfinite(loss):
        raise LossNotFinite(f"the loss is {loss} at step {step}")
    now = time.monotonic()
    if step_time is None and "step" in _last and step > _last["step"]:
        step_time = (now - _last["time"]) / (step - _last["step"])
    _last.update(step=step, time=now)
    _send_progress_report(step=int(step), stepTime=step_time, selfTime=self_time, checkpoint=checkpoint)


def save(step: int, data: bytes, keep: int = KEEP) -> str:
    """Write the rank's checkpoint of `step` durably, report it, drop all but the newest `keep`. Returns the path."""
    began = time.monotonic()
    request = checkpoint_requested()
    path = write_checkpoint(checkpoint_dir(), rank(), step, data, keep)
    if request is not None:
        _last["served"] = request
    _send_progress_report(checkpoint=int(step), checkpointTime=time.monotonic() - began)
    return path


def load(step: int) -> bytes:
    """The bytes given to `save`. Raises CorruptCheckpoint (and marks it bad), or FileNotFoundError. What cannot be read at
    the moment raises OSError and is marked nothing: it may be whole.

    A rank that was not there when the checkpoint was made (the gang has grown since) gets what another one saved."""
    ranks = int(os.environ.get("REMUDA_CHECKPOINT_RANKS") or 0)
    return read_checkpoint(checkpoint_dir(), rank() % ranks if 0 < ranks <= rank() else rank(), step)


def checkpoint_requested() -> float | None:
    """The deadline (unix seconds) of a checkpoint Remuda waits for; None when there is none, or `save` has served it.

    A request names the first step it may be of, so that all ranks save the same one: ask after `report`ing the step."""
    try:
        with open(os.environ.get("REMUDA_CHECKPOINT_REQUEST_FILE", ""), encoding="utf-8") as file:
            request = json.load(file)
        deadline, first = float(request["deadline"]), int(request.get("step") or 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if deadline == _last.get("served") or _last.get("step", first) < first else deadline


def _checkpoint_signal_heard(number: int, frame: object) -> None:
    """SIGUSR1 says that there is a request; the next `checkpoint_requested` reads it. Without a handler it would kill."""


def _listen_for_checkpoint_signal() -> None:
    with contextlib.suppress(ValueError, OSError):  # not in the main thread, or no such signal here
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, _checkpoint_signal_heard)


def _send_progress_report(step: int | None = None, checkpoint: int | None = None, **times: float | None) -> None:
    """One datagram to the launcher. Nobody listening is no reason to stop training; a checkpoint may wait a second."""
    path = os.environ.get("REMUDA_PROGRESS_SOCKET")
    if not path:
        return
    if checkpoint is not None:
        _last["checkpoint"] = int(checkpoint)
    # The newest checkpoint is said again each time: a datagram may be lost, a checkpoint must not be.
    message = {
        "attempt": attempt(),
        "step": step,
        "checkpoint": _last.get("checkpoint"),
        "totalSteps": _last.get("total"),
    }
    message.update((name, float(value)) for name, value in times.items() if value is not None)
    directory = -1
    try:
        if not _sock:
            _sock.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        _sock[0].settimeout(0.0 if checkpoint is None else 1.0)
        # Through the directory's descriptor: a socket address holds 107 bytes, a path may be longer.
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        _sock[0].sendto(json.dumps(message).encode(), f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    except OSError:
        pass
    finally:
        if directory >= 0:
            os.close(directory)


# --- the checkpoint files ---------------------------------------------------------------------------------------------


def _checkpoint_stem(directory: str, rank: int, step: int) -> str:
    return os.path.join(directory, f"rank-{rank}", f"step-{step}")


def _write_checkpoint_file(path: str, data: bytes) -> None:
    """All or nothing: a reader, or the next boot, sees the old file or the whole new one."""
    temporary = f"{path}.tmp-{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _remove_checkpoint_files(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def write_checkpoint(directory: str, rank: int, step: int, data: bytes, keep: int = KEEP) -> str:
    stem = _checkpoint_stem(directory, rank, int(step))
    folder = os.path.dirname(stem)
    os.makedirs(folder, exist_ok=True)
    _remove_checkpoint_files(stem + ".json")  # first take back the promise an older file of this step made
    _write_checkpoint_file(stem + ".ckpt", data)
    _remove_checkpoint_files(stem + ".bad", stem + ".abandoned")
    side = {"step": int(step), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _write_checkpoint_file(stem + ".json", json.dumps(side).encode())
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    files = set(os.listdir(folder))
    steps = {int(name[5:].split(".")[0]) for name in files if name[:5] == "step-" and name[5:].split(".")[0].isdigit()}
    out = {n for n in steps for mark in ("bad", "abandoned") if f"step-{n}.{mark}" in files}
    good = sorted(n for n in steps if n <= step and f"step-{n}.json" in files and n not in out)
    for old in (n for n in steps if n < good[-keep:][0]):
        _remove_checkpoint_files(*(os.path.join(folder, name) for name in files if name.startswith(f"step-{old}.")))
    return stem + ".ckpt"


def read_checkpoint(directory: str, rank: int, step: int) -> bytes:
    stem = _checkpoint_stem(directory, rank, int(step))
    if not os.path.exists(stem + ".ckpt") and not os.path.exists(stem + ".json"):
        raise FileNotFoundError(f"no checkpoint of step {step} for rank {rank} in {directory}")
    try:
        with open(stem + ".ckpt", "rb") as file, open(stem + ".json", "rb") as side_file:
            data, side = file.read(), json.load(side_file)
        if (side["step"], side["bytes"], side["sha256"]) == (step, len(data), hashlib.sha256(data).hexdigest()):
            return data
        why = "its bytes do not match its side file"
    except (FileNotFoundError, IsADirectoryError) as error:
        why = f"one of its files is missing: {error}"
    except (ValueError, KeyError, TypeError) as error:
        why = f"its side file makes no sense: {error}"
    mark_bad(directory, rank, step, why)
    raise CorruptCheckpoint(f"checkpoint of step {step} of rank {rank} is corrupt: {why}; it has been marked bad")


def mark_bad(directory: str, rank: int, step: int, why: str) -> None:
    """From now on nobody is told to resume from it."""
    _write_checkpoint_file(_checkpoint_stem(directory, rank, int(step)) + ".bad", why.encode())


_listen_for_checkpoint_signal()
