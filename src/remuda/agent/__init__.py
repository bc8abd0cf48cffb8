"""The node's side: hardware, plugin, allocation, launchers and orders, joined by `agent`, and one report upwards.

Runs beside a kubelet or an embedded node and never decides for the cluster.
"""
