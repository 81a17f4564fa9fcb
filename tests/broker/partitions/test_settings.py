"""What a partition makes of its topic's configuration."""

from __future__ import annotations

from millrace.broker.partitions.settings import parse_settings
from millrace.protocol.compression import Codec


def test_blanks_around_a_value_that_is_stored_count_for_nothing() -> None:
    """Earlier releases stored values as they came."""
    settings = parse_settings({"compression.type": " gzip ", "message.timestamp.type": " LogAppendTime "})
    assert settings.codec is Codec.GZIP
    assert settings.rules.is_append_time
