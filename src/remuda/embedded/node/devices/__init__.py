"""The node's device manager: which plugin serves which resource, which devices are fit, and which container has them.

`device_ledger` decides, as the kubelet's device manager does and with its flaws; `checkpoint` is its memory on disk;
`device_manager` asks the plugins; `plugin_registration`, `plugin_endpoint` and `podresources` are its sockets. Simulated
nodes have the first three only.
"""
