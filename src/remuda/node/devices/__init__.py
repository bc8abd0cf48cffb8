"""The node's device manager: which plugin serves which resource, which devices are fit, and which container has them.

`ledger` decides, as the kubelet's device manager does and with its flaws; `checkpoint` is its memory on disk; `admission` asks
the plugins; `registry`, `endpoint` and `podresources` are its sockets. Simulated nodes have the first three only.
"""
