"""What passes between node, agent and manager beside the API: device-plugin contract, allocations, progress, the TLS stream.

Values, messages and their transport; whoever acts on them is above.
"""
