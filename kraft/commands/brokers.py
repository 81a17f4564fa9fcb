"""Decides what brokers ask about themselves: registration, heartbeat, blocks of producer ids; and their
removal. Pure.

A later incarnation of a broker takes its id at once: its epoch, the offset of its registration, is higher,
and with it everything the earlier one still asks for is refused. Where brokers have sessions, one is fenced
from its registration until a heartbeat says that it is ready, and again when its session is over; a broker
that is its own controller may be given partitions from its registration on. Not here: when a session is over
(kraft/sessions.py). Kept true: while another broker recovers the log of one that is gone nobody registers
as that one, and nobody begins to recover the log of one that has registered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from millrace.kraft.commands.decision import Decision, check_broker
from millrace.kraft.commands.failovers import is_at_work
from millrace.kraft.commands.wals import unseen_records
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.brokers import Broker
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from millrace.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from millrace.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from millrace.protocol.metadata_records import (
    BrokerRegistrationChangeRecord,
    ProducerIdsRecord,
    RecordEndpoint,
    RecordFeature,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from millrace.protocol.stream_records import EndFailoverRecord

PRODUCER_ID_BLOCK: Final = 1_000


def decide_register_broker(
    image: MetadataImage,
    request: BrokerRegistrationRequest,
    cluster_id: str,
    offset: int,
    *,
    is_fenced: bool = False,
    is_alone: bool = False,
) -> Decision:
    """`offset`: where the registration's record will lie. `is_fenced`: what a new incarnation is. The same
    incarnation asking again keeps its epoch. `is_alone`: the broker is its own controller, so that no other
    can be at work: those of a larger cluster of before are fenced, and their logs may be of later metadata.
    Raises KafkaError INCONSISTENT_CLUSTER_ID for a broker of another cluster, INVALID_REGISTRATION for what
    is no broker's id, which elsewhere means nobody, DUPLICATE_BROKER_REGISTRATION while another broker
    recovers this one's log: that passes when it has ended, or is gone itself."""
    if request.cluster_id != cluster_id:
        text = f"expected cluster id {cluster_id}, but got {request.cluster_id}"
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, text)
    if request.broker_id < 0:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"{request.broker_id} is no broker's id")
    known = image.brokers.get(request.broker_id)
    is_retry = known is not None and known.incarnation_id == request.incarnation_id
    failover = image.failovers.get(request.broker_id)
    if failover is not None and is_at_work(image, failover):
        text = f"node {failover.by_node} recovers the write-ahead log of node {request.broker_id}"
        raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, text)
    epoch = known.epoch if known is not None and is_retry else offset
    record = RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=[RecordEndpoint(e.name, e.host, e.port, e.security_protocol) for e in request.listeners],
        features=[
            RecordFeature(f.name, f.min_supported_version, f.max_supported_version) for f in request.features
        ],
        rack=request.rack,
        fenced=known.is_fenced if known is not None and is_retry else is_fenced,
        log_dirs=list(request.log_dirs),
    )
    records: list[Any] = [record]
    if failover is not None:
        records.append(EndFailoverRecord(request.broker_id))  # it is back, and recovers its own log
    if is_alone:
        others = (one.broker_id for one in image.brokers if one.broker_id != request.broker_id)
        records += [*decide_fence_brokers(image, others), *unseen_records(image, request.broker_id)]
    return Decision(BrokerRegistrationResponse(broker_epoch=epoch), records)


def decide_heartbeat(
    image: MetadataImage, request: BrokerHeartbeatRequest, *, has_session: bool = True
) -> Decision:
    """One without a session, since it is cut off from the store, stays fenced. A broker that wants to shut
    down leads on until its streams are closed, so that others can open them; where no other broker is there,
    it may end at once."""
    check_broker(image, request.broker_id, request.broker_epoch)
    broker = image.brokers.by_id[request.broker_id]
    is_caught_up = request.current_metadata_offset >= broker.epoch
    change = BrokerRegistrationChangeRecord(broker.broker_id, broker.epoch)
    is_fenced = broker.is_fenced
    may_end = request.want_shut_down and not has_to_hand_over(image, broker)
    wants_fence = request.want_fence or may_end
    if request.want_shut_down:
        change.in_controlled_shutdown = int(not broker.is_shutting_down)
    if wants_fence and not is_fenced:
        change.fenced, is_fenced = 1, True
    elif has_session and not (wants_fence or request.want_shut_down) and is_fenced and is_caught_up:
        change.fenced, is_fenced = -1, False
    if request.cordoned_log_dirs is not None and broker.cordoned_log_dirs != tuple(request.cordoned_log_dirs):
        change.cordoned_log_dirs = list(request.cordoned_log_dirs)
    response = BrokerHeartbeatResponse(
        is_caught_up=is_caught_up, is_fenced=is_fenced, should_shut_down=may_end
    )
    is_change = change.fenced or change.in_controlled_shutdown or change.cordoned_log_dirs is not None
    return Decision(response, [change] if is_change else [])


def has_to_hand_over(image: MetadataImage, broker: Broker) -> bool:
    """Whether it has partitions open that others can take. The first time it asks nobody has been told yet to
    take what it leads."""
    if broker.is_fenced or not any(other.is_usable for other in image.brokers if other is not broker):
        return False
    return not broker.is_shutting_down or image.streams.are_in_log_of(broker.broker_id)


def decide_fence_brokers(
    image: MetadataImage, broker_ids: Iterable[int]
) -> list[BrokerRegistrationChangeRecord]:
    """Those whose sessions are over, as far as they are not fenced or gone."""
    found = [image.brokers.get(broker_id) for broker_id in broker_ids]
    return [
        BrokerRegistrationChangeRecord(broker.broker_id, broker.epoch, fenced=1)
        for broker in found
        if broker is not None and not broker.is_fenced
    ]


def decide_unregister_broker(
    image: MetadataImage, request: UnregisterBrokerRequest, *, is_alive: bool = False
) -> Decision:
    """One that lives is refused, where Kafka takes it: it would lead nothing any more and know nothing of it
    until it is started again. So is one whose write-ahead log may hold what was acknowledged. `is_alive`: it
    has a session, as it has while it starts; one that has ended in order may have one still."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {request.broker_id} is not currently registered"
        )
    if not broker.is_fenced:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker {request.broker_id} is running: stop it, then unregister it"
        )
    if is_alive and not broker.is_shutting_down:
        text = f"Broker {request.broker_id} starts, or was there until now: stop it, then unregister it"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    open_count = len(image.streams.in_log_of(broker.broker_id))
    if open_count and image.features.has_failovers:
        text = (
            f"Broker {broker.broker_id} ended with {open_count} streams open, or owed: what was acknowledged "
            "may be in its write-ahead log alone. Start it, or see that another broker can reach that log"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    return Decision(
        UnregisterBrokerResponse(error_message=None), [UnregisterBrokerRecord(broker.broker_id, broker.epoch)]
    )


def decide_allocate_producer_ids(image: MetadataImage, request: AllocateProducerIdsRequest) -> Decision:
    check_broker(image, request.broker_id, request.broker_epoch)
    first = image.producer_ids
    record = ProducerIdsRecord(request.broker_id, request.broker_epoch, first + PRODUCER_ID_BLOCK)
    response = AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK)
    return Decision(response, [record])
