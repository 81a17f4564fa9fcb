"""Record batches made of records: what a broker itself writes, whole. Those of clients are judged and copied
(batches.py)."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from millrace.protocol.batches import CONTROL_BIT, FROM_CRC, TRANSACTIONAL_BIT, Codec, seal_batch
from millrace.protocol.compression import compress
from millrace.protocol.primitives import Buffer
from millrace.protocol.records import ControlType, Record, control_key, encode_end_marker, encode_records


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """A batch of `records`, at least one, at consecutive offsets from `base_offset` whatever their own
    offsets say.

    For what brokers write themselves (coordinators, markers, the metadata log) and for tests.
    """
    assert records, "a batch is built of at least one record"
    base_timestamp = records[0].timestamp
    max_timestamp = max(record.timestamp for record in records)
    payload: Buffer = encode_records(records, base_timestamp)
    if codec != Codec.NONE:
        payload = compress(codec, payload, level)
    attributes = codec | TRANSACTIONAL_BIT * is_transactional | CONTROL_BIT * is_control
    count = len(records)
    body = FROM_CRC.pack(
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return seal_batch(base_offset, leader_epoch, body, payload)


def build_batch_yielding(
    records: Sequence[Record], *, base_offset: int, leader_epoch: int, count_per_chunk: int
) -> Generator[None, None, bytes]:
    """The bytes of `build_batch`, plain, with a stop after every so many records: a small batch has none."""
    assert records, "a batch is built of at least one record"
    base_timestamp = records[0].timestamp
    max_timestamp = base_timestamp
    parts = []
    for start in range(0, len(records), count_per_chunk):
        if start:
            yield
        part = records[start : start + count_per_chunk]
        max_timestamp = max(max_timestamp, *(record.timestamp for record in part))
        parts.append(encode_records(part, base_timestamp, start))
    count = len(records)
    body = FROM_CRC.pack(0, count - 1, base_timestamp, max_timestamp, -1, -1, -1, count)
    return seal_batch(base_offset, leader_epoch, body, b"".join(parts))


def build_end_marker(
    *, producer_id: int, producer_epoch: int, is_commit: bool, coordinator_epoch: int, timestamp: int
) -> bytes:
    """The control batch that ends a producer's transaction in one partition."""
    key = control_key(ControlType.COMMIT if is_commit else ControlType.ABORT)
    marker = Record(key, encode_end_marker(coordinator_epoch), timestamp)
    return build_batch(
        [marker],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
