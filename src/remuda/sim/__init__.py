"""The simulator: the same control plane in virtual time."""
