"""Where device truth comes from: one module per source (NVML, amdsmi, sysfs, kernel log, DCGM, the fake), all behind
`backend_port`.

Facts about devices only. Who holds them is `agent.allocation`, what they mean is `core.health`.
"""
