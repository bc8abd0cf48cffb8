"""Kubernetes' own kinds, as far as Remuda reads and writes them. Fields nobody here needs are left out; no behaviour."""
