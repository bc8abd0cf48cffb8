"""Commands about devices: the ledger, topology, idle devices, probes and quarantines, why a pod does not start.

The verdict on a device is made in `core.health`; here it is only shown, or an operator's order written down.
"""
