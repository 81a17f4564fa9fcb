"""Records of the quorum itself as bytes: who leads an epoch, who votes, where a snapshot begins and ends.
Pure.

    log         LeaderChange | KRaftVersion, Voters     the epoch's own; behind it, once, what was formatted
                KRaftVersion, Voters                    kraft.version is raised
                Voters                                  a voter comes, goes, or moves
    snapshot    SnapshotHeader, KRaftVersion, Voters    the last two where kraft.version is 1
                ... | SnapshotFooter

Each line is one control batch, as Kafka writes it. LeaderChange is of version 0, at every kraft.version:
Kafka has a version 1 that names directories, writes it nowhere, and reads every one as version 0. Not here:
metadata records (records.py), what voters mean (kraft/raft/voters.py). Kept true: what is written can be read
by this build and by Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from millrace.kraft.errors import UnknownRecord
from millrace.kraft.raft.ready import LeaderChange
from millrace.kraft.raft.voters import (
    KRAFT_VERSIONS,
    STATIC,
    Endpoint,
    Voter,
    VotersChange,
    VoterSet,
    in_order,
)
from millrace.protocol import control_records as wire
from millrace.protocol.batch_build import build_batch
from millrace.protocol.compile import decoder, encoder
from millrace.protocol.errors import WireError
from millrace.protocol.records import ControlType, Record, control_key, decode_control_key, iter_records

OF_VOTERS: Final = (ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS)

Control = tuple[ControlType, bytes]


def encode_controls(controls: Sequence[Control], base_offset: int, epoch: int, time_ms: int) -> bytes:
    records = [Record(control_key(kind), value, time_ms) for kind, value in controls]
    return build_batch(records, base_offset=base_offset, leader_epoch=epoch, is_control=True)


def encode_leader_change(change: LeaderChange, base_offset: int, epoch: int, time_ms: int) -> bytes:
    """One record; three where the voters that a directory was formatted with come into the log."""
    known = change.voter_set
    named = [[wire.ChangeVoter(voter) for voter in ids] for ids in (change.voters, change.granted_by)]
    message = wire.LeaderChangeMessage(0, change.leader, *named)
    controls = [(ControlType.LEADER_CHANGE, encoder(wire.LeaderChangeMessage, 0)(message))]
    if known is not None and change.is_first:
        controls += controls_of(VotersChange(known.kraft_version, known.voters))
    return encode_controls(controls, base_offset, epoch, time_ms)


def encode_voters_change(change: VotersChange, base_offset: int, epoch: int, time_ms: int) -> bytes:
    return encode_controls(controls_of(change), base_offset, epoch, time_ms)


def encode_snapshot_header(log_time_ms: int, epoch: int, time_ms: int, voters: VoterSet) -> bytes:
    """`voters`: in force where the snapshot ends."""
    value = encoder(wire.SnapshotHeaderRecord, 0)(wire.SnapshotHeaderRecord(0, log_time_ms))
    controls = [(ControlType.SNAPSHOT_HEADER, value)]
    if voters.kraft_version != STATIC:
        controls += controls_of(VotersChange(voters.kraft_version, voters.voters))
    return encode_controls(controls, 0, epoch, time_ms)


def encode_snapshot_footer(base_offset: int, epoch: int, time_ms: int) -> bytes:
    value = encoder(wire.SnapshotFooterRecord, 0)(wire.SnapshotFooterRecord())
    return encode_controls([(ControlType.SNAPSHOT_FOOTER, value)], base_offset, epoch, time_ms)


def controls_of(change: VotersChange) -> list[Control]:
    """In Kafka's order: the level first."""
    found: list[Control] = []
    if change.kraft_version is not None:
        record: Any = wire.KRaftVersionRecord(0, change.kraft_version)
        found.append((ControlType.KRAFT_VERSION, encoder(wire.KRaftVersionRecord, 0)(record)))
    if change.voters is not None:
        record = wire.VotersRecord(0, [voter_record(voter) for voter in change.voters])
        found.append((ControlType.KRAFT_VOTERS, encoder(wire.VotersRecord, 0)(record)))
    return found


def voter_record(voter: Voter) -> wire.VotersVoter:
    endpoints = [wire.VoterEndpoint(*endpoint) for endpoint in voter.endpoints]
    feature = wire.KRaftVersionFeature(*voter.kraft_versions)
    return wire.VotersVoter(voter.node_id, voter.directory_id, endpoints, feature)


def voter_of(record: wire.VotersVoter) -> Voter:
    feature = record.kraft_version_feature
    return Voter(
        record.voter_id,
        record.voter_directory_id,
        tuple(Endpoint(one.name, one.host, one.port) for one in record.endpoints),
        (feature.min_supported_version, feature.max_supported_version),
    )


def control_types(view: memoryview) -> list[int]:
    """What the records of the control batch at the start of `view` are, but for those about voters."""
    kinds = [decode_control_key(record.key) for record in iter_records(view)]
    return [kind for kind in kinds if kind not in OF_VOTERS]


def leading_voters(view: memoryview) -> tuple[int, ...] | None:
    """Who votes as far as the epoch's leader knows, where the control batch at the start of `view` opens one.
    None of any other, and of what cannot be read: nothing hangs on it but who is told of a mistake."""
    record = next(iter_records(view))
    if decode_control_key(record.key) != ControlType.LEADER_CHANGE:
        return None
    value = bytes(record.value or b"")
    version = int.from_bytes(value[:2], "big")
    if version not in wire.LeaderChangeMessage.VERSIONS:
        return None
    try:
        message = decoder(wire.LeaderChangeMessage, version)(value, 0)[0]
    except (IndexError, WireError):
        return None
    return tuple(sorted(one.voter_id for one in message.voters))


def change_of(view: memoryview) -> VotersChange | None:
    """What the control batch at the start of `view` says of voters. Raises WireError for bytes that are no
    such record, UnknownRecord for a level that this build does not run at."""
    version: int | None = None
    voters: tuple[Voter, ...] | None = None
    for record in iter_records(view):
        kind, value = decode_control_key(record.key), bytes(record.value or b"")
        try:
            if kind == ControlType.KRAFT_VERSION:
                version = decoder(wire.KRaftVersionRecord, 0)(value, 0)[0].kraft_version
            elif kind == ControlType.KRAFT_VOTERS:
                found = decoder(wire.VotersRecord, 0)(value, 0)[0].voters
                voters = in_order([voter_of(one) for one in found])
        except IndexError:
            raise WireError(f"a control record of {len(value)} bytes is cut off") from None
    if version is not None and not KRAFT_VERSIONS[0] <= version <= KRAFT_VERSIONS[1]:
        raise UnknownRecord(f"KRaftVersionRecord of level {version}")
    if voters is not None and len({voter.node_id for voter in voters}) != len(voters):
        raise WireError("a VotersRecord names a voter twice")
    return None if version is None and voters is None else VotersChange(version, voters)
