"""Pods, Deployments, Jobs and JobSets that are not ours, on devices and nodes that fail: who is told, who is moved, who is left.

Nothing here ever touches a pod of a Remuda kind.
"""
