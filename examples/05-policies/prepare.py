"""The first stage: makes the data that the workers train on, and ends."""

import json
import os
import random
import time

time.sleep(float(os.environ.get("PREPARE_SECONDS", "2")))
chance = random.Random(1)
points = [(x, 3.0 * x - 1.0 + chance.gauss(0, 0.1)) for x in (chance.uniform(-1, 1) for _ in range(512))]
directory = os.environ.get("REMUDA_CHECKPOINT_DIR", ".")
os.makedirs(directory, exist_ok=True)
with open(os.path.join(directory, "points.json"), "w", encoding="utf-8") as file:
    json.dump(points, file)
print(f"wrote {len(points)} points to {directory}", flush=True)
