"""Settings of the block WAL are checked all at once."""

from __future__ import annotations

from millrace.wal.config import BlockWalSettings


def test_defaults_are_sound() -> None:
    """Nobody has to set anything."""
    assert BlockWalSettings().problems() == []


def test_every_violation_is_reported() -> None:
    """Five mistakes give five sentences, not the first one."""
    settings = BlockWalSettings(
        capacity_bytes=1, direct="maybe", block_soft_bytes=10, arena_bytes=100, writes_in_flight=0, window_bytes=0
    )
    assert len(settings.problems()) == 6
