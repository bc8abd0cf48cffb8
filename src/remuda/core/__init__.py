"""Decisions. Pure: values in, a plan with reasons out; no clock, no randomness, no I/O.

Whoever reads or writes anything (API, files, sockets) is a shell above: scheduler, controllers, agent, runtime.
"""
