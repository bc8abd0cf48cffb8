"""TrainingJob: desired against observed, and the plan that closes the gap. `job_plan` is the entry.

Ranks, barrier, recoveries, spares, sizes and goodput of one job. Nothing about other kinds, nothing about a device's own cure.
"""
