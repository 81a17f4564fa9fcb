"""A controller whose metadata goes to a bucket in memory, or to one that is away."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from millrace.kraft.bucket.reader import BucketMetadata, Loaded, load, survey
from millrace.kraft.bucket.settings import BackupSettings
from millrace.kraft.bucket.writer import MetadataBackup
from millrace.kraft.log.snapshot import NO_VOTERS
from millrace.kraft.node import ControllerNode
from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import StoreDenied, StoreFull, StoreUnavailable
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.s3stream.ownership import UNOWNED, Ownership
from tests.kraft.build import Broker, HandClock, create_topic, open_node, sim_disk
from tests.sim.disk import SimDisk

STARTS = itertools.count()  # topic ids are drawn: no start draws those of another


class Bucket(MemoryObjectStore):
    """`is_away`, `is_full`: puts fail. `loses_answers`: what was put is told as failed. `log` has what was
    put, in order."""

    def __init__(self) -> None:
        super().__init__(HandClock())
        self.is_away = False
        self.is_full = False
        self.loses_answers = False
        self.log: list[str] = []

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        await asyncio.sleep(0.001)
        if self.is_away:
            raise StoreUnavailable(key, "away")
        if self.is_full:
            raise StoreFull(key, "full")
        await super().put_if_absent(key, parts)
        self.log.append(key)
        if self.loses_answers:
            raise StoreUnavailable(key, "its answer was lost")

    @property
    def keys(self) -> list[str]:
        return sorted(self._objects)

    def content(self, key: str) -> bytes:
        return self._objects[key][0]

    def set(self, key: str, content: bytes) -> None:
        self._objects[key] = (content, 0)

    def remove(self, key: str) -> None:
        del self._objects[key]


class Refusing(Bucket):
    """A store that knows no If-None-Match."""

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        raise StoreDenied(key, "NotImplemented", "501")


class BackedUp:
    """Starts as the broker does: looks at the bucket, then writes on."""

    def __init__(
        self,
        bucket: Bucket | None = None,
        disk: SimDisk | None = None,
        *,
        is_conditional: bool = True,
        **settings: Any,
    ) -> None:
        self.bucket = bucket or Bucket()
        self.disk = disk or sim_disk()
        self.is_conditional = is_conditional
        self.confirmed = HandClock()
        self.settings = BackupSettings(**{"interval_ms": 3_600_000, **settings})
        self.node: ControllerNode
        self.backup: MetadataBackup
        self.task: asyncio.Task[None]
        self.ownership: Ownership = UNOWNED
        self.voters = NO_VOTERS

    async def start(self, **settings: Any) -> BackedUp:
        self.node = await open_node(self.disk, seed=b"start %d" % next(STARTS), **settings)
        found = await survey(self.bucket, self.node.cluster_id)
        self.backup = MetadataBackup(
            self.bucket,
            self.node.cluster_id,
            self.node.log,
            self.node.publisher,
            self.confirmed,
            self.settings,
            found,
            self.ownership.verify,
            is_conditional=self.is_conditional,
            voters_at=lambda end: self.voters,
        )
        self.task = asyncio.create_task(self.backup.run())
        if not len(self.node.publisher.image.brokers):
            await Broker.register(self.node)
        return self

    async def create(self, *names: str) -> None:
        for name in names:
            await create_topic(self.node, name)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.node.close()

    async def survey(self) -> BucketMetadata:
        return await survey(self.bucket, self.node.cluster_id, all_snapshots=True)

    async def load(self) -> Loaded:
        return await load(self.bucket, self.node.cluster_id, await self.survey())
