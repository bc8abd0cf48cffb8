"""The embedded API server: a durable store with Kubernetes' write rules, in process (`local_cluster`) and over HTTP (`app`)."""
