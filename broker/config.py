"""BrokerSettings: all that a node is told at start, as values, composed of every package's own settings.

`load` makes them of what was given (broker/settings/source.py) by the table (broker/settings/table.py): it
parses each key (broker/settings/values.py), checks keys against one another (broker/settings/checks.py), and
reports all mistakes at once. Nothing reads the environment, arguments or files here; they arrive as texts.
`reference` prints the table: docs/settings.md is its output, and a test keeps it so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from millrace.broker.cluster.config import BalancerSettings
from millrace.broker.coordinators.groups.config import CoordinatorSettings
from millrace.broker.errors import SettingsInvalid
from millrace.broker.network.server import ServerSettings
from millrace.broker.settings.addresses import WILDCARDS
from millrace.broker.settings.checks import (
    ListenerSettings,
    MemorySplit,
    fill_storage,
    read_cluster_id,
    read_listeners,
    read_log_level,
    read_metadata_dir,
    read_node_id,
    read_overrides_per_address,
    split_memory,
)
from millrace.broker.settings.connection_limits import ConnectionLimits
from millrace.broker.settings.dynamic_configs import DYNAMIC
from millrace.broker.settings.key import KIND_NAMES, OBEYED, REFUSED, STORED, Key
from millrace.broker.settings.quorum import (
    CONTROLLER_LISTENER,
    fill_listeners,
    read_balancer,
    read_quorum,
    read_roles,
    read_ticks,
)
from millrace.broker.settings.source import Given
from millrace.broker.settings.table import all_keys
from millrace.broker.settings.values import ShownValue, Values
from millrace.kraft.bucket.settings import BackupSettings
from millrace.kraft.config import ControllerSettings, QuorumSettings
from millrace.protocol.dataclass import dataclass
from millrace.runtime.objectstore.address import OPENERS as STORES
from millrace.runtime.objectstore.address import AddressError, StoreAddress, parse_address
from millrace.s3stream.compaction.config import MEMORY_BYTES_MIN, CompactionSettings
from millrace.s3stream.config import StreamSettings, TrafficSettings
from millrace.wal.config import CAPACITY_BYTES_MIN, parse_bytes
from millrace.wal.kind import WalSettings, WalWords
from millrace.wal.opening import OPENERS as WALS
from millrace.wal.opening import kind_of

UPLOAD_THRESHOLD_BYTES = 500_000_000
# What a controller's listener has of connections, and of memory for requests, of a node that is a broker too.
MEMBERS_PART = 4


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What a topic gets that says nothing itself; the configurations' own defaults are in
    kraft/topic_configs.py."""

    is_auto_created: bool
    is_deletable: bool
    retention_check_interval_ms: int


@dataclass(frozen=True, slots=True)
class FetchSettings:
    response_bytes_max: int
    session_slots: int


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Of classic groups and of the topic that holds their offsets."""

    initial_rebalance_delay_ms: int
    session_timeout_min_ms: int
    session_timeout_max_ms: int
    members_max: int
    offsets_partitions_count: int
    offsets_segment_bytes: int
    offsets_retention_ms: int
    offsets_retention_check_interval_ms: int
    offset_metadata_bytes_max: int

    def of_coordinator(self) -> CoordinatorSettings:
        return CoordinatorSettings(
            initial_rebalance_delay_ms=self.initial_rebalance_delay_ms,
            session_timeout_min_ms=self.session_timeout_min_ms,
            session_timeout_max_ms=self.session_timeout_max_ms,
            members_max=self.members_max,
            offset_metadata_bytes_max=self.offset_metadata_bytes_max,
            offsets_retention_ms=self.offsets_retention_ms,
            offsets_retention_check_interval_ms=self.offsets_retention_check_interval_ms,
        )


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    expiration_ms: int
    expiration_check_interval_ms: int


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """`static_configs` is what was given, as text under Kafka's names; `shown` is every key with its text and
    source."""

    node_id: int
    is_broker: bool
    is_controller: bool
    rack: str | None
    log_level: str
    metadata_dir: str
    request_timeout_ms: int
    listeners: ListenerSettings
    server: ServerSettings  # of clients' listeners
    member_server: ServerSettings  # of a controller's listener
    memory: MemorySplit
    data: StoreAddress
    wal: StoreAddress
    wal_settings: WalSettings  # of the kind that the address names
    is_lost_wal_accepted: bool
    is_damage_skipped: bool  # objects.corruption
    streams: StreamSettings
    compaction: CompactionSettings
    traffic: TrafficSettings
    clock_gap_max_ms: int  # off for longer, the wall clock has to be confirmed
    object_grace_ms: int  # an object pending deletion stays this long
    controller: ControllerSettings
    quorum: QuorumSettings
    backup: BackupSettings
    balancer: BalancerSettings
    topics: TopicDefaults
    fetch: FetchSettings
    groups: GroupSettings
    producers: ProducerSettings
    static_configs: Mapping[str, str]
    shown: Mapping[str, ShownValue]

    @property
    def is_alone(self) -> bool:
        """This process is broker and whole quorum in one, and has no listener by which others join it."""
        return self.quorum.is_alone

    @property
    def serves_both(self) -> bool:
        """This process has listeners of both kinds: for clients, and for members of the quorum."""
        return self.is_broker and self.is_controller and not self.is_alone

    @property
    def member_requests_bytes(self) -> int:
        """Memory of requests that a controller's listener has."""
        return self.memory.requests_bytes // (MEMBERS_PART if self.serves_both else 1)

    @property
    def client_requests_bytes(self) -> int:
        """Of clients' listeners: what is left."""
        return self.memory.requests_bytes - (self.member_requests_bytes if self.serves_both else 0)


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: BrokerSettings
    warnings: tuple[str, ...]


def load(
    given: Mapping[str, Given],
    *,
    data_dir: str,
    machine_bytes: int,
    mistakes: tuple[str, ...] | list[str] = (),
    is_formatted: Callable[[str], bool] = lambda folder: False,
) -> Loaded:
    """The settings, or SettingsInvalid with every mistake, `mistakes` first, and every warning. `data_dir` is
    absolute. `is_formatted`: whether a folder is a metadata log directory whose log names the voters."""
    values = Values(all_keys(), given)
    fill_storage(values, data_dir)
    node_id = read_node_id(values)
    (is_broker, is_controller), metadata_dir = read_roles(values), read_metadata_dir(values, data_dir)
    is_dynamic = is_controller and is_formatted(metadata_dir)
    quorum = read_quorum(
        values, node_id, is_broker=is_broker, is_controller=is_controller, is_formatted=is_dynamic
    )
    is_member = is_controller and not quorum.is_alone
    if is_member:
        fill_listeners(values, quorum, node_id, is_broker=is_broker)
    _check_sessions(values)
    memory = split_memory(values, machine_bytes)
    listeners = read_listeners(values, is_broker=is_broker, is_member=is_member)
    told = _told_endpoints(values, node_id, quorum, listeners)
    cluster_id, log_level = read_cluster_id(values), read_log_level(values)
    server, balancer = _server_settings(values), read_balancer(values)
    data, wal = _address(values, "s3.data.buckets", STORES), _address(values, "s3.wal.path", WALS)
    _warn_of_options(values, "s3.data.buckets", data)
    wal_settings = _wal_settings(values, wal)
    found = [*mistakes, *values.mistakes]
    if found:
        raise SettingsInvalid(found, values.warnings)
    static_configs = values.given_texts()
    settings = BrokerSettings(
        node_id=node_id,
        is_broker=is_broker,
        is_controller=is_controller,
        rack=values["broker.rack"] or None,
        log_level=log_level,
        metadata_dir=metadata_dir,
        request_timeout_ms=values["request.timeout.ms"],
        listeners=listeners,
        server=server,
        member_server=server,
        memory=memory,
        data=data,
        wal=wal,
        wal_settings=wal_settings,
        is_lost_wal_accepted=values["wal.lost.accept"],
        is_damage_skipped=values["objects.corruption"] == "skip",
        streams=_stream_settings(values, memory),
        compaction=_compaction_settings(values, memory),
        traffic=_traffic_settings(values),
        clock_gap_max_ms=values["clock.unconfirmed.gap.max.ms"],
        object_grace_ms=values["s3.object.delete.retention.minutes"] * 60_000,
        controller=_controller_settings(
            values, node_id, quorum, cluster_id, metadata_dir, told, static_configs
        ),
        quorum=quorum,
        backup=BackupSettings(values["s3.metadata.upload.interval.ms"]),
        balancer=balancer,
        topics=_topic_defaults(values),
        fetch=FetchSettings(values["fetch.max.bytes"], values["max.incremental.fetch.session.cache.slots"]),
        groups=_group_settings(values),
        producers=_producer_settings(values),
        static_configs=static_configs,
        shown=values.shown(),
    )
    return Loaded(settings, tuple(values.warnings))


def _check_sessions(values: Values) -> None:
    if values["group.min.session.timeout.ms"] > values["group.max.session.timeout.ms"]:
        values.mistake("group.min.session.timeout.ms", "is above group.max.session.timeout.ms")


def _traffic_settings(values: Values) -> TrafficSettings:
    is_shared = values["s3.network.bandwidth.mode"] == "shared"
    return TrafficSettings(values["s3.network.baseline.bandwidth"], is_shared=is_shared)


def _producer_settings(values: Values) -> ProducerSettings:
    return ProducerSettings(
        values["producer.id.expiration.ms"], values["producer.id.expiration.check.interval.ms"]
    )


def _address(values: Values, name: str, schemes: Collection[str]) -> StoreAddress:
    text = values[name]
    if isinstance(text, tuple):
        text = ",".join(text)
    try:
        address = parse_address(text)
    except AddressError as error:
        values.mistake(name, f": {error.reason}")
        return StoreAddress(0, "mem", "", {})
    if address.scheme not in schemes:
        values.mistake(name, f": the scheme {address.scheme} is none of {', '.join(schemes)}")
        return StoreAddress(0, "mem", "", {})
    return address


def _warn_of_options(values: Values, name: str, address: StoreAddress, more: Collection[str] = ()) -> None:
    """`more` are read beside the store's own."""
    for option in address.unknown_options(more):
        values.warn_of_option(name, option, (*address.store_options, *more))


def _wal_settings(values: Values, address: StoreAddress) -> WalSettings:
    """As the kind reads them that the address names; where it names none, of no use."""
    try:
        kind = kind_of(address)
    except AddressError as error:
        values.mistake("s3.wal.path", f": {error.reason}")
        kind = kind_of(StoreAddress(0, "mem", "", {}))
    options = _with_capacity(values, address)
    words = WalWords(options, values["wal.direct.io"], values["wal.corruption"])
    settings = kind.read_settings(words)
    for mistake in words.mistakes:
        values.mistake("s3.wal.path", mistake)
    _warn_of_options(values, "s3.wal.path", address, ("kind", *words.asked))
    for problem in settings.problems():
        values.mistake("s3.wal.path", f": {problem}")
    return settings


def _with_capacity(values: Values, address: StoreAddress) -> Mapping[str, str]:
    """The address's parameters, with the capacity that a key of its own gives. Two that differ are a
    mistake."""
    if values["s3.wal.capacity"] < 0:
        return address.options
    given, in_path = str(values["s3.wal.capacity"]), address.text("capacity")
    if int(given) < CAPACITY_BYTES_MIN:
        values.mistake("s3.wal.capacity", f"is below {CAPACITY_BYTES_MIN} (256 KiB)")
        return address.options
    try:
        is_other = in_path is not None and parse_bytes(in_path) != int(given)
    except ValueError:
        return address.options  # told as a mistake of the path
    if is_other:
        values.mistake(
            "s3.wal.capacity", f"differs from capacity={in_path} in s3.wal.path: leave one of the two away"
        )
    return {**address.options, "capacity": given}


def _server_settings(values: Values) -> ServerSettings:
    return ServerSettings(
        request_bytes_max=values["socket.request.max.bytes"],
        connections=ConnectionLimits(
            total_max=values["max.connections"],
            per_address_max=values["max.connections.per.ip"],
            per_host=read_overrides_per_address(values),
        ),
        idle_ms=values["connections.max.idle.ms"],
        backlog=values["socket.listen.backlog.size"],
    )


def _stream_settings(values: Values, memory: MemorySplit) -> StreamSettings:
    threshold_bytes = values["s3.wal.upload.threshold"]
    return StreamSettings(
        log_cache_bytes=memory.log_cache_bytes,
        block_cache_bytes=memory.block_cache_bytes,
        index_cache_bytes=memory.index_cache_bytes,
        upload_threshold_bytes=threshold_bytes if threshold_bytes > 0 else UPLOAD_THRESHOLD_BYTES,
        upload_interval_ms=values["s3.wal.upload.interval.ms"],
        stream_object_split_bytes=values["s3.stream.object.split.size"],
        block_bytes=values["s3.object.block.size"],
        object_part_bytes=values["s3.object.part.size"],
        streams_per_upload=values["s3.max.stream.num.per.stream.set.object"],
    )


def _compaction_settings(values: Values, memory: MemorySplit) -> CompactionSettings:
    return CompactionSettings(
        set_interval_ms=values["s3.stream.set.object.compaction.interval.minutes"] * 60_000,
        stream_interval_ms=values["s3.stream.object.compaction.interval.minutes"] * 60_000,
        split_bytes=values["s3.stream.set.object.compaction.stream.split.size"],
        force_split_ms=values["s3.stream.set.object.compaction.force.split.minutes"] * 60_000,
        sources_max=values["s3.stream.set.object.compaction.max.num"],
        streams_per_set_max=values["s3.max.stream.num.per.stream.set.object"],
        stream_objects_per_commit_max=values["s3.max.stream.object.num.per.commit"],
        object_bytes_max=values["s3.stream.object.compaction.max.size.bytes"],
        memory_bytes=max(MEMORY_BYTES_MIN, memory.compaction_bytes),
        part_bytes=values["s3.object.part.size"],
        block_bytes=values["s3.object.block.size"],
    )


def _controller_settings(
    values: Values,
    node_id: int,
    quorum: QuorumSettings,
    cluster_id: str | None,
    metadata_dir: str,
    endpoints: tuple[tuple[str, str, int], ...],
    static_configs: Mapping[str, str],
) -> ControllerSettings:
    return ControllerSettings(
        log_dir=metadata_dir,
        node_id=node_id,
        voters=tuple(sorted(quorum.voters)) or (() if quorum.is_dynamic else (node_id,)),
        is_dynamic=quorum.is_dynamic,
        bootstrap_servers=quorum.bootstrap,
        is_voters_change_accepted=values["controller.quorum.voters.change.accept"],
        ticks=read_ticks(values),
        session_ms=quorum.session_ms,
        cluster_id=cluster_id,
        partitions_default=values["num.partitions"],
        segment_bytes=values["metadata.log.segment.bytes"],
        snapshot_bytes=values["metadata.log.max.record.bytes.between.snapshots"],
        static_configs=static_configs,
        endpoints=endpoints,
        voter_endpoints={
            voter: (CONTROLLER_LISTENER, host, port) for voter, (host, port) in quorum.voters.items()
        },
    )


def _told_endpoints(
    values: Values, node_id: int, quorum: QuorumSettings, listeners: ListenerSettings
) -> tuple[tuple[str, str, int], ...]:
    """What others are told of the controller's listeners. One on every address, that nothing is advertised
    of, is where the list of voters says that this node is: whoever was told of every address would connect
    to itself. So would clients whom another broker tells of this one: theirs have to be advertised, as in
    Kafka; a broker that is alone tells each the address that it came to."""
    advertised = [endpoint.listener for endpoint in listeners.advertised]
    for endpoint in listeners.clients if quorum.session_ms is not None else ():
        if endpoint.host in WILDCARDS and endpoint.listener not in advertised:
            values.mistake(
                "advertised.listeners",
                f"has to name {endpoint.listener}, which listens on every address: other brokers tell "
                "clients where to reach it",
            )
    found = []
    for endpoint in listeners.reached_controllers:
        place = endpoint.host, endpoint.port
        if endpoint.host in WILDCARDS:
            place = quorum.voters.get(node_id, place)
            if quorum.is_dynamic and place[0] in WILDCARDS:
                values.mistake(
                    "advertised.listeners",
                    f"has to name {endpoint.listener}, which listens on every address: other controllers are "
                    "told where to reach it",
                )
        found.append((endpoint.listener, *place))
    return tuple(found)


def _topic_defaults(values: Values) -> TopicDefaults:
    return TopicDefaults(
        is_auto_created=values["auto.create.topics.enable"],
        is_deletable=values["delete.topic.enable"],
        retention_check_interval_ms=values["log.retention.check.interval.ms"],
    )


def _group_settings(values: Values) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=values["group.initial.rebalance.delay.ms"],
        session_timeout_min_ms=values["group.min.session.timeout.ms"],
        session_timeout_max_ms=values["group.max.session.timeout.ms"],
        members_max=values["group.max.size"],
        offsets_partitions_count=values["offsets.topic.num.partitions"],
        offsets_segment_bytes=values["offsets.topic.segment.bytes"],
        offsets_retention_ms=values["offsets.retention.minutes"] * 60_000,
        offsets_retention_check_interval_ms=values["offsets.retention.check.interval.ms"],
        offset_metadata_bytes_max=values["offset.metadata.max.bytes"],
    )


_REFERENCE_HEAD = """# Broker settings

Printed by `millrace settings` from the table the broker itself reads; edit `broker/settings/`, not this
page.

A key comes from, the strongest first: `--override KEY=VALUE`, the environment (`KAFKA_` + the key, where `_`
is `.`, `__` is `_` and `___` is `-`; also `CLUSTER_ID`), the file given with `--config` in server.properties
syntax, the default. Sizes of our own keys may carry KiB, MiB, GiB or TiB.

A setting takes a restart, but for those that AlterConfigs and IncrementalAlterConfigs change while a broker
runs, for it or for all, at once and past restarts; what they say wins over all of the above:
"""
_REFERENCE_DYNAMIC_TAIL = (
    "Of the keys that are stored, those that Kafka changes so are taken and shown so too.\n"
)
_REFERENCE_PARTS = (
    (OBEYED, "Obeyed", "They change what the broker does."),
    (REFUSED, "Refused", "A value other than the default does not start."),
    (STORED, "Stored and shown", "Accepted and shown to clients; without effect here, for the reason given."),
)


def reference() -> str:
    """The page of every key, in Markdown."""
    keys = sorted(all_keys().values(), key=lambda key: key.name)
    dynamic = [f"- `{key.name}`" for key in keys if key.standing == OBEYED and key.name in DYNAMIC]
    lines = [_REFERENCE_HEAD, *dynamic, "", _REFERENCE_DYNAMIC_TAIL]
    for standing, title, text in _REFERENCE_PARTS:
        lines += [
            f"## {title}",
            "",
            text,
            "",
            "| key | type | default | allowed | consequence |",
            "|---|---|---|---|---|",
        ]
        lines += [_reference_row(key) for key in keys if key.standing == standing]
        lines.append("")
    return "\n".join(lines)


def _reference_row(key: Key) -> str:
    default = "none" if key.default is None else f"`{key.default}`" if key.default else "empty"
    cells = (
        f"`{key.name}`",
        KIND_NAMES[key.kind],
        default,
        key.bounds_text().replace("|", "\\|"),
        key.meaning,
    )
    return f"| {' | '.join(cells)} |"
