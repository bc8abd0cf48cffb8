"""Commands about jobs: start one (`train`), look at it, read its logs, suspend, delete; with their screens.

What a job is and how it recovers is decided in `core.training`; here it is only asked for and shown.
"""
