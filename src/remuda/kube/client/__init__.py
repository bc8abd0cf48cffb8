"""`Cluster` over HTTP: connections, credentials, kubeconfig, retries, watches. Knows requests and answers, not what objects
mean."""
