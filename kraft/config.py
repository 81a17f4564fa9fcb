"""Settings of the quorum and of the controller. Values only; the broker's config.py gives them Kafka's key
names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from millrace.protocol.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Times are the driver's ticks. A quorum of one uses none of them."""

    node_id: int
    voters: tuple[int, ...]
    # controller.quorum.election.timeout.ms: without a leader for this long, and as much again by chance
    election_ticks: int = 10
    # controller.quorum.fetch.timeout.ms: a leader not heard for this long is given up; it resigns after half
    # as much again
    fetch_ticks: int = 20
    backoff_ticks_max: int = 10  # controller.quorum.election.backoff.max.ms: after a lost election
    retry_ticks: int = 5  # a request not answered for this long is sent again
    park_ticks: int = 5  # a fetch that finds nothing is answered after this long
    observer_ticks: int = 3000  # who has not fetched for this long is no observer any more: Kafka's 5 minutes

    def __post_init__(self) -> None:
        assert len(set(self.voters)) == len(self.voters), self.voters
        assert self.park_ticks < self.fetch_ticks, "a follower of an idle leader would give it up"
        assert self.retry_ticks < self.election_ticks


NO_STATIC: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    log_dir: str
    node_id: int
    voters: tuple[int, ...] = ()  # empty: this node alone
    cluster_id: str | None = None  # for a first start; None: made up then
    partitions_default: int = 1  # num.partitions
    topic_partitions_max: int = 10_000  # in one CreateTopics or CreatePartitions request, as Kafka bounds it
    group_bytes_max: int = (
        8 << 20
    )  # records of many commands in one batch, at most; one command may be larger
    segment_bytes: int = 64 << 20  # metadata.log.segment.bytes: a segment is full then
    snapshot_bytes: int = 20 << 20  # metadata.log.max.record.bytes.between.snapshots
    snapshot_records: int = 100_000  # a restart replays no more than about this many
    # a clean shutdown makes a snapshot when the restart would replay more
    snapshot_records_at_close: int = 10_000
    reserve_bytes: int = (
        8 << 20
    )  # room given up when the disk is full, so that deletions can still be written
    tick_ms: int = 100  # of a quorum of several: the unit of RaftSettings
    expiry_interval_ms: int = 1_000  # prepared objects past their deadline are looked for this often
    # how far the wall clock may run ahead of the loop's before deadlines stop following it
    wall_jump_max_ms: int = 60_000
    static_configs: Mapping[str, str] = field(
        default_factory=lambda: NO_STATIC
    )  # server.properties, for effective values
    # controller listeners (name, host, port), shown by DescribeQuorum
    endpoints: tuple[tuple[str, str, int], ...] = ()
