"""What a command comes to, and what it may look at: values and rules only, so that deciders need nothing of one another.

A decider is a plain function `decide_*(image, request, ...) -> Decision`; it refuses the whole request by raising
KafkaError, and parts of it inside the reply. Records of one decision take effect together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millrace.kraft.image import MetadataImage
from millrace.kraft.tables.objects import Objects
from millrace.kraft.topic_configs import ConfigLookup
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError

# (key, its new value or None when it is removed, whether for all brokers): raises KafkaError for what may not be.
BrokerConfigCheck = Callable[[str, str | None, bool], None]


@dataclass(slots=True)
class Decision:
    """`objects`: what the records make of that table, where deciding has applied them already; they change no other."""

    response: Any
    records: list[Any] = field(default_factory=list)
    objects: Objects | None = None


@dataclass(frozen=True, slots=True)
class CreationRules:
    partitions_default: int
    request_partitions_max: int
    lookup: ConfigLookup
    new_topic_id: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class ConfigRules:
    """How values are judged on this node."""

    lookup: ConfigLookup
    check_broker_config: BrokerConfigCheck


@dataclass(slots=True)
class Context:
    """What a decision may look at beside the request."""

    image: MetadataImage  # committed and pending
    now_ms: int
    offset: int  # of the next record
    cluster_id: str
    creation: CreationRules
    configs: ConfigRules
    describe_quorum: Callable[[Any, int], Decision]


def check_broker(image: MetadataImage, node_id: int, broker_epoch: int) -> None:
    """The request comes from the newest incarnation of a registered broker, or is refused."""
    broker = image.brokers.get(node_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not registered")
    if broker.epoch != broker_epoch:
        text = f"broker {node_id} has epoch {broker.epoch}, not {broker_epoch}"
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, text)
