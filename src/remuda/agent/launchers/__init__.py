"""Launchers in pods of this node: their connections, what is known of each, and what the barrier tells them.

The launcher's own program is `remuda.launch`.
"""
