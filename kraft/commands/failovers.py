"""Decides what a broker asks that recovers the write-ahead log of another: that it begins, and that it has
ended. Pure.

Not here: who is asked to (leaders.py). Kept true: from its beginning on nothing is taken from the broker that
is gone, whose epoch it raises; it ends well only when no stream of that broker is open, and its log owes
nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from millrace.kraft.commands.decision import Decision, check_broker
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.brokers import Broker, registration_record
from millrace.kraft.tables.failovers import NOBODY, Failover
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.begin_failover import BeginFailoverRequest, BeginFailoverResponse
from millrace.protocol.messages.end_failover import EndFailoverRequest, EndFailoverResponse
from millrace.protocol.stream_records import EndFailoverRecord

REASON_CHARS_MAX: Final = 2_000  # twenty ranges of streams, and behind them what can be done


def decide_begin_failover(image: MetadataImage, request: BeginFailoverRequest, offset: int) -> Decision:
    """`offset`: where the next record will lie. Who was not asked to may begin where nobody is at work: it
    has come to reach the log. Raises KafkaError INVALID_RECORD_STATE where there is nothing to recover, or
    another is at work."""
    check_broker(image, request.broker_id, request.broker_epoch)
    gone, failover = image.brokers.get(request.node_id), image.failovers.get(request.node_id)
    if (
        gone is None
        or failover is None
        or not gone.is_fenced
        or image.brokers.by_id[request.broker_id].is_fenced
    ):
        raise KafkaError(
            ErrorCode.INVALID_RECORD_STATE, f"nothing of node {request.node_id} is to be recovered"
        )
    if failover.by_node == request.broker_id and gone.incarnation_id == request.incarnation:
        return Decision(BeginFailoverResponse(node_epoch=gone.epoch))
    if failover.by_node != request.broker_id and is_at_work(image, failover):
        text = f"node {failover.by_node} recovers the write-ahead log of node {request.node_id}"
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)
    taken = replace(gone, epoch=offset, incarnation_id=request.incarnation, is_shutting_down=False)
    records: list[Any] = [registration_record(taken)]  # first: its offset is the epoch
    if failover.by_node != request.broker_id:
        records.append(replace(failover, by_node=request.broker_id).record())
    return Decision(BeginFailoverResponse(node_epoch=offset), records)


def decide_end_failover(image: MetadataImage, request: EndFailoverRequest) -> Decision:
    """Raises KafkaError INVALID_RECORD_STATE where another is at work, or streams are open or
    owed."""
    check_broker(image, request.broker_id, request.broker_epoch)
    failover, decision = image.failovers.get(request.node_id), Decision(EndFailoverResponse())
    if failover is None:
        return decision
    if failover.by_node != request.broker_id:
        text = f"node {request.broker_id} does not recover the write-ahead log of node {request.node_id}"
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)
    if not request.is_recovered:
        current = [broker.epoch for broker in image.brokers]
        unable = [epoch for epoch in failover.unable if epoch in current and epoch != request.broker_epoch]
        unable.append(request.broker_epoch)
        reason = request.reason[:REASON_CHARS_MAX]
        decision.records.append(Failover(request.node_id, NOBODY, tuple(unable), reason).record())
        return decision
    if image.streams.are_in_log_of(request.node_id):
        text = f"streams of node {request.node_id} are open, or owed by its write-ahead log"
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)
    decision.records.append(EndFailoverRecord(request.node_id))
    return decision


def untried(image: MetadataImage, failover: Failover) -> Broker | None:
    """A broker that is there and has not said that it cannot recover the log: it is asked, or will be in a
    moment."""
    found = (one for one in image.brokers if one.is_usable and one.epoch not in failover.unable)
    return next(found, None)


def waiting_nodes(image: MetadataImage) -> frozenset[int]:
    """Brokers that are gone, whose log nobody who is there can recover."""
    waiting = (one for one in image.failovers if one.by_node == NOBODY and untried(image, one) is None)
    return frozenset(one.node_id for one in waiting)


def is_at_work(image: MetadataImage, failover: Failover) -> bool:
    """The broker that was asked to is there, as far as is known, and does not end: it recovers nothing any
    more before it says so."""
    broker = image.brokers.get(failover.by_node)
    return broker is not None and broker.is_usable
