"""What a command comes to, and what it may look at: values and rules only, so that deciders need nothing of
one another.

A decider is a plain function `decide_*(image, request, ...) -> Decision`; it refuses the whole request by
raising KafkaError, and parts of it inside the reply. Records of one decision take effect together or not at
all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.tables.configs import Values
from millrace.kraft.tables.objects import Objects
from millrace.kraft.topic_configs import ConfigLookup
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.ids import uuid_text
from millrace.s3stream.ids import token_of, token_text

# (key, its new value or None when it is removed, whether for all brokers): raises KafkaError for what may not
# be.
BrokerConfigCheck = Callable[[str, str | None, bool], None]
# (type of the resource, a group or client metrics; all that it would have set): raises KafkaError for what
# may not be.
OtherConfigCheck = Callable[[int, Values], None]


@dataclass(slots=True)
class Decision:
    """`objects`: what the records make of that table, where deciding has applied them already; they change no
    other. `is_of_committed`: without records, and nothing that the response says is pending."""

    response: Any
    records: list[Any] = field(default_factory=list)
    objects: Objects | None = None
    is_of_committed: bool = False


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
    check_other_config: OtherConfigCheck
    # Of the quorum: a controller that is no broker has an id, too.
    is_voter: Callable[[int], bool] = lambda node_id: False


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
    # Told of a heartbeat: broker, epoch, and whether the broker is well; whether it has a session then. None
    # where brokers have no sessions.
    hear: Callable[[int, int, bool], bool] | None = None
    # Whether a broker has a session, fenced or not; nobody has where brokers have none.
    is_alive: Callable[[int], bool] = lambda broker_id: False
    is_alone: bool = False  # the quorum is one broker, and has no place for another
    committed: MetadataImage = EMPTY_IMAGE


def check_writer(image: MetadataImage, node_id: int, token: int) -> None:
    """`token` is of the incarnation that is registered, or 0: at millrace.version 0 nobody has one. After
    check_broker. Raises KafkaError STALE_BROKER_EPOCH for another incarnation's, INVALID_REQUEST for any at
    version 0."""
    if not token:
        return
    if not image.features.has_identities:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a writer is named at millrace.version 0")
    registered = token_of(image.brokers.by_id[node_id].incarnation_id)
    if registered != token:
        text = (
            f"incarnation {token_text(registered)} of node {node_id} is registered, not {token_text(token)}"
        )
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, text)


def check_incarnation(image: MetadataImage, node_id: int, incarnation: bytes) -> int:
    """The incarnation that wrote is the one that is registered, or none, at millrace.version 0: its token, or
    0. After check_broker. Raises KafkaError STALE_BROKER_EPOCH for another."""
    registered = image.brokers.by_id[node_id].incarnation_id
    if any(incarnation) and incarnation != registered:
        text = (
            f"incarnation {uuid_text(registered)} of node {node_id} is registered, not "
            f"{uuid_text(incarnation)}"
        )
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, text)
    return token_of(incarnation)


def check_broker(image: MetadataImage, node_id: int, broker_epoch: int) -> None:
    """The request comes from the newest incarnation of a registered broker, or is refused."""
    broker = image.brokers.get(node_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not registered")
    if broker.epoch != broker_epoch:
        text = f"broker {node_id} has epoch {broker.epoch}, not {broker_epoch}"
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, text)
