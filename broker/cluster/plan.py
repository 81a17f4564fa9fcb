"""Plans the nodes of a cluster on this machine: their ports, folders and settings. Pure.

    DIR/cluster.json   what every start of the cluster needs again: its id, the voters, the first port
    DIR/bucket         the objects, unless s3.data.buckets is given
    DIR/nodeN          a node's log directory and write-ahead log, and what it logs

A node's log is fenced by claims, where the folder takes direct I/O: a process that stands still keeps a lock,
and its partitions would wait.

Clients are served on PORT and the ports after it, controllers a hundred higher, the admin listeners two
hundred higher. The first three nodes are voters, or five where there are as many; the others are brokers
alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from millrace.protocol.dataclass import dataclass
from millrace.runtime.objectstore.address import AddressError, parse_address

HOST: Final = "127.0.0.1"
NODES_MIN, NODES_MAX = 3, 32
MANY_VOTERS: Final = 5
CONTROLLERS, ADMIN = 100, 200  # above the port of a node's clients
MEMORY_MIN_BYTES: Final = 128 << 20
MEMORY_PART: Final = 4  # of the machine's, for all nodes together
WAL_PATH: Final = "s3.wal.path"
WAL_CAPACITY: Final = "256MiB"
FENCINGS: Final = ("claim", "lock")  # of logs in the nodes' folders
OF_THE_PLAN: Final = (
    "node.id", "broker.id", "process.roles", "cluster.id", "controller.quorum.voters", "listeners",
    "advertised.listeners", "controller.listener.names", "admin.listener", "log.dirs", "metadata.log.dir",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What is kept of a cluster."""

    cluster_id: str
    voter_count: int
    port: int

    def encode(self) -> str:
        values = {"cluster_id": self.cluster_id, "voters": self.voter_count, "port": self.port}
        return json.dumps(values, indent=1) + "\n"


def decode_cluster(text: str) -> ClusterFile:
    """Raises ValueError."""
    try:
        values = json.loads(text)
        found = ClusterFile(str(values["cluster_id"]), int(values["voters"]), int(values["port"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"it lacks {error}") from None
    if not 0 < found.voter_count <= NODES_MAX:
        raise ValueError(f"it names {found.voter_count} voters")
    return found


def new_cluster(cluster_id: str, node_count: int, port: int) -> ClusterFile:
    return ClusterFile(cluster_id, MANY_VOTERS if node_count >= MANY_VOTERS else NODES_MIN, port)


@dataclass(frozen=True, slots=True)
class NodePlan:
    node_id: int
    roles: str
    clients: tuple[str, int]
    admin: tuple[str, int]
    folder: str
    settings: Mapping[str, str]


def plan_nodes(
    cluster: ClusterFile,
    node_count: int,
    data_dir: str,
    machine_bytes: int,
    given: Mapping[str, str],
    fencing: str,
) -> list[NodePlan]:
    """`given`: settings for all nodes, over those of the plan that are not its own. `fencing`: one of
    FENCINGS. Raises ValueError with a sentence."""
    for key in OF_THE_PLAN:
        if key in given:
            raise ValueError(f"{key} follows from the plan of the cluster: it cannot be given")
    wal_path = given.get(WAL_PATH)
    if wal_path is not None and not is_log_of_objects(wal_path):
        raise ValueError(f"{WAL_PATH}={wal_path} is one log: nodes share a place for logs of objects alone")
    if node_count < cluster.voter_count:
        raise ValueError(f"the cluster has {cluster.voter_count} voters: start as many nodes at least")
    if cluster.port < 1:
        raise ValueError(f"port {cluster.port} is none that others follow from: say one from 1 on")
    if cluster.port + ADMIN + node_count > 1 << 16:
        raise ValueError(f"port {cluster.port} leaves no room for the ports above it")
    voter_ids = range(1, cluster.voter_count + 1)
    voters = ",".join(f"{one}@{HOST}:{_controller_port(cluster, one)}" for one in voter_ids)
    memory_bytes = max(MEMORY_MIN_BYTES, machine_bytes // MEMORY_PART // node_count)
    found = []
    for node_id in range(1, node_count + 1):
        is_voter = node_id in voter_ids
        port = cluster.port + node_id - 1
        listeners = [f"PLAINTEXT://{HOST}:{port}"]
        if is_voter:
            listeners.append(f"CONTROLLER://{HOST}:{_controller_port(cluster, node_id)}")
        folder = f"{data_dir}/node{node_id}"
        settings = {
            "node.id": str(node_id),
            "process.roles": "broker,controller" if is_voter else "broker",
            "cluster.id": cluster.cluster_id,
            "controller.quorum.voters": voters,
            "listeners": ",".join(listeners),
            "admin.listener": f"{HOST}:{port + ADMIN}",
            "s3.data.buckets": f"0@file://{data_dir}/bucket",
            **({} if wal_path else _log_in(folder, fencing)),
            "memory.max.bytes": str(memory_bytes),
            **given,
        }
        found.append(
            NodePlan(node_id, settings["process.roles"], (HOST, port), (HOST, port + ADMIN), folder, settings)
        )
    return found


def _log_in(folder: str, fencing: str) -> dict[str, str]:
    """In its usual place, so that a cluster of before keeps its logs."""
    return {
        WAL_PATH: f"0@file://{quote(folder, safe='/')}/wal?fencing={fencing}",
        "s3.wal.capacity": WAL_CAPACITY,
    }


def is_log_of_objects(text: str) -> bool:
    """Whether nodes can have their logs at one address. Raises ValueError for what is none."""
    try:
        address = parse_address(text)
    except AddressError as error:
        raise ValueError(f"{WAL_PATH}: {error.reason}") from None
    return address.scheme == "s3" or address.options.get("kind") == "object"


def _controller_port(cluster: ClusterFile, node_id: int) -> int:
    return cluster.port + CONTROLLERS + node_id - 1
