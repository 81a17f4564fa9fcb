"""DescribeLogDirs (key 35): sizes of log directories and of the partitions in them."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array, wire


@dataclass(slots=True)
class DescribableLogDirTopic:
    topic: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class DescribeLogDirsRequest:
    VERSIONS = Versions(1, 5, flexible=2)

    topics: list[DescribableLogDirTopic] | None = array()  # null: all


@dataclass(slots=True)
class DescribeLogDirsPartition:
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0  # of a replica that is being moved here
    is_future_key: bool = False  # it will take the place of the current one


@dataclass(slots=True)
class DescribeLogDirsTopic:
    name: str = ""
    partitions: list[DescribeLogDirsPartition] = array()


@dataclass(slots=True)
class DescribeLogDirsResult:
    error_code: Int16 = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = array()
    total_bytes: Int64 = wire(-1, since=4, ignorable=True)  # of the volume; -1: unknown
    usable_bytes: Int64 = wire(-1, since=4, ignorable=True)
    is_cordoned: bool = wire(False, since=5, ignorable=True)


@dataclass(slots=True)
class DescribeLogDirsResponse:
    VERSIONS = Versions(1, 5, flexible=2)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = wire(0, since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = array()
