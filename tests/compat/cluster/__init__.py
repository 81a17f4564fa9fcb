"""Other people's clients and tools on three nodes that are restarted without end: `make compat-cluster`."""
