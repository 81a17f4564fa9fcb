"""Decides what a node tells of its write-ahead log: which one it appends to, and that an operator accepts a
loss; and what a quorum of one believes of the logs of those that it goes on without. Pure.

Kept true: a node has one active log in metadata; another one takes its place only when no stream of the node
is open, so that nothing acknowledged is in the log that goes, or when its loss was accepted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from millrace.kraft.commands.decision import Decision, check_broker
from millrace.kraft.commands.owed_ranges import lost_record
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.wals import WALS_MAX, NodeWal, WalState, wal_record
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.accept_wal_loss import (
    AcceptWalLossRequest,
    AcceptWalLossResponse,
    LostPartition,
)
from millrace.protocol.messages.register_node_wal import RegisterNodeWalRequest, RegisterNodeWalResponse
from millrace.protocol.metadata_records import PartitionChangeRecord, ProducerIdsRecord
from millrace.protocol.stream_records import NextIdsRecord, RemoveNodeWalRecord
from millrace.s3stream.ids import StreamRole

NO_ID: Final = bytes(16)
NO_END: Final = -1  # LostPartition.lost_end: as far as anything was acknowledged
# Above what those that are gone may have given out unseen: a million a second for 19 hours. 2**53 of them, in
# which some clients hold ids, are enough for a hundred thousand such starts.
UNSEEN_IDS: Final = 1 << 36


def decide_register_node_wal(image: MetadataImage, request: RegisterNodeWalRequest) -> Decision:
    check_broker(image, request.node_id, request.broker_epoch)
    response = RegisterNodeWalResponse()
    if not image.features.has_identities or request.wal_id == NO_ID:
        return Decision(response)
    known = image.wals.get(request.node_id, request.wal_id)
    wal = NodeWal(
        request.node_id,
        request.wal_id,
        request.kind,
        request.address,
        request.broker_epoch,
        image.brokers.by_id[request.node_id].incarnation_id,
        request.position
        if known is None or request.is_loss_accepted
        else max(request.position, known.position),
        WalState.ACTIVE,
    )
    if wal == known:
        return Decision(response)
    return Decision(response, [*replaced_records(image, request), wal_record(wal)])


def replaced_records(image: MetadataImage, request: RegisterNodeWalRequest) -> list[Any]:
    """What becomes of the node's active log of another id; and of the oldest that were given up, beyond the
    bound. Raises KafkaError INVALID_RECORD_STATE where streams are open in it, and its loss is not
    accepted."""
    active = image.wals.active(request.node_id)
    others = [wal for wal in image.wals.of_node(request.node_id) if wal.wal_id != request.wal_id]
    given_up = [wal for wal in others if wal.state is WalState.GIVEN_UP]
    surplus = sorted(given_up, key=lambda wal: wal.owner_epoch)[: max(0, len(others) + 1 - WALS_MAX)]
    records: list[Any] = [RemoveNodeWalRecord(wal.node_id, wal.wal_id) for wal in surplus]
    if active is None or active.wal_id == request.wal_id:
        return records
    if request.is_loss_accepted:
        return [*records, wal_record(replace(active, state=WalState.GIVEN_UP))]
    if image.streams.are_in_log_of(request.node_id):
        text = f"streams of node {request.node_id} are open, or owed, in the WAL {active.address}"
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)
    return [*records, RemoveNodeWalRecord(active.node_id, active.wal_id)]


def decide_accept_wal_loss(image: MetadataImage, request: AcceptWalLossRequest) -> Decision:
    """A partition's leader epoch rises once, whatever is lost of it."""
    check_broker(image, request.node_id, request.broker_epoch)
    decision = Decision(AcceptWalLossResponse())
    lost = [(stream, stream.end, NO_END) for stream in image.streams.open_on(request.node_id)]
    for owed in image.streams.owed.of_node(request.node_id):
        decision.records.append(lost_record(owed))
        lost.append((image.streams.by_id[owed.stream_id], owed.start, owed.end))
    raised: dict[tuple[bytes, int], None] = {}
    for stream, start, end in lost:
        topic = image.topics.by_id(stream.topic_id)
        if stream.role is not StreamRole.DATA or topic is None:
            continue
        state, key = topic.partitions[stream.partition], (stream.topic_id, stream.partition)
        if key not in raised:
            change = PartitionChangeRecord(stream.partition, stream.topic_id, leader=state.leader)
            decision.records.append(change)
            raised[key] = None
        place = topic.name, stream.topic_id, stream.partition
        decision.response.partitions.append(LostPartition(*place, start, state.leader_epoch + 1, end))
    return decision


def unseen_records(image: MetadataImage, own: int) -> list[Any]:
    """Of a quorum of one, beside which no other broker is at work: a majority that it was part of, and that
    is gone, may have committed what this metadata lacks. So the others' logs are taken as a restore takes
    them: each may be of later metadata, and streams from the next id on may be in it that nobody knows here;
    what is not known is told, and not dropped. No id is given that they may have given. Again with the next
    start, where a log was recovered meanwhile: it is known to the end then."""
    logs = [wal for wal in image.wals if wal.node_id != own and wal.state is WalState.ACTIVE]
    if not logs:
        return []
    first = image.streams.next_id
    records: list[Any] = [
        wal_record(replace(wal, state=WalState.RECOVERING, unknown_from=first)) for wal in logs
    ]
    records.append(NextIdsRecord(first + UNSEEN_IDS, image.objects.next_id + UNSEEN_IDS))
    records.append(ProducerIdsRecord(-1, -1, image.producer_ids + UNSEEN_IDS))
    return records
