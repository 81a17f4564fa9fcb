"""Our controller in a quorum of Apache Kafka's at kraft.version 1 (KIP-853): as observer, and as a voter.

Metadata that Kafka's own nodes write and that means nothing here (which controllers there are, where a
metadata transaction begins) is stepped over for it: an image that we lead from has none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.kraft.image import delta
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.log.formatted_log import write_formatted_log
from millrace.kraft.log.log_store import FOLDER
from millrace.kraft.log.meta_properties import MetaProperties
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.transport import QuorumTransport
from millrace.kraft.raft.voters import DYNAMIC, Endpoint
from millrace.protocol import metadata_records as kafka_records
from millrace.protocol.ids import uuid_text
from millrace.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from millrace.protocol.messages.vote import VoteRequest
from millrace.runtime.bundle import real_runtime
from millrace.runtime.rand import Rand
from tests.compat.kafka_controller import KafkaController
from tests.compat.test_kafka_controller import segments
from tests.compat.test_tools_voters import QUORUM, tool
from tests.kraft.peers.listener import MemberConnection
from tests.kraft.peers.members import CLUSTER, SETTINGS
from tests.live import free_port
from tests.patience import eventually

KAFKA, OURS = 1, 2
DIRECTORY = b"millrace-2-voter"
NEVER = 1 << 40  # ticks
STEPPED_OVER = (
    kafka_records.RegisterControllerRecord,
    kafka_records.UnregisterControllerRecord,
    kafka_records.BeginTransactionRecord,
    kafka_records.EndTransactionRecord,
)
# Kafka stands again soon.
USUAL = {"controller.quorum.election.timeout.ms": "1000", "controller.quorum.fetch.timeout.ms": "2000"}


class OurMember:
    """On a real socket and real files; each `running` is another process as far as its peers see."""

    def __init__(self, folder: Path, kafka_port: int) -> None:
        self.log_dir = folder / "ours"
        self.asked_of_us: list[Any] = []
        self._kafka_port = kafka_port
        self._runtime = real_runtime()

    async def format(self) -> None:
        meta = MetaProperties(CLUSTER, OURS, uuid_text(DIRECTORY))
        await write_formatted_log(self._runtime.disk, str(self.log_dir), meta, None, 0)

    @contextlib.asynccontextmanager
    async def running(self, port: int) -> AsyncIterator[ControllerNode]:
        runtime = self._runtime
        transport = QuorumTransport(runtime.net, {})
        settings = replace(
            SETTINGS,
            log_dir=str(self.log_dir),
            node_id=OURS,
            voters=(),
            cluster_id=CLUSTER,
            is_dynamic=True,
            bootstrap_servers=(("127.0.0.1", self._kafka_port),),
            endpoints=(Endpoint("CONTROLLER", "127.0.0.1", port),),
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
        node.driver.raft._stands_from = NEVER  # Kafka cannot apply what it would write as a leader
        connections: list[MemberConnection] = []

        async def answer(request: Any) -> Any:
            self.asked_of_us.append(request)
            return await transport.answer(request)

        def connected() -> MemberConnection:
            connections.append(MemberConnection(answer))
            return connections[-1]

        listener = await runtime.net.listen(connected, "127.0.0.1", port)
        await node.start()
        try:
            yield node
        finally:
            listener.close()
            for one in connections:
                one.transport.abort()
            await transport.close()
            await node.close()

    def properties(self, port: int, path: Path) -> str:
        """Its settings as Kafka's tool reads them."""
        listener = f"CONTROLLER://127.0.0.1:{port}"
        lines = {
            "process.roles": "controller",
            "node.id": OURS,
            "log.dirs": self.log_dir,
            "listeners": listener,
            "advertised.listeners": listener,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._kafka_port}",
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return str(path)


def test_our_controller_follows_a_quorum_of_kafkas_and_votes_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the leader by a bootstrap server and has its log, byte for byte; Kafka's tool adds it, Kafka's
    next election needs its vote, it says that it has moved, and it is removed."""
    for record in STEPPED_OVER:
        monkeypatch.setitem(delta.FOLDS, record, MetadataDelta._nothing)
    kafka_port = free_port()
    quorum = {"controller.quorum.bootstrap.servers": f"127.0.0.1:{kafka_port}", **USUAL}
    words = ("--standalone",)
    kafka = KafkaController(tmp_path / "kafka", CLUSTER, KAFKA, kafka_port, quorum, words)
    ours = OurMember(tmp_path, kafka_port)
    asked = QUORUM, "--bootstrap-controller", f"127.0.0.1:{kafka_port}"

    def is_equal() -> bool:
        theirs = segments(kafka.log_dir / FOLDER, 0)
        return bool(theirs) and theirs == segments(ours.log_dir / FOLDER, 0)

    async def main() -> None:
        await ours.format()
        port = free_port()
        async with ours.running(port) as node:
            raft = node.driver.raft
            await eventually(lambda: raft.leader == KAFKA and raft.high_watermark > 0)
            await eventually(is_equal)
            assert (raft.voters, raft.is_voter) == ((KAFKA,), False)
            assert raft.voter_set.kraft_version == DYNAMIC
            own = ours.properties(port, tmp_path / "ours.properties")
            said = await asyncio.to_thread(tool, *asked, "--command-config", own, "add-controller")
            assert f"Added controller {OURS} with directory id {uuid_text(DIRECTORY)}" in said
            await eventually(lambda: raft.is_voter)
            epoch = raft.epoch
            kafka.kill()
            kafka.start()  # of two voters it needs both
            await eventually(lambda: raft.leader == KAFKA and raft.epoch > epoch)
            assert any(isinstance(one, VoteRequest) for one in ours.asked_of_us)
            assert any(isinstance(one, BeginQuorumEpochRequest) for one in ours.asked_of_us)
            await eventually(is_equal)
        moved = free_port()
        async with ours.running(moved) as node:
            raft = node.driver.raft

            def listens_at() -> tuple[Endpoint, ...]:
                voter = raft.voter_set.get(OURS)
                return () if voter is None else voter.endpoints

            await eventually(lambda: listens_at() == (Endpoint("CONTROLLER", "127.0.0.1", moved),))
            gone = "remove-controller", "--controller-id", str(OURS), "--controller-directory-id"
            await asyncio.to_thread(tool, *asked, *gone, uuid_text(DIRECTORY))
            await eventually(lambda: raft.voters == (KAFKA,))
            await eventually(is_equal)
            assert kafka.is_running()

    with kafka:
        asyncio.run(main())
