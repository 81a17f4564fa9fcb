"""Snapshots of the metadata log, from a leader to who lacks the beginning of it (FetchSnapshot, KIP-630).

`SnapshotPieces` gives pieces of the snapshots that lie here; `SnapshotFetcher` asks a leader for one, piece
by piece.

Kept true: pieces are of one file, whose checksums tell whoever puts them together whether it is whole; a file
that is removed meanwhile is SNAPSHOT_NOT_FOUND, and the leader is asked anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, cast

from millrace.kraft.log.log_store import LogStore, SnapshotId
from millrace.kraft.peers.connection import PeerConnection
from millrace.kraft.peers.ways import Ways
from millrace.kraft.peers.wire import PARTITION, TOPIC, Member, answered, check_cluster, only
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.messages import fetch_snapshot as wire
from millrace.protocol.primitives import Buffer
from millrace.runtime.errors import Unavailable

PIECE_BYTES_MAX: Final = 1 << 20


class SnapshotPieces:
    """`on_given` is told the replica that was given a piece, and its directory."""

    def __init__(self, member: Member, store: LogStore, on_given: Callable[[int, bytes], None]) -> None:
        self._member = member
        self._store = store
        self._on_given = on_given

    async def answer(
        self, request: wire.FetchSnapshotRequest, epoch: int, leader: int
    ) -> wire.FetchSnapshotResponse:
        """`epoch` and `leader`: as this member knows them."""
        try:
            check_cluster(request.cluster_id, self._member)
            asked = only(request.topics, "name", "partition")
        except KafkaError as error:
            return wire.FetchSnapshotResponse(error_code=error.code)
        part = wire.FetchSnapshotResponsePartitionSnapshot(
            PARTITION,
            snapshot_id=asked.snapshot_id,
            current_leader=wire.LeaderIdAndEpoch(leader, epoch),
            position=asked.position,
        )
        code = self._epoch_fault(asked.current_leader_epoch, epoch, leader)
        part.error_code = int(code or await self._read(asked, part, max(1, request.max_bytes)))
        if not part.error_code:
            self._on_given(request.replica_id, asked.replica_directory_id)
        topic = wire.FetchSnapshotResponseTopicSnapshot(TOPIC, [part])
        return wire.FetchSnapshotResponse(topics=[topic])

    def _epoch_fault(self, asked: int, epoch: int, leader: int) -> ErrorCode:
        if 0 <= asked < epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if asked > epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if leader == self._member.node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER

    async def _read(
        self,
        asked: wire.FetchSnapshotRequestPartitionSnapshot,
        part: wire.FetchSnapshotResponsePartitionSnapshot,
        bytes_max: int,
    ) -> ErrorCode:
        """Puts the piece into `part`; the code of what is wrong."""
        snapshot = SnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        file = await self._store.open_snapshot(snapshot)
        if file is None:
            return ErrorCode.SNAPSHOT_NOT_FOUND
        try:
            part.size = file.size_bytes
            if not 0 <= asked.position < file.size_bytes:
                return ErrorCode.POSITION_OUT_OF_RANGE
            part.unaligned_records = await file.read_at(asked.position, min(bytes_max, PIECE_BYTES_MAX))
            return ErrorCode.NONE
        finally:
            await file.close()


class SnapshotFetcher:
    """The driver's SnapshotSource. `ways` lead to nodes; `epoch` is the one that the core
    is in; `on_piece` is told the leader that gave a piece."""

    def __init__(
        self,
        member: Member,
        ways: Ways[int],
        epoch: Callable[[], int],
        on_piece: Callable[[int], None],
        timeout_s: float,
    ) -> None:
        self._member = member
        self._ways = ways
        self._epoch = epoch
        self._on_piece = on_piece
        self._timeout_s = timeout_s

    async def fetch(self, leader: int, snapshot: SnapshotId) -> AsyncIterator[bytes]:
        """The file's bytes, in order. Raises Unavailable where the leader does not give them."""
        connection = await self._ways.connected(leader)
        try:
            position, size_bytes = 0, 1
            while position < size_bytes:
                part = await self._ask(connection, snapshot, position)
                piece = bytes(memoryview(cast("Buffer", part.unaligned_records)))
                if part.position != position or not piece or part.size < position + len(piece):
                    raise WireError(f"a piece of {len(piece)} bytes at {part.position} of {part.size}")
                self._on_piece(leader)
                yield piece
                position, size_bytes = position + len(piece), part.size
        except (WireError, KafkaError) as error:
            raise Unavailable(f"snapshot {snapshot.name} of node {leader}: {error}") from error
        finally:
            self._ways.retire(leader, self._timeout_s)

    async def _ask(
        self, connection: PeerConnection, snapshot: SnapshotId, position: int
    ) -> wire.FetchSnapshotResponsePartitionSnapshot:
        asked = wire.FetchSnapshotRequestPartitionSnapshot(
            PARTITION,
            self._epoch(),
            wire.SnapshotId(snapshot.end, snapshot.epoch),
            position,
            self._member.directory_id,
        )
        request = wire.FetchSnapshotRequest(
            self._member.cluster_id,
            self._member.node_id,
            PIECE_BYTES_MAX,
            [wire.FetchSnapshotRequestTopicSnapshot(TOPIC, [asked])],
        )
        response: wire.FetchSnapshotResponse = await connection.ask(request, self._timeout_s)
        if response.error_code:
            raise KafkaError(response.error_code, "FetchSnapshot is refused")
        part: wire.FetchSnapshotResponsePartitionSnapshot = answered(response.topics)
        if part.error_code:
            raise KafkaError(part.error_code, "FetchSnapshot is refused")
        return part
