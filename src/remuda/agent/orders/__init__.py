"""What the manager has this node do (probe, reset, reboot, commands), done once per id and answered."""
