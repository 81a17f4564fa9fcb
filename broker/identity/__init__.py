"""Which log directory, write-ahead log and bucket belong together, who owns a node, and which time is
believed."""
