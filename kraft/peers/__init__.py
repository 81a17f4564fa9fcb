"""How the members of the quorum reach one another: Kafka's requests on their controller listeners."""
