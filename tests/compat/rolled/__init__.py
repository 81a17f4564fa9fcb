"""Applications of other people's clients while the nodes of a cluster are restarted, one after the other: of
ours, and of Apache Kafka's beside it. `make roll`."""
