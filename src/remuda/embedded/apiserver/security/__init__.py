"""Who may speak to the server over TCP: the bearer token, the kubeconfig that carries it, the guard in front of the app."""
