"""The Kubernetes side of Remuda: one `Cluster` port, its transports, informers, work queues, the controller loop."""
