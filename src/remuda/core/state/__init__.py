"""The cluster as placement sees it: what nodes have, what pods ask, what is taken, what is reserved, and tries on it.

No preference and no choice: who goes where is decided in `core.scheduling`.
"""
