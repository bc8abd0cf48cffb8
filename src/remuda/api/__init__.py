"""Types of the API: our kinds, projections of Kubernetes kinds, codec, selectors, conditions. Pure: no I/O, no clock."""
