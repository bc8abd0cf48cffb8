"""Where device truth comes from: one module per source, all of them `agent.backend.DeviceBackend` or feeding one."""
