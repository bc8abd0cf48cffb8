"""Remuda: schedules and keeps alive training jobs on a cluster of accelerator nodes."""

__version__ = "0.1.0"
