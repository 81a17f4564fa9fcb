"""The replicated log of metadata: Raft as Kafka does it, and what carries it out."""
