"""Commands about failures: incidents, remedy policies, approvals and pauses, drills, roll-outs; with their screens.

What is done about a failure is decided in `core.incidents` and `core.remedies`; nothing is decided here.
"""
