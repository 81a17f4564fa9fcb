"""Kafka's own tools read our metadata log. Skipped, saying so, where Java or Kafka's jars are not at hand."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from millrace.kraft.log.formatted_log import write_formatted_log
from millrace.kraft.log.log_store import FOLDER
from millrace.kraft.log.meta_properties import MetaProperties
from millrace.kraft.raft.voters import DYNAMIC, Endpoint, Voter, VotersChange, VoterSet
from millrace.protocol.ids import uuid_text
from millrace.runtime.disk.posix import PosixDisk
from tests.kraft.build import Broker, open_node, run
from tests.patience import PATIENCE_S

LIBS = Path(__file__).parent.parent / "compat" / "java" / "libs"
pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not list(LIBS.glob("kafka-shell-*.jar")),
    reason="Java or Kafka's jars are not at hand (make jars)",
)


def java(tmp_path: Path, *words: str) -> str:
    quiet = tmp_path / "log4j2.yaml"
    quiet.write_text("Configuration:\n  status: error\n  Loggers:\n    Root:\n      level: OFF\n")
    command = ["java", "-Xmx200m", f"-Dlog4j2.configurationFile={quiet}", "-cp", f"{LIBS}/*", *words]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout


def made_log(tmp_path: Path) -> tuple[Path, Path]:
    """A segment and a checkpoint with records of ours between Kafka's and at the end."""

    async def main() -> None:
        node = await open_node(PosixDisk(), log_dir=str(tmp_path / "log"))
        broker = await Broker.register(node)
        topic_id = await broker.create("seen", 2, **{"retention.ms": "5000"})
        (stream,) = (await broker.open(topic_id, 0, (1,))).streams
        first = await broker.prepare(2)
        assert await broker.commit(first, [(stream.stream_id, 0, 10)]) == 0
        await node.snapshot()
        await broker.open(topic_id, 1)
        await node.close()

    run(main())
    folder = tmp_path / "log" / FOLDER
    (checkpoint,) = folder.glob("*.checkpoint")
    return folder / "00000000000000000000.log", checkpoint


def test_dump_log_decodes_every_record(tmp_path: Path) -> None:
    """Each batch is valid, Kafka's records are shown in full and ours as NoOps, in a segment and in a
    checkpoint."""
    files = ",".join(map(str, made_log(tmp_path)))
    printed = java(
        tmp_path, "org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", files
    )
    assert "isvalid: false" not in printed
    assert "Error" not in printed
    for part in printed.split("Dumping ")[1:]:
        records = [
            json.loads(line.split("payload: ")[1]) for line in part.splitlines() if "payload: " in line
        ]
        kinds = [record["type"] for record in records]
        for kind in (
            "FEATURE_LEVEL_RECORD",
            "REGISTER_BROKER_RECORD",
            "TOPIC_RECORD",
            "CONFIG_RECORD",
            "NO_OP_RECORD",
        ):
            assert kind in kinds
        assert kinds.count("PARTITION_RECORD") == 2


def test_dump_log_decodes_voters(tmp_path: Path) -> None:
    """What a directory is formatted with, what an epoch brings of it into the log, and a later change."""
    folder = tmp_path / "log"
    first = Voter(1, bytes([1]) * 16, (Endpoint("CONTROLLER", "127.0.0.1", 9093),), (0, 1))

    async def main() -> None:
        meta = MetaProperties("AAAAAAAAAAAAAAAAAAAAAQ", 1, uuid_text(first.directory_id))
        voters = VoterSet((first,), DYNAMIC)
        await write_formatted_log(PosixDisk(), str(folder), meta, voters, 1_000)
        node = await open_node(PosixDisk(), log_dir=str(folder), is_dynamic=True)
        added = voters.with_voter(Voter(2, bytes([2]) * 16, first.endpoints, (0, 1)))
        node.driver.change_voters(VotersChange(voters=added.voters))
        await node.close()

    run(main())
    log = folder / FOLDER
    files = f"{log}/00000000000000000000.log,{log}/00000000000000000000-0000000000.checkpoint"
    words = ("org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", files)
    printed = java(tmp_path, *words)
    assert "isvalid: false" not in printed
    assert "Error" not in printed
    lines = [line for line in printed.splitlines() if "KRaftVoters" in line]
    assert len(lines) == 3
    assert [line.count("voterId") for line in lines] == [1, 2, 1]
    assert all(f'"voterDirectoryId":"{uuid_text(first.directory_id)}"' in line for line in lines)
    assert printed.count("KRaftVersion") == 2


def test_the_metadata_shell_shows_the_image(tmp_path: Path) -> None:
    """It reads to the end, whatever of ours stands there, and shows what Kafka's records say.

    On a busy machine the shell may run its command once the file is read and before the image is made: it is
    asked again.
    """
    for path in made_log(tmp_path):
        words = (
            "org.apache.kafka.shell.MetadataShell",
            "--snapshot",
            str(path),
            "cat",
            "/image/topics/byName/seen/1",
        )
        assert any("replicas=[1]" in java(tmp_path, *words) for _ in range(5))
