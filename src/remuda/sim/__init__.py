"""The simulator: the same control plane in virtual time. A clock and a loop; what runs on them is built by `runtime`."""
