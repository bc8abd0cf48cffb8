"""Devices as data and arithmetic: machine models, links, MIG geometry, fault codes, kernel log lines, counters.

Nothing here knows of pods' owners or of what is done about a fault: meaning is given in `core.health`, remedies in
`core.remedies`.
"""
