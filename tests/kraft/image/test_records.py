"""Metadata records as bytes: the envelope, batches, control records."""

from __future__ import annotations

import pytest

from millrace.kraft.errors import UnknownRecord
from millrace.kraft.image.records import (
    Proposal,
    ValueReader,
    ValueWriter,
    decode_values,
    encode_batch,
)
from millrace.kraft.image.voter_records import (
    control_types,
    encode_leader_change,
    encode_snapshot_footer,
    encode_snapshot_header,
)
from millrace.kraft.raft.ready import LeaderChange
from millrace.kraft.raft.voters import VoterSet
from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import BatchHeader, is_intact
from millrace.protocol.compile import decoder, encoder
from millrace.protocol.errors import WireError
from millrace.protocol.metadata_records import NoOpRecord, PartitionRecord, RegisterBrokerRecord, TopicRecord
from millrace.protocol.records import ControlType, Record, iter_records
from millrace.protocol.stream_records import CommitObjectRecord

TOPIC_ID = bytes(range(16))


def test_the_envelope_is_kafkas() -> None:
    """Frame version 1, key and version before the body; ours are a tagged field of a NoOpRecord, by their
    key."""
    writer = ValueWriter()
    assert writer.write(TopicRecord("t", TOPIC_ID)) == b"\x01\x02\x00" + b"\x02t" + TOPIC_ID + b"\x00"
    assert writer.write(PartitionRecord(3, TOPIC_ID))[:3] == b"\x01\x03\x01"
    assert writer.write(RegisterBrokerRecord())[:3] == b"\x01\x00\x04"
    value = writer.write(CommitObjectRecord(7))
    assert value[:6] == b"\x01\x14\x00" + b"\x01" + b"\xf9\x03"  # NoOpRecord version 0, one tag: 505
    assert value[6] == len(value) - 7
    assert value[7:16] == b"\x00" + (7).to_bytes(8, "big")  # version 0, object id
    assert decoder(NoOpRecord, 0)(value, 3) == (NoOpRecord(), len(value))


def test_values_come_back() -> None:
    """Each record is read as it was written, any declared version too, once and again."""
    writer, reader = ValueWriter(), ValueReader()
    records = [
        TopicRecord("t", TOPIC_ID),
        PartitionRecord(3, TOPIC_ID, [1], [1]),
        CommitObjectRecord(7, ranges=b"x" * 24),
    ]
    assert [reader.read(writer.write(record)) for record in records * 2] == records * 2
    old = b"\x01\x03\x00" + encoder(PartitionRecord, 0)(PartitionRecord(3, TOPIC_ID, [1], [1]))
    assert reader.read(old) == PartitionRecord(3, TOPIC_ID, [1], [1])


def test_a_no_op_is_one() -> None:
    """Also with tags that a later Kafka may give it."""
    assert ValueReader().read(b"\x01\x14\x00\x00") == NoOpRecord()
    assert ValueReader().read(b"\x01\x14\x00\x01\x07\x02ab") == NoOpRecord()


@pytest.mark.parametrize(
    "value",
    [
        b"\x00\x02\x00",  # frame 0
        b"\x02\x02\x00",  # frame 2
        b"\x01\xff\x7f\x00",  # no such key
        b"\x01\xf9\x03\x00",  # ours, bare
        b"\x01\x02\x09",  # no such version
        b"\x01\x14\x00\x01\xff\x7f\x01\x00",  # ours, of a later build
        b"\x01\x14\x00\x01\xf9\x03\x01\x09",  # ours, in a later version
    ],
)
def test_what_a_later_build_wrote_is_refused(value: bytes) -> None:
    """An unknown frame, key or version stops the reader: stepping over it would make another image."""
    with pytest.raises(UnknownRecord):
        ValueReader().read(value + bytes(40))


def test_one_batch_of_many_proposals() -> None:
    """Values keep their order, offsets follow the base, and all records have the time of the newest command:
    a controller of Apache Kafka that follows ends at a record of another time than its batch's."""
    batch = memoryview(encode_batch([Proposal([b"one", b"two"], 90), Proposal([b"x" * 300], 100)], 77, 5))
    header = BatchHeader(batch)
    assert is_intact(batch, header)
    assert (header.base_offset, header.last_offset, header.leader_epoch, header.attributes) == (77, 79, 5, 0)
    assert decode_values(batch) == [b"one", b"two", b"x" * 300]
    assert [(record.offset, record.timestamp) for record in iter_records(batch)] == [
        (77, 100),
        (78, 100),
        (79, 100),
    ]
    assert header.base_timestamp == header.max_timestamp == 100


def test_a_batch_that_lies_is_refused() -> None:
    """A key, or a record cut off, is no metadata record."""
    with pytest.raises(WireError, match="key"):
        decode_values(memoryview(build_batch([Record(b"k", b"v", 0)])))
    cut = bytearray(encode_batch([Proposal([b"value"], 0)], 0, 1))
    cut[8:12] = (len(cut) - 12 - 4).to_bytes(4, "big")
    with pytest.raises(WireError, match="do not fill it"):
        decode_values(memoryview(cut)[:-4])


def test_control_batches() -> None:
    """Leader changes and a snapshot's ends are told by their keys, and are Kafka's bytes."""
    change = encode_leader_change(LeaderChange(1, (1, 2), (1,)), 9, 4, 1000)
    kinds = [
        control_types(memoryview(batch))[0]
        for batch in (change, encode_snapshot_header(5, 4, 6, VoterSet()), encode_snapshot_footer(9, 4, 6))
    ]
    assert kinds == [ControlType.LEADER_CHANGE, ControlType.SNAPSHOT_HEADER, ControlType.SNAPSHOT_FOOTER]
    (record,) = iter_records(memoryview(change))
    # version 0, leader 1, voters 1 and 2, granted by 1, no tags
    assert record.value == bytes.fromhex("0000 00000001 03 00000001 00 00000002 00 02 00000001 00 00")
    assert BatchHeader(change).is_control
