"""What is done to devices and nodes: which policy applies, how much at a time, breaker, drains, taints, roll-outs.

The climb itself is `ladder`. Remedies of workloads are in `core.gang` and `core.training`.
"""
