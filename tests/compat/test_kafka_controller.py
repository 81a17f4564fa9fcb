"""A controller of Apache Kafka as a voter of our quorum: what it makes of our requests, records and snapshots
is somebody else's judgement of them.

At millrace.version 0: a Kafka controller ends at a level of a feature that it does not know
(docs/decisions/2026-11-26-members-speak-kafkas-requests.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.kraft import controller
from millrace.kraft.log.log_store import FOLDER
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.transport import QuorumTransport
from millrace.kraft.raft.roles import Leader
from millrace.kraft.tables.features import METADATA_VERSION, bootstrap_records
from millrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from millrace.runtime.bundle import Runtime, real_runtime
from millrace.runtime.rand import Rand
from tests.compat.jvm import java_command
from tests.compat.kafka_controller import KafkaController
from tests.kraft.build import Broker, create_topic
from tests.kraft.peers.listener import MemberConnection
from tests.kraft.peers.members import CLUSTER, SETTINGS
from tests.live import free_port
from tests.patience import PATIENCE_S, eventually, until

KAFKA = 3
VOTERS = (1, 2, KAFKA)


class Ours:
    """Members of ours on real sockets and files, of which each can be stopped and started again."""

    def __init__(self, folder: Path, ports: dict[int, int]) -> None:
        self.folder = folder
        self.asked_of_us: list[object] = []
        self._ports = ports
        self._runtime: Runtime = real_runtime()
        self._running: dict[int, contextlib.AsyncExitStack] = {}
        self.nodes: dict[int, ControllerNode] = {}

    async def start(self, node_id: int) -> None:
        runtime = self._runtime
        endpoints = {one: ("127.0.0.1", port) for one, port in self._ports.items()}
        transport = QuorumTransport(runtime.net, endpoints)
        settings = replace(
            SETTINGS,
            log_dir=str(self.folder / f"node{node_id}"),
            node_id=node_id,
            voters=VOTERS,
            cluster_id=CLUSTER,
        )
        node = await ControllerNode.open(
            runtime.disk,
            runtime.clock,
            Rand.from_system(),
            settings,
            send=transport.send,
            snapshots=transport,
        )
        transport.start(node)

        async def answer(request: object) -> object:
            self.asked_of_us.append(request)
            return await transport.answer(request)

        port = self._ports[node_id]
        connections: list[MemberConnection] = []

        def connected() -> MemberConnection:
            connections.append(MemberConnection(answer))
            return connections[-1]

        listener = await runtime.net.listen(connected, "127.0.0.1", port)
        await node.start()
        stack = contextlib.AsyncExitStack()
        stack.push_async_callback(node.close)
        stack.push_async_callback(transport.close)
        stack.callback(lambda: [one.transport.abort() for one in connections])
        stack.callback(listener.close)
        self._running[node_id], self.nodes[node_id] = stack, node

    async def stop(self, node_id: int) -> None:
        del self.nodes[node_id]
        await self._running.pop(node_id).aclose()

    async def leader(self) -> ControllerNode:
        await eventually(lambda: any(node.driver.leading_epoch >= 0 for node in self.nodes.values()))
        return next(node for node in self.nodes.values() if node.driver.leading_epoch >= 0)


@contextlib.asynccontextmanager
async def ours(folder: Path, ports: dict[int, int]) -> AsyncIterator[Ours]:
    found = Ours(folder, ports)
    try:
        for node_id in VOTERS[:2]:
            await found.start(node_id)
        yield found
    finally:
        for node_id in tuple(found.nodes):
            await found.stop(node_id)


def segments(folder: Path, start: int) -> bytes:
    """The log's bytes from the segment that begins at `start` on."""
    files = sorted(folder.glob("*.log"))
    return b"".join(one.read_bytes() for one in files if int(one.stem) >= start)


def fetched_to(leader: ControllerNode, node_id: int) -> int:
    role = leader.driver.raft.role
    return role.voters[node_id].end if isinstance(role, Leader) else -1


def only_checkpoint(folder: Path) -> Path:
    (checkpoint,) = folder.glob("*.checkpoint")
    return checkpoint


def topics_by_the_shell(checkpoint: Path) -> list[str]:
    """Of the names that this test gives. None where the shell ran its command before its image was made."""
    words = ("--snapshot", str(checkpoint), "ls", "/image/topics/byName")
    command = java_command("org.apache.kafka.shell.MetadataShell", *words)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
    )
    return re.findall(r"(?:early|late)-\d", done.stdout)


def test_a_kafka_controller_votes_fetches_and_holds_our_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads our snapshot, its fetches make a majority with one of us alone, its vote makes another of us
    the leader, its log has our bytes, and its shell reads our topics."""
    plain = [one for one in bootstrap_records() if one.name == METADATA_VERSION]
    monkeypatch.setattr(controller, "bootstrap_records", lambda: plain)
    ports = {node_id: free_port() for node_id in VOTERS}
    kafka = KafkaController.of_list(tmp_path / "kafka", CLUSTER, KAFKA, ports)
    theirs = kafka.log_dir / FOLDER

    async def main() -> None:
        async with ours(tmp_path, ports) as members:
            first = await members.leader()
            await Broker.register(first)
            for number in range(2):
                await create_topic(first, f"early-{number}", 3)
                await first.snapshot()
            assert first.log.start > 0  # who has nothing needs the snapshot
            with kafka:
                await eventually(lambda: fetched_to(first, KAFKA) == first.driver.raft.log.end)
                assert any(isinstance(one, FetchSnapshotRequest) for one in members.asked_of_us)
                other = 3 - first.settings.node_id
                await members.stop(other)
                for number in range(3):
                    await create_topic(first, f"late-{number}", 3)  # committed by Kafka and one of us
                await members.start(other)
                await eventually(lambda: fetched_to(first, other) == first.driver.raft.log.end)
                kafka.kill()  # who follows a leader, and never gives it up, votes for nobody
                await members.stop(first.settings.node_id)
                kafka.start()
                second = await members.leader()  # by Kafka's vote
                await create_topic(second, "last")
                await eventually(lambda: fetched_to(second, KAFKA) == second.driver.raft.log.end)
                assert kafka.is_running(), kafka.output.read_text()[-4000:]
                checkpoint = only_checkpoint(theirs)
                start = int(checkpoint.name.partition("-")[0])
                kafkas = segments(theirs, start)
                mine = segments(tmp_path / f"node{second.settings.node_id}" / FOLDER, 0)
                assert kafkas.rstrip(b"\0")
                assert mine.endswith(kafkas)

    asyncio.run(main())
    until(lambda: topics_by_the_shell(only_checkpoint(theirs)) == ["early-0", "early-1"])
