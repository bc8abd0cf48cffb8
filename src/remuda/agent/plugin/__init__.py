"""The agent as a device plugin: one plugin per resource, served to a kubelet over gRPC or to an embedded node in process."""
