"""NewTypes for the ids, offsets and epochs that cross walls. Values only; no behaviour.

A topic id is its 16 raw bytes; the zero id (`NO_TOPIC_ID`) means none.
"""

from __future__ import annotations

import base64
from typing import NewType

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
PartitionId = NewType("PartitionId", int)
TopicId = NewType("TopicId", bytes)
ProducerId = NewType("ProducerId", int)
NodeId = NewType("NodeId", int)
BrokerEpoch = NewType("BrokerEpoch", int)

NO_TOPIC_ID = TopicId(bytes(16))


def uuid_text(raw: bytes) -> str:
    """Kafka's text form of a UUID: url-safe base64 of the 16 bytes, without padding (22 characters)."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def uuid_bytes(text: str) -> bytes:
    """The inverse of `uuid_text`. Raises ValueError when the text is not 16 bytes of base64."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"not a 16-byte id: {text!r}")
    return raw
