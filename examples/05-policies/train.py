"""The second stage: every worker fits a line to its share of the points. Ends with a code that the job has a rule for:
42 when there is no data, 75 when it is told to play a lost connection (by a file named `lose` in the checkpoint directory)."""

import json
import os
import sys
import time

import remuda_train as remuda

STEPS = int(os.environ.get("POLICIES_STEPS", "3000"))
STEP_SECONDS = float(os.environ.get("POLICIES_STEP_SECONDS", "0.1"))


def load_points() -> list[list[float]]:
    path = os.path.join(remuda.checkpoint_dir(), os.environ.get("POLICIES_DATA", "points.json"))
    if not os.path.exists(path):
        print(f"there is no {path}", file=sys.stderr)
        sys.exit(42)
    with open(path, encoding="utf-8") as file:
        return json.load(file)[remuda.rank() :: remuda.world_size()]


def is_connection_lost() -> bool:
    """Once per file: who finds it takes it away."""
    try:
        os.unlink(os.path.join(remuda.checkpoint_dir(), "lose"))
    except FileNotFoundError:
        return False
    return True


def main() -> None:
    remuda.init(total_steps=STEPS)
    points = load_points()
    start = remuda.resume_step()
    slope, offset = json.loads(remuda.load(start)) if start is not None else (0.0, 0.0)
    print(f"rank {remuda.rank()} of {remuda.world_size()} continues after step {start or 0}", flush=True)
    print(f"to play a lost connection: touch {remuda.checkpoint_dir()}/lose", flush=True)
    for step in range((start or 0) + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        errors = [(x, slope * x + offset - y) for x, y in points]
        slope -= 0.05 * sum(x * e for x, e in errors) / len(errors)
        offset -= 0.05 * sum(e for _, e in errors) / len(errors)
        loss = sum(e * e for _, e in errors) / len(errors)
        remuda.report(step, loss=loss)  # a loss that is not a number ends the process, and the code is blamed for it
        if step % 10 == 0 or remuda.checkpoint_requested():
            remuda.save(step, json.dumps([slope, offset]).encode())
            print(f"step {step} loss {loss:.4f}", flush=True)
        if is_connection_lost():
            sys.exit(75)


if __name__ == "__main__":
    main()
