"""Where a node keeps the checkpoints of a job that names no volume: the same path on every node, and in every container."""

from __future__ import annotations

NODE_CHECKPOINTS = "checkpoints"  # below the agent's root


def job_directory(namespace: str, name: str, uid: str) -> str:
    """Below a root of checkpoints, or of copies. Its own by uid: a new job that takes the name of a deleted one must not resume
    from the other's weights."""
    return f"{namespace}/{name}-{uid[:8]}"


def job_checkpoint_dir(root: str, namespace: str, name: str, uid: str) -> str:
    """`root`: the node's directory for checkpoints."""
    return f"{root}/{job_directory(namespace, name, uid)}"
