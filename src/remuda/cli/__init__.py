"""The command line: one module per command group, pure rendering apart from the talking. `app` is the entry point."""
