"""Copies of checkpoints: the agent brings each checkpoint of its ranks to one other node, keeps those of others, and fetches what
a rank left behind when it is new here (docs/adr/0030)."""
