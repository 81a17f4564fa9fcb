"""Settings of the quorum and of the controller. Values only; the broker's config.py gives them Kafka's key
names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from millrace.kraft.raft.voters import NO_DIRECTORY
from millrace.protocol.dataclass import dataclass

TICK_MS, TICK_MS_MIN = 100, 10
TICKS_MIN = 10  # of the shorter time-out
OBSERVER_MS = 300_000  # who has not fetched for this long is no observer any more, as in Kafka


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Times are the driver's ticks. A quorum of one uses none of them, but while others fetch from it."""

    node_id: int
    voters: tuple[int, ...]  # while kraft.version is 0
    # controller.quorum.election.timeout.ms: without a leader for this long, and as much again by chance
    election_ticks: int = 10
    # controller.quorum.fetch.timeout.ms: a leader not heard for this long is given up; it resigns after half
    # as much again
    fetch_ticks: int = 20
    backoff_ticks_max: int = 10  # controller.quorum.election.backoff.max.ms: after a lost election
    retry_ticks: int = 5  # a request not answered for this long is sent again
    park_ticks: int = 5  # a fetch that finds nothing is answered after this long
    observer_ticks: int = OBSERVER_MS // TICK_MS
    directory_id: bytes = NO_DIRECTORY
    # negative ids: whom to ask who leads beside the voters (controller.quorum.bootstrap.servers)
    bootstrap: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(set(self.voters)) == len(self.voters), self.voters
        assert self.park_ticks < self.fetch_ticks, "a follower of an idle leader would give it up"
        assert self.retry_ticks < self.election_ticks


@dataclass(frozen=True, slots=True)
class Ticks:
    """Time-outs of the quorum in ticks of `ms`."""

    ms: int = TICK_MS
    election: int = 10
    fetch: int = 20
    backoff_max: int = 10

    @classmethod
    def of_ms(cls, election_ms: int, fetch_ms: int, backoff_max_ms: int) -> Ticks:
        """So short that the shorter of the first two has ten; both are 100 ms or longer."""
        ms = min(TICK_MS, max(TICK_MS_MIN, min(election_ms, fetch_ms) // TICKS_MIN))
        return cls(ms, -(-election_ms // ms), -(-fetch_ms // ms), max(1, -(-backoff_max_ms // ms)))


@dataclass(frozen=True, slots=True)
class QuorumSettings:
    """`voters`: host and port of each controller's listener, by node id; empty where none are named.
    `is_dynamic`: the log names them, or will; `bootstrap`: whom to ask where they are then. `request_s`: how
    long a member is given to answer. `session_ms`: of brokers; None where the one broker is its own
    controller. `heartbeat_s`: how often they are heard. `is_alone`: this process is broker and whole quorum
    in one, and no other node can join it."""

    voters: Mapping[int, tuple[str, int]]
    request_s: float
    session_ms: int | None
    heartbeat_s: float
    is_dynamic: bool = False
    bootstrap: tuple[tuple[str, int], ...] = ()
    is_alone: bool = False

    @property
    def is_list_of_one(self) -> bool:
        """Of a controller: it is its own whole quorum, for as long as the log names no voters."""
        return len(self.voters) <= 1 and not self.is_dynamic


NO_STATIC: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    log_dir: str
    node_id: int
    voters: tuple[int, ...] = ()  # empty: this node alone, where the quorum is not dynamic
    is_voters_change_accepted: bool = False  # controller.quorum.voters.change.accept
    is_dynamic: bool = False  # the log names the voters, or what the directory was formatted with
    bootstrap_servers: tuple[tuple[str, int], ...] = ()  # whom to ask who leads, beside voters that are known
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
    ticks: Ticks = Ticks()
    session_ms: int | None = None  # broker.session.timeout.ms, where brokers are not their own controllers
    expiry_interval_ms: int = 1_000  # prepared objects past their deadline are looked for this often
    # how far the wall clock may run ahead of the loop's before deadlines stop following it
    wall_jump_max_ms: int = 60_000
    static_configs: Mapping[str, str] = field(
        default_factory=lambda: NO_STATIC
    )  # server.properties, for effective values
    # controller listeners (name, host, port), shown by DescribeQuorum: own ones, and where other voters are
    endpoints: tuple[tuple[str, str, int], ...] = ()
    voter_endpoints: Mapping[int, tuple[str, str, int]] = field(default_factory=dict)


def static_voters(settings: ControllerSettings) -> tuple[int, ...]:
    """While kraft.version is 0. Of a node that has no list and joins a quorum, nobody: the log says who
    votes."""
    return settings.voters or (() if settings.is_dynamic else (settings.node_id,))


def raft_settings(settings: ControllerSettings, directory_id: bytes = NO_DIRECTORY) -> RaftSettings:
    ticks = settings.ticks
    return RaftSettings(
        settings.node_id,
        static_voters(settings),
        ticks.election,
        ticks.fetch,
        ticks.backoff_max,
        observer_ticks=OBSERVER_MS // ticks.ms,
        directory_id=directory_id,
        bootstrap=tuple(bootstrap_id(index) for index in range(len(settings.bootstrap_servers))),
    )


def bootstrap_id(index: int) -> int:
    """What a bootstrap server is called, whose node's id nobody knows. As in Kafka."""
    return -2 - index
