"""`millrace restore` beside a process that still has the node, and from copies of a bucket, all over a real
S3 server.

The old process goes on acknowledging and uploading while its node is restored elsewhere: whatever it
acknowledged before it ended is there in the end, and no restored node serves without it.
"""

from __future__ import annotations

import asyncio
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millrace.runtime.objectstore.s3 import S3ObjectStore
from tests.attack.test_restore import wait_saved
from tests.attack.test_swapped_places import UPLOADS_NEVER, produce, read, refusal, values, wait_uploaded
from tests.live import LiveBroker, warm
from tests.live.client import Client
from tests.live.s3_server import S3Server


async def contents(server: S3Server, bucket: str) -> dict[str, bytes]:
    store = await S3ObjectStore.open(server.settings(bucket))
    found = {entry.key: await store.get(entry.key) async for entry in store.list("")}
    await store.close()
    return found


async def fill(server: S3Server, bucket: str, objects: dict[str, bytes]) -> None:
    store = await S3ObjectStore.open(server.settings(bucket))
    for key, content in objects.items():
        await store.put(key, [content])
    await store.close()


class Story:
    def __init__(self, folder: Path, server: S3Server) -> None:
        self.folder = folder
        self.server = server
        self.sent: list[bytes] = []
        for bucket in ("lake", "wal"):
            server.make(bucket)

    def node(self, name: str, bucket: str = "lake", **settings: str) -> LiveBroker:
        overrides = {
            "s3.data.buckets": self.server.address(bucket),
            "s3.wal.path": f"{self.server.address('wal')}&batchInterval=0",
            "s3.wal.upload.interval.ms": "100",
            **settings,
        }
        return LiveBroker(self.folder / name, overrides, is_warm=True)

    def produce(self, broker: LiveBroker, name: str, count: int = 5) -> None:
        with Client(broker.address) as client:
            for number in range(count):
                value = f"{name} {number}".encode()
                client.produce("t", [value])
                self.sent.append(value)

    def restore(self, broker: LiveBroker, source: str, *words: str) -> subprocess.CompletedProcess[str]:
        options = broker.command()[broker.command().index("serve") + 1 :]
        command = ["-m", "millrace.broker", "restore", "--from", source.partition("@")[2]]
        return warm.run([*command, *options, *words])

    def read(self, broker: LiveBroker) -> list[bytes]:
        with Client(broker.address) as client:
            return client.read("t")


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]


def take_over(story: Story, old: LiveBroker, new: LiveBroker) -> None:
    """From a log directory that was lost, under the feet of a process that lives, to a node that serves."""
    lake = story.server.address("lake")
    with Client(old.address) as client:
        client.create("t")
    story.produce(old, "before")
    wait_uploaded(old)
    before = asyncio.run(contents(story.server, "lake"))
    refused = story.restore(new, lake)
    assert refused.returncode == 2, refused.stdout
    assert "claimed by the metadata log's writer" in refused.stderr
    assert "--take-over" in refused.stderr
    assert refused.stderr.count("\n") == 1, refused.stderr
    assert files_in(new.folder) == []
    assert asyncio.run(contents(story.server, "lake")).keys() == before.keys()
    told = story.restore(new, lake, "--take-over")
    assert told.returncode == 0, told.stdout + told.stderr
    assert old.is_running()
    story.produce(old, "after the restore was read")
    wait_uploaded(old)  # committed, and its log trimmed: the restored metadata knows nothing of it
    said = refusal(new)
    assert "when this log directory was restored from it, and holds it up to" in said
    assert "run `millrace restore` again" in said
    assert old.wait_end() == 1
    assert "has taken the metadata log over from this one" in old.log_path.read_text()
    for path in files_in(new.folder / "data" / "metadata"):
        path.unlink()
    again = story.restore(new, lake)  # the start that was refused released its claims
    assert again.returncode == 0, again.stdout + again.stderr
    with new:
        assert story.read(new) == story.sent
        story.produce(new, "of the restored node")
        old.begin()
        assert old.wait_end() == 1
        assert "the metadata log is older than" in old.log_path.read_text()
        assert story.read(new) == story.sent
        wait_uploaded(new)
        assert new.stop() == 0


def take_over_elsewhere(folder: Path) -> None:
    """On another machine, whose block WAL is a new one: what only the old process's has is named by the
    restore as lost from an offset on, and by the old process, with its end, as it ends."""
    bucket = {
        "s3.data.buckets": f"0@file://{folder / 'objects'}",
        **UPLOADS_NEVER,
        "s3.metadata.upload.interval.ms": "100",
    }
    old = LiveBroker(folder / "old", bucket, wal="16MiB", is_warm=True)
    new = LiveBroker(folder / "new", {**bucket, "wal.lost.accept": "true"}, wal="16MiB", is_warm=True)
    try:
        old.start()
        with Client(old.address) as client:
            client.create("t")
        produce(old, range(3), "t")
        assert old.restart().is_running()  # these are in objects
        produce(old, range(3, 8), "t")
        wait_saved(old)
        options = new.command()[new.command().index("serve") + 1 :]
        command = ["-m", "millrace.broker", "restore", *options, "--take-over"]
        told = warm.run(command)
        assert told.returncode == 1, told.stdout + told.stderr
        assert "t-0: offsets from 3 on: " in told.stdout
        new.start()
        assert old.wait_end() == 1
        assert "5 records (" in old.log_path.read_text()
        assert "t-0 [3, 8)" in old.log_path.read_text()
        assert read(new, "t") == values(range(3))
    finally:
        old.kill()
        new.kill()


def from_a_copy(story: Story, other: LiveBroker) -> None:
    """What has not arrived is named, by the pointer and by partition and offsets; when it has, everything is
    there."""
    whole = asyncio.run(contents(story.server, "lake"))
    late = [key for key in whole if "/metadata/snapshots/" in key or "/objects/" in key]
    assert any("/snapshots/" in key for key in late), "a restored node begins with a snapshot"
    story.server.make("copy")
    copy = story.server.address("copy")
    asyncio.run(fill(story.server, "copy", {key: body for key, body in whole.items() if key not in late}))
    lagging = story.restore(other, copy, "--verify")
    assert lagging.returncode == 1, lagging.stdout + lagging.stderr
    assert "as its newest, and it is not there: the bucket may be a copy" in lagging.stdout
    assert "wait for them" in lagging.stdout
    assert "t-0: offsets [0, " in lagging.stdout
    asyncio.run(fill(story.server, "copy", {key: whole[key] for key in late}))
    told = story.restore(other, copy)
    assert told.returncode == 0, told.stdout + told.stderr
    with other:
        assert story.read(other) == story.sent


def test_a_node_is_restored_while_its_old_process_lives_and_from_a_copy(tmp_path: Path) -> None:
    """Refused without the word; with it the old process ends, and what it committed after the restore is not
    left out unsaid. Then from a copied bucket whose snapshot and objects lag behind the pointer. Beside that,
    with a block WAL that the restored node does not have."""
    with ThreadPoolExecutor(1) as threads, S3Server(tmp_path / "s3") as server:
        elsewhere = threads.submit(take_over_elsewhere, tmp_path / "elsewhere")
        story = Story(tmp_path, server)
        old, new = story.node("old"), story.node("new")
        try:
            old.start()
            take_over(story, old, new)
        finally:
            old.kill()
            new.kill()
        from_a_copy(story, story.node("other", "copy"))
        elsewhere.result()
