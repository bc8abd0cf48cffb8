"""Controllers: thin shells, one per kind or concern. Each observes, asks the core for a plan, and applies it.

No rule about devices or workloads lives here. What kube-controller-manager does is in `embedded.builtin`.
"""
