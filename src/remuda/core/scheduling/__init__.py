"""Who goes where: waiting pods as gangs, first fit, whole gangs and segments on exact devices, and why something is not placed.

Works on `core.state`. What a workload wants next (sizes, moves, spares) is its own business: `core.training`.
"""
