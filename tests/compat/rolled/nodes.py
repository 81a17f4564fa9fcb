"""Three nodes of Millrace, and three of Apache Kafka, with the same two verbs: topics are made, a node is
restarted in order.

A restart is what an operator does: SIGTERM, the node's own end, its start, and a look that the cluster is
whole before the next. Kafka is whole once every partition's replicas are in sync; ours once the node says
that it is ready.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.metadata import MetadataRequest
from tests.compat.jvm import java_command
from tests.cpu import cpu_seconds
from tests.live import free_port
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.patience import PATIENCE_S, until

COUNT = 3
OF_BOTH = dict.fromkeys(range(1, COUNT + 1), "broker,controller")


class Nodes(Protocol):
    name: str

    @property
    def addresses(self) -> Sequence[str]: ...

    def create(self, topic: str, partitions: int) -> None: ...

    def roll(self, node_id: int) -> None:
        """Ends node 1, 2 or 3 by SIGTERM and starts it; returns when the cluster is whole."""


class MillraceNodes:
    """`with MillraceNodes(folder) as nodes`: as they come, on a bucket in the folder."""

    name = "Millrace"

    def __init__(self, folder: Path, overrides: dict[str, str] | None = None) -> None:
        self.cluster = LiveCombined(folder, COUNT, overrides)

    @property
    def addresses(self) -> Sequence[str]:
        return self.cluster.addresses

    def create(self, topic: str, partitions: int) -> None:
        with Client(self.addresses[0]) as client:
            client.create(topic, partitions)

    def roll(self, node_id: int) -> None:
        node = self.cluster.brokers[node_id]
        assert node.stop() == 0, node.log_path.read_text()[-4000:]
        node.start()

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.__exit__(kind, error, trace)


class KafkaNodes:
    """`with KafkaNodes(folder) as nodes`: nodes 1 to 3, broker and controller each, three replicas of which
    two have to be in sync, and otherwise as they come. `roles`: of other nodes than these; `replicas`: of
    each partition."""

    name = "Apache Kafka"

    def __init__(self, folder: Path, roles: Mapping[int, str] = OF_BOTH, replicas: int = COUNT) -> None:
        self._folder = folder
        self._roles = roles
        self._replicas = replicas
        self._ports = {node_id: (free_port(), free_port()) for node_id in roles}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> Sequence[str]:
        return list(self.by_id.values())

    @property
    def by_id(self) -> dict[int, str]:
        """Of those that are brokers."""
        brokers = [node_id for node_id, roles in self._roles.items() if "broker" in roles]
        return {node_id: f"127.0.0.1:{self._ports[node_id][0]}" for node_id in brokers}

    def pid(self, node_id: int) -> int:
        return self._processes[node_id].pid

    def _settings(self, node_id: int) -> dict[str, object]:
        roles, (clients, controller) = self._roles[node_id], self._ports[node_id]
        voters = [
            f"{one}@127.0.0.1:{self._ports[one][1]}"
            for one, has in self._roles.items()
            if "controller" in has
        ]
        listeners = {
            "broker": f"PLAINTEXT://127.0.0.1:{clients}",
            "controller": f"CONTROLLER://127.0.0.1:{controller}",
        }
        return {
            "process.roles": roles,
            "node.id": node_id,
            "controller.quorum.voters": ",".join(voters),
            "listeners": ",".join(listeners[role] for role in roles.split(",")),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self._folder / f"kafka{node_id}",
            "default.replication.factor": self._replicas,
            "min.insync.replicas": min(2, self._replicas),
            "offsets.topic.replication.factor": self._replicas,
            "transaction.state.log.replication.factor": self._replicas,
            "group.initial.rebalance.delay.ms": 0,
        }

    def __enter__(self) -> Self:
        tool = java_command("kafka.tools.StorageTool")
        made = subprocess.run([*tool, "random-uuid"], capture_output=True, text=True, check=True)
        try:
            for node_id in self._ports:
                settings = self._path(node_id)
                lines = [f"{key}={value}\n" for key, value in self._settings(node_id).items()]
                settings.write_text("".join(lines))
                words = ["format", "-t", made.stdout.strip(), "-c", str(settings)]
                subprocess.run([*tool, *words], capture_output=True, check=True)
                self.begin(node_id)
            until(self.is_whole, "Kafka's nodes do not come up", pause_s=0.2)
        except BaseException:
            self._kill()
            raise
        return self

    def _path(self, node_id: int) -> Path:
        return self._folder / f"kafka{node_id}.properties"

    def cpu_seconds(self) -> float:
        """Of all nodes that run, since each began."""
        return sum(cpu_seconds(one.pid) for one in self._processes.values() if one.poll() is None)

    def memory_bytes(self) -> list[int]:
        """Resident, of each node."""
        pages = [Path(f"/proc/{one.pid}/statm").read_text().split()[1] for one in self._processes.values()]
        return [int(count) * os.sysconf("SC_PAGE_SIZE") for count in pages]

    def begin(self, node_id: int) -> None:
        with (self._folder / f"kafka{node_id}.log").open("ab") as log:
            command = java_command("kafka.Kafka", str(self._path(node_id)))
            self._processes[node_id] = subprocess.Popen(command, stdout=log, stderr=log)

    def create(self, topic: str, partitions: int) -> None:
        with Client(self.addresses[0]) as client:
            made = CreatableTopic(topic, partitions, self._replicas)
            answer = client.ask("CreateTopics", CreateTopicsRequest([made], int(PATIENCE_S * 1000)))
        assert answer.topics[0].error_code == 0, answer

    def is_whole(self) -> bool:
        """Every node answers, knows all of them, and of no partition without a replica in sync."""
        try:
            for address in self.addresses:
                with Client(address) as client:
                    answer = client.ask("Metadata", MetadataRequest(topics=None), 12)
                parts = [one for topic in answer.topics for one in topic.partitions]
                if len(answer.brokers) < len(self.by_id):
                    return False
                if any(len(one.isr_nodes) < self._replicas for one in parts):
                    return False
        except OSError:
            return False
        return True

    def stop(self, node_id: int) -> None:
        self._processes[node_id].terminate()
        self._processes[node_id].wait(PATIENCE_S)

    def kill(self, node_id: int) -> None:
        self._processes[node_id].kill()
        self._processes[node_id].wait()

    def roll(self, node_id: int) -> None:
        self.stop(node_id)
        self.begin(node_id)
        until(self.is_whole, f"Kafka's node {node_id} does not come back", pause_s=0.2)

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()


def settle(seconds: float) -> None:
    """Applications work on for a while, so that what one restart did is not taken for the next one's."""
    time.sleep(seconds)
