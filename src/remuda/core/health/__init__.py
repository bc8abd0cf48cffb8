"""From signals to verdicts: what is known of each device and node, who holds it, who is slow, who fails together.

Says what is the matter, never what to do: that is `core.remedies` for devices and `core.gang` for workloads.
"""
