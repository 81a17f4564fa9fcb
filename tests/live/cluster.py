"""Several real processes of one cluster on loopback, each with a folder and a port of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.live import LiveBroker, free_port
from tests.live.network import Network
from tests.patience import until

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
FIRST_BROKER = 101


class LiveControllers:
    """`with LiveControllers(folder, 3) as quorum`: nodes 1 to 3, all of them ready."""

    def __init__(self, folder: Path, count: int, overrides: dict[str, str] | None = None) -> None:
        self.bucket = folder / "bucket"
        self.ports = {node_id: free_port() for node_id in range(1, count + 1)}
        self.voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in self.ports.items())
        self._overrides = overrides or {}
        self.nodes = {
            node_id: LiveBroker(folder / f"controller{node_id}", self.settings_of(node_id))
            for node_id in self.ports
        }

    def settings_of(self, node_id: int) -> dict[str, str]:
        return {
            "process.roles": "controller",
            "node.id": str(node_id),
            "cluster.id": CLUSTER,
            "controller.quorum.voters": self.voters,
            "listeners": f"CONTROLLER://127.0.0.1:{self.ports[node_id]}",
            "s3.data.buckets": f"0@file://{self.bucket}",
            **self._overrides,
        }

    def start(self, node_ids: Iterable[int] = ()) -> LiveControllers:
        started = [self.nodes[node_id] for node_id in node_ids or self.nodes]
        for node in started:
            node.begin()
        for node in started:
            node.wait_ready()
        return self

    def running(self) -> list[int]:
        return [node_id for node_id, node in self.nodes.items() if node.is_running()]

    def leader(self, is_other_than: int = -1) -> int:
        """Who takes commands, once all that run say the same."""
        found = -1

        def is_agreed() -> bool:
            nonlocal found
            pages = {node_id: self.nodes[node_id].metrics() for node_id in self.running()}
            leaders = {int(page["millrace_quorum_leader"]) for page in pages.values()}
            active = [one for one, page in pages.items() if page["millrace_metadata_active_controllers"]]
            if len(leaders) != 1 or active != list(leaders) or is_other_than in leaders:
                return False
            found = active[0]
            return True

        until(is_agreed, "no controller leads")
        return found

    def wait_equal(self, node_ids: Iterable[int]) -> int:
        """Returns when these have applied equally much, and all that the leader wrote: the offset."""
        nodes = [self.nodes[node_id] for node_id in node_ids]
        until(lambda: len({offset_of(node) for node in nodes}) == 1, "they do not agree")
        return offset_of(nodes[0])

    def __enter__(self) -> LiveControllers:
        try:
            return self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.kill()


class LiveNodes:
    """Brokers over one bucket, by node id; started all at once, and ready on entry."""

    def __init__(self) -> None:
        self.brokers: dict[int, LiveBroker] = {}

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]

    def begin(self) -> None:
        for broker in self.brokers.values():
            broker.begin()
        for broker in self.brokers.values():
            broker.wait_ready()

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers.values():
            broker.kill()


class LiveCombined(LiveNodes):
    """Nodes `first` and up, each broker and controller in one; on loopback, or in a network's namespaces."""

    def __init__(
        self,
        folder: Path,
        count: int,
        overrides: dict[str, str] | None = None,
        network: Network | None = None,
        first: int = 1,
    ) -> None:
        super().__init__()
        ports = {node_id: free_port() for node_id in range(first, first + count)}
        hosts = {node_id: network.address(node_id) if network else "127.0.0.1" for node_id in ports}
        voters = ",".join(f"{node_id}@{hosts[node_id]}:{port}" for node_id, port in ports.items())
        for node_id, port in ports.items():
            clients, host = free_port(), hosts[node_id]
            settings = {
                "node.id": str(node_id),
                "cluster.id": CLUSTER,
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{host}:{clients},CONTROLLER://{host}:{port}",
                "s3.data.buckets": f"0@file://{folder}/bucket",
                **(overrides or {}),
            }
            within = network.within(node_id) if network else ()
            node = LiveBroker(folder / f"node{node_id}", settings, wal="64MiB", host=host, within=within)
            node.port, node.address = clients, f"{host}:{clients}"
            self.brokers[node_id] = node

    def leader(self) -> int:
        """The active controller, once all that run say the same."""
        found: set[int] = set()

        def is_agreed() -> bool:
            pages = [node.metrics() for node in self.brokers.values() if node.is_running()]
            found.clear()
            found.update(int(page["millrace_quorum_leader"]) for page in pages)
            return len(found) == 1 and found != {-1}

        until(is_agreed, "no controller leads")
        return found.pop()


class LiveCluster(LiveNodes):
    """Controllers and brokers apart. Brokers are nodes 101 and up, each with a WAL of its own.
    `with LiveCluster(folder, controllers=3, brokers=3) as cluster`: all of them ready."""

    def __init__(
        self,
        folder: Path,
        controllers: int,
        brokers: int,
        overrides: dict[str, str] | None = None,
        wal: str = "64MiB",
        first: int = FIRST_BROKER,
    ) -> None:
        """`wal`: the capacity of a broker's log in a file, and further parameters of its address. `first`:
        the first broker's id."""
        super().__init__()
        self.quorum = LiveControllers(folder, controllers, overrides)
        self._overrides = overrides or {}
        self.brokers = {
            node_id: LiveBroker(folder / f"broker{node_id}", self.settings_of(node_id), wal=wal)
            for node_id in range(first, first + brokers)
        }

    def settings_of(self, node_id: int) -> dict[str, str]:
        """Of a broker."""
        return {
            "process.roles": "broker",
            "node.id": str(node_id),
            "cluster.id": CLUSTER,
            "controller.quorum.voters": self.quorum.voters,
            "s3.data.buckets": f"0@file://{self.quorum.bucket}",
            **self._overrides,
        }

    def begin(self) -> None:
        self.quorum.start()
        super().begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.quorum.__exit__(kind, error, trace)


def offset_of(node: LiveBroker) -> int:
    return int(node.metrics()["millrace_metadata_applied_offset"])


def logged(node: LiveBroker, pattern: str) -> bool:
    return re.search(pattern, node.log_path.read_text()) is not None
