"""ForwardCommand (private, key 524): a command for the active controller, from another node of its cluster.

What Kafka's Envelope is (key 58, KIP-590), with the metadata offset that makes the reply true in the image of
who asked.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int64, Versions


@dataclass(slots=True)
class ForwardCommandRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    command: bytes = b""  # a request's header and body
    principal: str | None = None  # on whose behalf; null: the node's own


@dataclass(slots=True)
class ForwardCommandResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # NOT_CONTROLLER, UNSUPPORTED_VERSION, INVALID_REQUEST, KAFKA_STORAGE_ERROR, THROTTLING_QUOTA_EXCEEDED:
    # nothing was done; REQUEST_TIMED_OUT: unknown
    error_code: Int16 = 0
    reply: bytes | None = None  # a response's header and body; null with an error
    metadata_offset: Int64 = -1  # the reply holds in every image that reaches it
