"""A training job in fifty lines: every rank fits a line to its share of noisy points, and survives being restarted.

`remuda_train` is a small module that Remuda's launcher puts on the path of whatever it starts. Nothing needs to be installed,
and without Remuda the script runs alone:  python train.py
"""

import json
import os
import random
import time

try:
    import remuda_train as remuda
except ImportError:  # started by hand

    class remuda:
        """Alone: rank 0 of 1, nobody to report to, nothing to resume."""

        rank = staticmethod(lambda: 0)
        world_size = staticmethod(lambda: 1)
        attempt = staticmethod(lambda: 0)
        resume_step = staticmethod(lambda: None)
        checkpoint_requested = staticmethod(lambda: None)
        report = staticmethod(lambda step, **times: None)
        save = staticmethod(lambda step, data: None)


STEPS = int(os.environ.get("HELLO_STEPS", "600"))
STEP_SECONDS = float(os.environ.get("HELLO_STEP_SECONDS", "0.2"))  # stands for the work on the GPUs
CHECKPOINT_EVERY = int(os.environ.get("HELLO_CHECKPOINT_EVERY", "10"))


def main() -> None:
    rank, world = remuda.rank(), remuda.world_size()
    chance = random.Random(rank)
    points = [(x, 3.0 * x - 1.0 + chance.gauss(0, 0.1)) for x in (chance.uniform(-1, 1) for _ in range(256))]

    start = remuda.resume_step()
    model = {"slope": 0.0, "offset": 0.0}
    if start is not None:
        model = json.loads(remuda.load(start))
    print(f"rank {rank} of {world}, attempt {remuda.attempt()}, continues after step {start or 0}", flush=True)

    for step in range((start or 0) + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        errors = [(x, model["slope"] * x + model["offset"] - y) for x, y in points]
        model["slope"] -= 0.05 * sum(x * e for x, e in errors) / len(errors)
        model["offset"] -= 0.05 * sum(e for _, e in errors) / len(errors)
        remuda.report(step)
        if step % CHECKPOINT_EVERY == 0 or remuda.checkpoint_requested():
            remuda.save(step, json.dumps(model).encode())
            loss = sum(e * e for _, e in errors) / len(errors)
            print(f"step {step} loss {loss:.4f} y = {model['slope']:.2f} x + {model['offset']:.2f}", flush=True)


if __name__ == "__main__":
    main()
