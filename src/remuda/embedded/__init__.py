"""The embedded twin: an API server, nodes and built-in controllers in this process, so that Remuda runs without a cluster.

Stands in for kube-apiserver, kubelet and kube-controller-manager and for nothing else: no rule of Remuda's own lives here,
and only `runtime` imports it.
"""
