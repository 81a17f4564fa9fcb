"""Settings of the group coordinator, under the names that the broker's configuration gives them, and its
topic. Values only."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass

OFFSETS_TOPIC = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """All take a restart. Each field's sentence is in the broker's table of keys; the key stands beside
    it."""

    initial_rebalance_delay_ms: int = 3000  # group.initial.rebalance.delay.ms
    session_timeout_min_ms: int = 6000  # group.min.session.timeout.ms
    session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    members_max: int = 2_147_483_647  # group.max.size
    offset_metadata_bytes_max: int = 4096  # offset.metadata.max.bytes; Kafka counts characters, and so do we
    offsets_retention_ms: int = 604_800_000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
