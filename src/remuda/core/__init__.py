"""Decisions. Pure: values in, a plan with reasons out; no clock, no randomness, no I/O."""
