"""Decisions of the small controllers that a Kubernetes cluster has anyway: Deployments, Jobs, node lifecycle and so on."""
