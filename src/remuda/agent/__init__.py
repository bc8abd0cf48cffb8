"""The node side: devices and their signals, allocations, launchers and the barrier, one report upwards."""
