"""A node looked at without changing anything: metadata, bucket and what is stored."""
