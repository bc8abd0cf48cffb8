"""The scheduler's shell: waiting pods in, `core.scheduling` asked, bindings out. Decides nothing itself."""
