"""Which pod has which devices of this node: the scheduler's choice, the grant, its directory, its CDI spec, MIG slices."""
