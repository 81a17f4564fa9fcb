"""Write-ahead logs and claims in metadata: one active log a node, positions that only grow, and which claims
are remembered."""

from __future__ import annotations

from dataclasses import replace

from millrace.kraft.image.delta import MetadataDelta, apply_records
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.log.snapshot import image_records
from millrace.kraft.tables.claims import CLAIMS_MAX, METADATA_SERIES, Claim
from millrace.kraft.tables.wals import WalState
from millrace.protocol.stream_records import (
    CommitObjectRecord,
    MoveNodeWalRecord,
    NodeClaimRecord,
    NodeWalRecord,
    PrepareObjectsRecord,
    RemoveNodeWalRecord,
)
from millrace.s3stream.ids import ObjectId

FIRST, SECOND = bytes(range(16)), bytes(range(16, 32))


def wal(wal_id: bytes, state: WalState = WalState.ACTIVE, position: int = 0) -> NodeWalRecord:
    return NodeWalRecord(1, wal_id, "block", "0@file:///wal", 7, SECOND, position, int(state))


def test_position_of_a_log_never_falls() -> None:
    """Commits move it forward; a lower one changes nothing."""
    records = [wal(FIRST), MoveNodeWalRecord(1, FIRST, 8192), MoveNodeWalRecord(1, FIRST, 4096)]
    _, image = apply_records(EMPTY_IMAGE, records, 3, 1)
    found = image.wals.active(1)
    assert found is not None
    assert found.position == 8192


def test_a_node_has_one_active_log_beside_others() -> None:
    """One that was given up stays until it is removed; other nodes' logs are their own."""
    records = [wal(FIRST, WalState.GIVEN_UP), wal(SECOND), replace(wal(FIRST), node_id=2)]
    _, image = apply_records(EMPTY_IMAGE, records, 3, 1)
    found = image.wals.active(1)
    assert found is not None
    assert found.wal_id == SECOND
    assert len(image.wals.of_node(1)) == 2
    _, image = apply_records(image, [RemoveNodeWalRecord(1, FIRST)], 4, 1)
    assert [log.wal_id for log in image.wals.of_node(1)] == [SECOND]
    assert image.wals.get(2, FIRST) is not None


def test_claims_of_the_two_highest_numbers_are_remembered() -> None:
    """Several incarnations may have meant to claim one number; those of older numbers are forgotten."""
    claims = [(1, FIRST), (2, FIRST), (2, SECOND), (3, FIRST)]
    records = [NodeClaimRecord(1, *claim) for claim in claims]
    _, image = apply_records(EMPTY_IMAGE, [*records, NodeClaimRecord(METADATA_SERIES, 1, SECOND)], 5, 1)
    assert image.claims.of(1) == (Claim(2, FIRST), Claim(2, SECOND), Claim(3, FIRST))
    assert image.claims.of(METADATA_SERIES) == (Claim(1, SECOND),)
    assert image.claims.is_known(1, Claim(2, SECOND))
    assert not image.claims.is_known(1, Claim(1, FIRST))
    assert not image.claims.of(9)


def test_claims_of_one_number_are_bounded() -> None:
    """A start that is killed again and again before its claim reaches the bucket does not grow the
    metadata."""
    records = [NodeClaimRecord(1, 5, number.to_bytes(16, "big")) for number in range(2 * CLAIMS_MAX)]
    _, image = apply_records(EMPTY_IMAGE, records, 5, 1)
    assert len(image.claims.of(1)) == CLAIMS_MAX
    assert image.claims.of(1)[-1].incarnation == records[-1].incarnation


def test_a_snapshot_keeps_logs_claims_and_writers() -> None:
    """The image that its records make is the one it was made of."""
    prepare = PrepareObjectsRecord(0, 2, 1, 1_000, writer=-77)
    commit = CommitObjectRecord(0, 1, 500, 0, 10, 1)
    records = [wal(FIRST, position=4096), NodeClaimRecord(1, 3, SECOND), prepare, commit]
    _, image = apply_records(EMPTY_IMAGE, records, 4, 1)
    assert image.objects.by_id[ObjectId(1)].writer == -77
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.apply_all(image_records(image))
    again = delta.done(image.offset, image.epoch)
    assert list(again.wals) == list(image.wals)
    assert list(again.claims) == list(image.claims)
    assert again.objects.by_id[ObjectId(1)] == image.objects.by_id[ObjectId(1)]
