"""Runs a training script as it is, except that nobody goes beyond the step that a file names.

    gated.py <script>            E2E_LIMIT=<file with a step>; without the file nobody is held

A rank stands in its report of that step: the step is done and printed, its checkpoint (if one is due) not yet begun. So a test
knows exactly which steps a failure makes the ranks repeat.
"""

import os
import runpy
import sys
import time
from typing import Any

import remuda_train as remuda  # type: ignore[import-not-found,unused-ignore] # put on the path by remuda-launch

report = remuda.report


def limit() -> float:
    try:
        with open(os.environ["E2E_LIMIT"], encoding="ascii") as file:
            return float(file.read())
    except FileNotFoundError:
        return float("inf")


def report_and_stand(step: int, **more: Any) -> None:
    report(step, **more)
    while step >= limit():
        time.sleep(0.02)


remuda.report = report_and_stand
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
