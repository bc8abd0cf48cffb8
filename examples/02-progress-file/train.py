"""Training without the helper: two files are all Remuda asks for, and any language can write them.

1. $REMUDA_PROGRESS_FILE: {"step": N, "stepTime": seconds, "checkpoint": N}. Written beside and renamed over, so that a reader
   never sees half of it. It says that the rank is alive and how far it is.
2. A checkpoint of rank R and step N is $REMUDA_CHECKPOINT_DIR/rank-R/step-N.ckpt. Its side file step-N.json
   {"step": N, "bytes": size, "sha256": digest} is written last: only then does the checkpoint count.

Started again, $REMUDA_RESUME_STEP names the newest step that *every* rank can load; it is not set at the first start.
Runs without Remuda as well:  python train.py
"""

import hashlib
import json
import os
import time
from pathlib import Path

STEPS = int(os.environ.get("TRAIN_STEPS", "600"))
STEP_SECONDS = float(os.environ.get("TRAIN_STEP_SECONDS", "0.2"))
CHECKPOINT_EVERY = int(os.environ.get("TRAIN_CHECKPOINT_EVERY", "10"))

RANK = int(os.environ.get("RANK", "0"))
PROGRESS = os.environ.get("REMUDA_PROGRESS_FILE")
CHECKPOINTS = Path(os.environ.get("REMUDA_CHECKPOINT_DIR", "checkpoints")) / f"rank-{RANK}"


def write(path: Path, data: bytes) -> None:
    """The whole file or none of it."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def report(step: int, step_seconds: float, checkpoint: int | None) -> None:
    if PROGRESS:
        body = {"step": step, "stepTime": step_seconds, "checkpoint": checkpoint}
        # No fsync: it is about now, and worthless after a crash.
        temporary = Path(PROGRESS + ".tmp")
        temporary.write_text(json.dumps(body))
        temporary.rename(PROGRESS)


def save(step: int, state: dict[str, float]) -> None:
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    data = json.dumps(state).encode()
    write(CHECKPOINTS / f"step-{step}.ckpt", data)
    side = {"step": step, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write(CHECKPOINTS / f"step-{step}.json", json.dumps(side).encode())
    (CHECKPOINTS / f"step-{step}.bad").unlink(missing_ok=True)  # a mark on an older file of this step


def main() -> None:
    resume = os.environ.get("REMUDA_RESUME_STEP", "")
    first = int(resume) + 1 if resume else 1
    state = {"loss": 1.0}
    if resume:
        state = json.loads((CHECKPOINTS / f"step-{resume}.ckpt").read_bytes())
    print(f"rank {RANK} starts with step {first}, loss {state['loss']:.4f}", flush=True)
    saved = int(resume) if resume else None
    for step in range(first, STEPS + 1):
        began = time.monotonic()
        time.sleep(STEP_SECONDS)
        state["loss"] *= 0.99
        if step % CHECKPOINT_EVERY == 0:
            save(step, state)
            saved = step
            print(f"step {step} loss {state['loss']:.4f}", flush=True)
        report(step, time.monotonic() - began, saved)


if __name__ == "__main__":
    main()
