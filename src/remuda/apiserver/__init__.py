"""The embedded API server: a durable store with Kubernetes' write rules, in process (`local`) and over HTTP (`app`)."""
