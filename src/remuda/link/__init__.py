"""What passes between a node, its agent and the manager beside the API: allocations and progress."""
