"""The broker on a real S3 server: there and back, over a restart of both."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.broker.__main__ import run_loop
from millrace.broker.cli import fsck
from millrace.broker.cli.doctor import examine
from millrace.runtime.objectstore.s3 import S3ObjectStore
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.s3_server import S3Server
from tests.live.test_object_wal import broker_on, walk
from tests.patience import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with S3Server(tmp_path / "s3") as made:
        made.make("lake")
        yield made


def test_the_doctor_finds_nothing_amiss(server: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Every property is there, and nothing is left behind."""
    assert asyncio.run(examine(server.address("lake"), 2, True)) == 0
    report = json.loads(capsys.readouterr().out)
    assert [finding for finding in report["findings"] if finding["verdict"] != "yes"] == []
    assert [path for path in (server.folder / "buckets" / "lake").rglob("*") if path.is_file()] == []


def test_records_live_in_a_real_servers_bucket(
    tmp_path: Path, server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was produced is read from objects after broker and server were started anew; a deleted topic
    leaves the bucket."""
    overrides = {
        "s3.data.buckets": server.address("lake"),
        "s3.wal.upload.interval.ms": "200",
        "s3.object.delete.retention.minutes": "0",
    }
    buckets = server.folder / "buckets" / "lake"

    def objects() -> list[Path]:
        found = [
            Path(at) / name for at, _, names in os.walk(buckets) for name in names
        ]  # while some of them go
        return [path for path in found if path.parts[-3] == "objects"]

    with LiveBroker(tmp_path / "broker", overrides, wal="64MiB") as broker:
        with Client(broker.address) as client:
            client.create("kept", 2)
            values = [
                [b"%d-%d " % (partition, place) * (place % 400 + 1) for place in range(200)]
                for partition in (0, 1)
            ]
            for partition in (0, 1):
                for first in range(0, 200, 50):
                    client.produce("kept", values[partition][first : first + 50], partition)
        until(objects)
        broker.stop()
        server.stop()
        with server:
            broker.start()
            with Client(broker.address) as client:
                assert [client.read("kept", partition) for partition in (0, 1)] == values
                assert broker.metrics()['millrace_storage_reads_total{source="objects"}'] > 0
            broker.stop()
            check_fsck(tmp_path / "broker" / "data", server.address("lake"), objects())
            check_uploads(
                tmp_path / "broker" / "data", server, str(objects()[0].relative_to(buckets)), capsys
            )
            broker.start()
            with Client(broker.address) as client:
                assert client.delete("kept") == 0
            until(lambda: not objects())


def check_fsck(data: Path, address: str, objects: list[Path]) -> None:
    """It finds the bucket sound, then a byte that was flipped under the server's feet, then the bucket sound
    again."""
    words = ["--data-dir", str(data), "--override", f"s3.data.buckets={address}", "--json"]
    assert fsck.run(words, {}, run_loop) == 0
    largest = max(objects, key=lambda path: path.stat().st_size)
    content = largest.read_bytes()
    largest.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    assert fsck.run(words, {}, run_loop) == 1
    largest.write_bytes(content)
    assert fsck.run(words, {}, run_loop) == 0


def check_uploads(data: Path, server: S3Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was sent of an upload that nobody will finish is told, and goes when it is asked for; the object
    of that key stays."""

    async def leave() -> None:
        store = await S3ObjectStore.open(server.settings("lake"))
        await (await store.start_multipart(key)).put_part([b"lost"])
        await store.close()

    def checked(*more: str) -> tuple[str, dict[str, int]]:
        capsys.readouterr()
        assert (
            fsck.run(
                ["--data-dir", str(data), "--override", bucket, "--json", "--quick", *more], {}, run_loop
            )
            == 0
        )
        told = json.loads(capsys.readouterr().out)
        return told["uploads"], told["findings"]

    bucket = f"s3.data.buckets={server.address('lake')}"
    asyncio.run(leave())
    told, findings = checked()
    assert (told.split(";")[0], findings) == (
        "1 unfinished uploads, 1 of them nobody's",
        {"unfinished upload": 1},
    )
    told, _ = checked("--delete-orphans", "--grace-minutes", "0")
    assert "1 were aborted" in told
    assert checked() == ("", {})


def test_a_log_of_objects_lives_there_too(tmp_path: Path, server: S3Server) -> None:
    """The write-ahead log and the data in one bucket of the real server: its conditions are tried at the
    start and hold, and what was acknowledged is there after kill -9."""
    log = server.address("lake") + "&capacity=64MiB&batchInterval=50"
    walk(broker_on(tmp_path / "broker", log, s3_data_buckets=server.address("lake")), kills=1)
