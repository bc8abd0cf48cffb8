"""The embedded node: what a kubelet does, for pods that are local processes or simulated.

Many nodes live in one process. Each owns its pods and their processes; devices, their health and the launchers' barrier
belong to the agent, which a node meets through its device plugins (`remuda.link.device_plugin_port`) and
`remuda.link.allocation_port.NodeAgent` only.

    lifecycle, containers, podstatus, environment, training   decisions: values in, values out
    runtime                                                   the port of whatever runs containers
    process, simulated                                        the two things that do
    worker, node, feed, drills                                shells: one pod, one node, all nodes, faults on purpose
    devices                                                   the kubelet's device manager, sockets and checkpoint
    allocating                                                how a pod gets its devices
    logs                                                      container logs, split by attempt
"""
