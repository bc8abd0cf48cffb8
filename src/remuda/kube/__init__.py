"""The Kubernetes side of Remuda: the `Cluster` port (`cluster`), how it is reached (`client`), how controllers live on it
(`runtime`).

No decision about devices or workloads.
"""
