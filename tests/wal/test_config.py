"""Settings of the block WAL are checked all at once."""

from __future__ import annotations

from millrace.wal.config import BlockWalSettings, ObjectWalSettings


def test_defaults_are_sound() -> None:
    """Nobody has to set anything."""
    assert BlockWalSettings().problems() == []
    assert ObjectWalSettings().problems() == []


def test_every_violation_is_reported() -> None:
    """Five mistakes give five sentences, not the first one."""
    settings = BlockWalSettings(
        capacity_bytes=1,
        direct="maybe",
        block_soft_bytes=10,
        arena_bytes=100,
        writes_in_flight=0,
        window_bytes=0,
    )
    assert len(settings.problems()) == 6


def test_every_violation_of_an_object_wal_is_reported() -> None:
    """Eight mistakes give eight sentences, under the names that the address has for them."""
    settings = ObjectWalSettings(
        capacity_bytes=1,
        batch_bytes_max=1,
        unflushed_bytes_max=1,
        uploads_max=0,
        fence="wire",
        hedge="maybe",
        arena_bytes=1,
        batch_interval_ms=-1,
    )
    found = " ".join(settings.problems())
    assert len(settings.problems()) == 8
    for name in (
        "maxBytesInBatch",
        "maxUnflushedBytes",
        "maxInflightUploadCount",
        "fence is 'wire'",
        "hedge is 'maybe'",
    ):
        assert name in found
