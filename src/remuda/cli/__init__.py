"""The command line: one module per command group, screens apart from the talking. `app` is the entry point.

Shows and sends; whatever is decided is decided in `core`.
"""
