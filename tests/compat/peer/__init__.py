"""Apache Kafka beside the broker: the same requests to both, and the codes compared. `make compare`."""
