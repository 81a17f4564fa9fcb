"""Records of the quorum as bytes: as Kafka writes them, and back."""

from __future__ import annotations

import pytest

from millrace.kraft.errors import UnknownRecord
from millrace.kraft.image.voter_records import (
    change_of,
    control_types,
    encode_controls,
    encode_leader_change,
    encode_snapshot_footer,
    encode_snapshot_header,
    encode_voters_change,
    leading_voters,
)
from millrace.kraft.raft.ready import LeaderChange
from millrace.kraft.raft.voters import DYNAMIC, Endpoint, Voter, VotersChange, VoterSet
from millrace.protocol.batches import BatchHeader
from millrace.protocol.compile import decoder, encoder
from millrace.protocol.control_records import ChangeVoter, LeaderChangeMessage
from millrace.protocol.errors import WireError
from millrace.protocol.records import ControlType, iter_records

A, B = b"a" * 16, b"b" * 16
VOTERS = (
    Voter(1, A, (Endpoint("CONTROLLER", "one", 9093),), (0, 1)),
    Voter(2, B, (Endpoint("CONTROLLER", "two", 65_535), Endpoint("OTHER", "::1", 1)), (0, 1)),
)
KNOWN = VoterSet(VOTERS, DYNAMIC)


def values(batch: bytes) -> list[bytes]:
    return [bytes(record.value or b"") for record in iter_records(memoryview(batch))]


def test_what_changes_voters_comes_back() -> None:
    """The level and the voters, in one batch with offsets of their own, or either alone."""
    for change, count in (
        (VotersChange(DYNAMIC, VOTERS), 2),
        (VotersChange(DYNAMIC), 1),
        (VotersChange(None, VOTERS), 1),
    ):
        batch = encode_voters_change(change, 7, 3, 1_000)
        header = BatchHeader(memoryview(batch))
        assert (header.base_offset, header.last_offset, header.is_control) == (7, 6 + count, True)
        assert change_of(memoryview(batch)) == change


def test_the_bytes_are_kafkas() -> None:
    """VotersRecord version 0: version, voters, each with its id, directory, endpoints, and range of levels,
    all with room for tags; KRaftVersionRecord version 0: version and level."""
    level, voters = values(encode_voters_change(VotersChange(DYNAMIC, VOTERS[:1]), 0, 1, 0))
    assert level == b"\x00\x00" + b"\x00\x01" + b"\x00"
    endpoint = b"\x02" + b"\x0bCONTROLLER" + b"\x04one" + (9093).to_bytes(2, "big") + b"\x00"
    feature = b"\x00\x00" + b"\x00\x01" + b"\x00"
    voter = b"\x00\x00\x00\x01" + A + endpoint + feature + b"\x00"
    assert voters == b"\x00\x00" + b"\x02" + voter + b"\x00"


def test_an_epochs_record_is_one_that_kafka_reads() -> None:
    """It reads each as version 0, whatever stands in it, so that is what it is where voters have directories,
    too. It brings what a directory was formatted with into the log, once."""
    old = encode_leader_change(LeaderChange(1, (1, 2), (2,)), 9, 4, 0)
    new = encode_leader_change(LeaderChange(1, (1, 2), (2,), KNOWN), 9, 4, 0)
    assert new == old
    message = decoder(LeaderChangeMessage, 0)(values(new)[0], 0)[0]
    assert message.version == 0
    assert [one.voter_id for one in message.voters] == [1, 2]
    assert [one.voter_id for one in message.granting_voters] == [2]
    assert change_of(memoryview(new)) is None
    first = encode_leader_change(LeaderChange(1, (1, 2), (2,), KNOWN, is_first=True), 0, 1, 0)
    assert BatchHeader(memoryview(first)).record_count == 3
    assert control_types(memoryview(first)) == [ControlType.LEADER_CHANGE]
    assert change_of(memoryview(first)) == VotersChange(DYNAMIC, VOTERS)


def test_a_snapshots_header_names_the_voters() -> None:
    """From level 1 on; below it the bytes are those of before."""
    header = encode_snapshot_header(5, 4, 6, KNOWN)
    assert control_types(memoryview(header)) == [ControlType.SNAPSHOT_HEADER]
    assert change_of(memoryview(header)) == VotersChange(DYNAMIC, VOTERS)
    static = encode_snapshot_header(5, 4, 6, VoterSet.static((1, 2)))
    assert len(values(static)) == 1
    assert control_types(memoryview(encode_snapshot_footer(9, 4, 6))) == [ControlType.SNAPSHOT_FOOTER]


def test_a_level_of_a_later_build_is_refused() -> None:
    """What it would say of voters is not known here."""
    batch = encode_voters_change(VotersChange(2), 0, 1, 0)
    with pytest.raises(UnknownRecord, match="level 2"):
        change_of(memoryview(batch))


def test_what_is_no_such_record_is_refused() -> None:
    """Cut off at any byte, or with a voter twice."""
    whole = values(encode_voters_change(VotersChange(None, VOTERS), 0, 1, 0))[0]
    for end in range(len(whole)):
        batch = encode_controls([(ControlType.KRAFT_VOTERS, whole[:end])], 0, 1, 0)
        with pytest.raises(WireError):
            change_of(memoryview(batch))
    twice = encode_voters_change(VotersChange(None, VOTERS[:1] * 2), 0, 1, 0)
    with pytest.raises(WireError, match="twice"):
        change_of(memoryview(twice))


@pytest.mark.parametrize("version", [0, 1])
def test_the_voters_of_an_epoch_are_read(version: int) -> None:
    """Also of the version that earlier releases wrote; what cannot be read says nothing."""
    two, one = (ChangeVoter(2, B), ChangeVoter(1, A)) if version else (ChangeVoter(2), ChangeVoter(1))
    message = LeaderChangeMessage(version, 2, [two, one], [two])
    value = encoder(LeaderChangeMessage, version)(message)
    batch = encode_controls([(ControlType.LEADER_CHANGE, value)], 9, 4, 0)
    assert leading_voters(memoryview(batch)) == (1, 2)
    for cut in (value[:-1], value[:5], b"", b"\x00\x07" + value[2:]):
        odd = encode_controls([(ControlType.LEADER_CHANGE, cut)], 9, 4, 0)
        assert leading_voters(memoryview(odd)) is None, cut
    assert leading_voters(memoryview(encode_voters_change(VotersChange(DYNAMIC, VOTERS), 0, 1, 0))) is None
