"""Who asks for metadata to read: consumers, which are named readers where nobody leads (told_replicas.py).

The protocol does not say. Producers must be named none: they go round partitions without a leader, and would
send to a reader, in vain, a share of what may go to any, without an acknowledgement all of it. A producer's
first question comes before anything that it sends, and by another connection than its Produce. So readers are
named to whom is known to read, by what the connection was asked for, or by how the client says it is called.
Whoever is known by neither is told that there is no leader, as by Kafka.
"""

from __future__ import annotations

from typing import Final

from millrace.broker.requests.request import RequestContext
from millrace.protocol.messages.metadata import MetadataRequest

# Whose producers always let the topics that they name be made. Consumers of the first and administrators of
# the second do not.
ASKING: Final = ("librdkafka", "confluent-kafka-", "apache-kafka-java")
# How consumers are called that were given no name: by the library and its version.
UNNAMED: Final = ("kafka-python-", "aiokafka-")


def is_reading(context: RequestContext, request: MetadataRequest) -> bool:
    """Whether a consumer asks, or an administrator whose questions a reader can answer."""
    connection, client_id = context.connection, context.client_id.lower()
    if connection.is_producing or "producer" in client_id:
        return False
    return (
        connection.is_consuming
        or "consumer" in client_id
        or client_id.startswith(UNNAMED)
        or (
            bool(request.topics)  # a producer that is asked for a list of all makes none either
            and not request.allow_auto_topic_creation
            and connection.software_name.startswith(ASKING)
        )
    )
