"""A rank that does nothing but exist: it says that it is up, then sleeps and reports steps. Standard library only.

The mark (one appended line: attempt, rank, pid, time, step resumed from) is the moment user code runs, written the same way
whether Remuda started the process or the benchmark did by hand.
"""

import os
import sys
import time

import remuda_train as remuda  # type: ignore[import-not-found,unused-ignore] # put on the path by remuda-launch

STEP_S = 0.5
SAVE_AFTER = 2  # steps of an attempt; one checkpoint each, so that there is something to resume from


def main(marks: str) -> None:
    resumed = remuda.resume_step() or 0
    line = f"{remuda.attempt()} {remuda.rank()} {os.getpid()} {time.time():.6f} {resumed}\n"
    handle = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, line.encode())
    os.close(handle)
    step = resumed
    while True:
        time.sleep(STEP_S)
        step += 1
        remuda.report(step)
        if step == resumed + SAVE_AFTER:
            remuda.save(step, b"weights")


if __name__ == "__main__":
    main(sys.argv[1])
