"""What keys mean together: addresses, the split of memory, where data lies. Pure.

Each function reads values and gives a part of the settings; what does not fit becomes a mistake of the key
that is at fault, and the part is then of no use (nobody sees it: mistakes end the start).
"""

from __future__ import annotations

from urllib.parse import quote

from millrace.broker.settings.addresses import (
    WILDCARDS,
    Endpoint,
    parse_endpoints,
    parse_protocols,
    protocol_fault,
    split_host_port,
)
from millrace.broker.settings.connection_limits import parse_hosts
from millrace.broker.settings.log_levels import parse_levels
from millrace.broker.settings.values import Values
from millrace.protocol.dataclass import dataclass
from millrace.protocol.ids import uuid_bytes

MIB = 1 << 20
MEMORY_MIN_BYTES = 128 * MIB
REQUESTS_MIN_BYTES = 16 * MIB
INDEX_BYTES_MAX = 16 * MIB
STATES_PART = 8
STATES_MIN_BYTES = MIB


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """The parts of one number. Each is a bound that its owner keeps; together they are the total."""

    total_bytes: int
    log_cache_bytes: int
    block_cache_bytes: int
    index_cache_bytes: int
    compaction_bytes: int
    requests_bytes: int
    states_bytes: int

    def __str__(self) -> str:
        parts = (
            f"log cache {self.log_cache_bytes // MIB}",
            f"block cache {self.block_cache_bytes // MIB}",
            f"indexes {self.index_cache_bytes // MIB}",
            f"compaction {self.compaction_bytes // MIB}",
            f"requests in flight {self.requests_bytes // MIB}",
            f"states {self.states_bytes // MIB}",
        )
        return f"{self.total_bytes // MIB} MiB: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """`clients` are served by the broker, `controllers` are the quorum's own; `admin` None: turned off."""

    clients: tuple[Endpoint, ...]
    controllers: tuple[Endpoint, ...]
    advertised: tuple[Endpoint, ...]
    admin: tuple[str, int] | None
    reached_controllers: tuple[Endpoint, ...]  # where others reach `controllers`: as advertised, if they are


def split_memory(values: Values, machine_bytes: int) -> MemorySplit:
    """An eighth to clients' states (groups, offsets, producers). Of the rest half to the log cache, a quarter
    each to the block cache (with its indexes and what compaction holds) and to requests; what is fixed stays
    fixed and the rest is shared in that proportion."""
    total_bytes = values["memory.max.bytes"]
    if total_bytes < 0:
        total_bytes = max(MEMORY_MIN_BYTES, machine_bytes // 4)
        values.fill("memory.max.bytes", str(total_bytes))
    elif total_bytes < MEMORY_MIN_BYTES:
        values.mistake("memory.max.bytes", f"is below {MEMORY_MIN_BYTES} (128 MiB)")
    weights = {"s3.wal.cache.size": 2, "s3.block.cache.size": 1, "queued.max.request.bytes": 1}
    fixed = {name: values[name] for name in weights if values[name] >= 0}
    states_bytes = values["states.memory.max.bytes"]
    if states_bytes < 0:
        states_bytes = total_bytes // STATES_PART
        values.fill("states.memory.max.bytes", str(states_bytes))
    elif states_bytes < STATES_MIN_BYTES:
        values.mistake("states.memory.max.bytes", f"is below {STATES_MIN_BYTES} (1 MiB)")
    rest_bytes = total_bytes - states_bytes - sum(fixed.values())
    rest_weight = sum(weight for name, weight in weights.items() if name not in fixed)
    least_bytes = REQUESTS_MIN_BYTES * rest_weight
    if rest_bytes < least_bytes:
        for name in (
            [*fixed, "states.memory.max.bytes"] if states_bytes > total_bytes // STATES_PART else fixed
        ):
            values.mistake(
                name, f"leaves {rest_bytes} of memory.max.bytes={total_bytes}; {least_bytes} are needed"
            )
    part = {
        name: fixed.get(name, max(rest_bytes, 0) * weight // max(rest_weight, 1))
        for name, weight in weights.items()
    }
    if fixed.get("queued.max.request.bytes", REQUESTS_MIN_BYTES) < REQUESTS_MIN_BYTES:
        values.mistake("queued.max.request.bytes", f"is below {REQUESTS_MIN_BYTES} (16 MiB)")
    for name, size_bytes in part.items():
        if values[name] < 0:
            values.fill(name, str(size_bytes))
    index_bytes = min(INDEX_BYTES_MAX, part["s3.block.cache.size"] // 4)
    compaction_bytes = min(
        values["s3.stream.set.object.compaction.cache.size"], part["s3.block.cache.size"] * 3 // 10
    )
    return MemorySplit(
        total_bytes=total_bytes,
        log_cache_bytes=part["s3.wal.cache.size"],
        block_cache_bytes=part["s3.block.cache.size"] - index_bytes - compaction_bytes,
        index_cache_bytes=index_bytes,
        compaction_bytes=compaction_bytes,
        requests_bytes=part["queued.max.request.bytes"],
        states_bytes=max(1, states_bytes),
    )


def read_listeners(values: Values, *, is_broker: bool, is_member: bool) -> ListenerSettings:
    """The endpoints, sorted by whom they serve; every one that is used must speak plain text. `is_member`: a
    controller that others reach."""
    every = _endpoints(values, "listeners")
    advertised = _endpoints(values, "advertised.listeners")
    controller_names = {name.upper(): name for name in values["controller.listener.names"] or ()}
    clients = tuple(endpoint for endpoint in every if endpoint.listener not in controller_names)
    controllers = tuple(endpoint for endpoint in every if endpoint.listener in controller_names)
    if every and not clients and is_broker:
        values.mistake("listeners", "leaves no listener to clients: all are in controller.listener.names")
    if every and not controllers and is_member and is_broker:
        values.mistake("listeners", "names none of controller.listener.names: other members do not reach it")
    for endpoint in clients if not is_broker else ():
        values.mistake(
            "listeners",
            f"holds {endpoint.listener}, which is not in controller.listener.names: a node that is no broker "
            "serves no clients",
        )
    bound_names = [endpoint.listener for endpoint in every]
    for endpoint in advertised:
        if endpoint.listener not in bound_names:
            values.mistake("advertised.listeners", f"names {endpoint.listener}, which is not in listeners")
        if endpoint.host in WILDCARDS:
            values.mistake(
                "advertised.listeners",
                f"tells clients to connect to {str(endpoint)!r}, which is every address",
            )
    _check_protocols(values, bound_names, controller_names)
    admin = values["admin.listener"]
    shown = {endpoint.listener: endpoint for endpoint in advertised}
    return ListenerSettings(
        clients,
        controllers,
        tuple(endpoint for endpoint in advertised if endpoint.listener not in controller_names),
        split_host_port(admin) if admin else None,
        tuple(shown.get(endpoint.listener, endpoint) for endpoint in controllers),
    )


def _endpoints(values: Values, name: str) -> tuple[Endpoint, ...]:
    try:
        return parse_endpoints(values[name] or ())
    except ValueError as error:
        values.mistake(name, f": {error}")
        return ()


def _check_protocols(values: Values, bound_names: list[str], controller_names: dict[str, str]) -> None:
    try:
        protocols = parse_protocols(values["listener.security.protocol.map"])
    except ValueError as error:
        values.mistake("listener.security.protocol.map", str(error))
        return
    is_mapped = values.is_given("listener.security.protocol.map")
    for name in bound_names:
        # As in Kafka: while the map is not given, controller listeners speak plain text.
        fault = None if name in controller_names and not is_mapped else protocol_fault(name, protocols)
        if fault is not None:
            values.mistake("listeners", fault)


def read_node_id(values: Values) -> int:
    old, new = values["broker.id"], values["node.id"]
    if not values.is_given("broker.id") or old < 0:
        values.fill("broker.id", str(new))
        return int(new)
    if values.is_given("node.id") and old != new:
        values.mistake("broker.id", f"differs from node.id={new}")
    values.fill("node.id", str(old))
    return int(old)


def read_cluster_id(values: Values) -> str | None:
    cluster_id = values["cluster.id"] or None
    if cluster_id is not None:
        try:
            uuid_bytes(cluster_id)
        except ValueError:
            values.mistake("cluster.id", "is not 16 bytes in url-safe base64 (22 characters)")
    return cluster_id


def read_metadata_dir(values: Values, data_dir: str) -> str:
    """metadata.log.dir, else the first of log.dirs, else of log.dir, else under the data directory."""
    if not values["log.dirs"] and not values["log.dir"]:
        values.fill("log.dirs", f"{data_dir}/metadata".replace(",", "_"))
        default_dir = f"{data_dir}/metadata"
    else:
        dirs = values["log.dirs"] or values["log.dir"]
        if len(dirs) > 1:
            values.warnings.append(f"of log.dirs only {dirs[0]} is used: it holds the metadata log")
        default_dir = dirs[0]
    return str(values["metadata.log.dir"] or default_dir)


def fill_storage(values: Values, data_dir: str) -> None:
    """Objects and WAL under the data directory where nobody said otherwise."""
    place = quote(data_dir, safe="/")
    values.fill("s3.data.buckets", f"0@file://{place}/objects")
    values.fill("s3.wal.path", f"0@file://{place}/wal")


def read_overrides_per_address(values: Values) -> dict[str, int]:
    try:
        return parse_hosts(values["max.connections.per.ip.overrides"])
    except ValueError as error:
        values.mistake("max.connections.per.ip.overrides", str(error))
        return {}


def read_log_level(values: Values) -> str:
    text = str(values["log.level"])
    try:
        parse_levels(text)
    except ValueError as error:
        values.mistake("log.level", str(error))
    return text
