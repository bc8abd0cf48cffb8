"""The embedded node: what a kubelet does, for pods that are local processes or simulated.

Many nodes live in one process. Each owns its pods and their processes; devices, their health and the launchers' barrier
belong to the agent, which a node meets through its device plugins (`remuda.link.device_plugin_port`) and
`remuda.link.allocation_port.NodeAgentLink` only.

    pod_lifecycle, container_record, pod_status, restart_rules,
    container_environment, pod_recall, training_model          decisions: values in, values out
    runtime_port                                               the port of whatever runs containers
    process_runtime, simulated_runtime                         the two things that do
    pod_worker, node, pod_feed, drills                         shells: one pod, one node, all nodes, faults on purpose
    devices                                                    the kubelet's device manager, sockets and checkpoint
    device_allocation                                          how a pod gets its devices
    log_times                                                  when a line of a log was written
"""
