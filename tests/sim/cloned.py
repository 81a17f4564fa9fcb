"""A node that is cloned with its disk, in one world with its clone: the first is halted, or goes on, while
the clone takes over.

Findings, by invariant 17: `object-overwritten` (a data object got other bytes), `replaced-committed` and
`replaced-deleted` (what the first one asked for when the clone's claim had been there for longer than one
look takes), `replaced-lives` (it has not ended ten seconds after the claim, or after it was thawed),
`foreign-read` (an object was read that another than its writer wrote), and an error that nothing excuses. Of
one that was halted also `replaced-acknowledged` and `replaced-made`: it answered a producer, or made a topic,
after it was thawed. It is a scenario of its own, drawn from a seed, and not a weather: two processes that
write under one id answer clients with two histories.
"""

from __future__ import annotations

import asyncio
from typing import Any

from millrace.kraft.tables.objects import ObjectState
from millrace.protocol.apis import NAMED
from millrace.protocol.batch_build import build_batch
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.records import Record
from millrace.runtime.errors import MillraceError
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId, Writer
from millrace.s3stream.objects.composite import COMPOSITE_MAGIC
from millrace.s3stream.objects.format import FOOTER_BYTES, FOOTER_MAGIC, decode_footer, encode_footer
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.placing import ObjectForeign
from millrace.s3stream.objects.reader import ObjectReader
from tests.sim.client import SimClient
from tests.sim.disk import SimDisk, keep
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.node import SimNode, StartFailed
from tests.sim.objectstore import SimBucket, SimObjectStore, StoreFault
from tests.sim.run import steady_memory
from tests.sim.settings import node_settings
from tests.sim.strange import copied
from tests.sim.world import World

END_S = 10.0
LOOK_S = 3.0  # what was verified just before the claim came may be under way for so long
BEFORE_S = 17.0  # longer than the grace: something is due for deletion when the clone comes
HALTED_S = 20.0
FIRST, SECOND = ("10.0.0.1", "10.0.0.2")


class Scene:
    def __init__(self, loop: SimLoop, seed: str, *, is_halted: bool) -> None:
        self.world = World(loop, f"cloned {seed}")
        self.findings: list[str] = []
        self.is_halted = is_halted
        self.first = SimNode(self.world, 1, node_settings(1, FIRST))
        self.second = SimNode(self.world, 1, node_settings(1, SECOND))
        self.second._rand = self.world.rand.split(
            "the clone's chance"
        )  # else it would draw what the first one drew
        self.claimed_s: float | None = None  # when the clone's claim came
        self.looked_count = 0
        self.is_thawed = False
        self._watch_bucket(self.world.bucket)

    def find(self, kind: str, what: object) -> None:
        self.findings.append(f"{kind}: {what}")

    def _watch_bucket(self, bucket: SimBucket) -> None:
        put = bucket.put

        def watched(key: str, content: bytes) -> None:
            before = bucket.objects.get(key)
            if "/objects/" in key:
                self.looked_count += 1
                if before is not None and before[0] != content:
                    self.find("object-overwritten", key)
            if "/owners/1/" in key and self.second.life is not None and self.claimed_s is None:
                self.claimed_s = self.world.loop.time()
            put(key, content)

        bucket.put = watched  # type: ignore[method-assign]

    @property
    def is_late(self) -> bool:
        """What the first one sets out to do now it may not."""
        return self.claimed_s is not None and self.world.loop.time() > self.claimed_s + LOOK_S

    def _watch_first(self) -> None:
        on_command = self.first.on_command

        def asked(name: str, moment: str) -> None:
            if moment == "sent" and name in ("CommitUpload", "CommitCompaction") and self.is_late:
                self.find("replaced-committed", name)
            on_command(name, moment)

        self.first.on_command = asked  # type: ignore[method-assign]
        for store in self.first.stores:
            self._watch_deletions(store)

    def _watch_deletions(self, store: SimObjectStore) -> None:
        delete = store.delete

        async def watched(keys: Any) -> Any:
            if self.is_late and any("/objects/" in key for key in keys):
                self.find("replaced-deleted", " ".join(keys))
            return await delete(keys)

        store.delete = watched  # type: ignore[method-assign]

    async def play(self) -> None:
        await self.first.start()
        client = self.world.client("writer", (FIRST, 9092))
        await ask(client, "CreateTopics", CreateTopicsRequest([CreatableTopic("t", 4, 1)], 10_000))
        tasks = [asyncio.ensure_future(self._write(client))]
        await asyncio.sleep(BEFORE_S)
        self._watch_first()
        life = self.first.life
        assert life is not None
        disk = SimDisk(self.world.rand.split("clone"), latency_s=self.first.disk.latency_s)
        found = self.first.disk.restart(
            keep, power_was_cut=False
        )  # as a copy of the running disk would find it
        disk.files, disk.folders = copied(found, lambda path: True), dict(found.folders)
        self.second._adopt(disk)
        if self.is_halted:
            self.world.loop.freeze(life)
        try:
            await self.second.start()
        except StartFailed as failed:
            if not isinstance(
                failed.__cause__, ObjectForeign
            ):  # of the first one, under an id that both gave
                self.find("clone-refused", repr(failed.__cause__))
        if self.is_halted:
            await asyncio.sleep(HALTED_S)
            # Its first two looks are not answered: nothing may be made final before one is.
            for store in self.first.stores:
                store.plan("head", *[StoreFault.LOST_REQUEST] * 4)
            self.is_thawed = True
            self.world.loop.thaw()
            tasks.append(asyncio.ensure_future(self._make_late()))
        if not self.first.gone.done():
            await asyncio.wait([self.first.gone], timeout=END_S)
        if not self.first.gone.done():
            self.find("replaced-lives", f"{END_S:.0f} s")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.second.life is not None:
            await self._exchange()

    async def _write(self, client: SimClient) -> None:
        for number in range(100_000):
            batch = build_batch([Record(None, b"%d " % number * 200, 1_700_000_000_000)])
            data = [
                TopicProduceData("t", partition_data=[PartitionProduceData(number % 4, memoryview(batch))])
            ]
            try:
                answer = await ask(client, "Produce", ProduceRequest(None, -1, 10_000, data), 12)
            except MillraceError:
                return  # it has ended
            if self.is_thawed and answer.responses[0].partition_responses[0].error_code == 0:
                self.find("replaced-acknowledged", number)
            await asyncio.sleep(0.02)

    async def _make_late(self) -> None:
        client = self.world.client("maker", (FIRST, 9092))
        try:
            answer = await ask(
                client, "CreateTopics", CreateTopicsRequest([CreatableTopic("late", 1, 1)], 10_000)
            )
        except MillraceError:
            return
        if answer.topics[0].error_code == 0:
            self.find("replaced-made", "late")

    async def _exchange(self) -> None:
        """Each committed object of the clone is put in place again as another's, sound and of the same size,
        and read as metadata names it."""
        assert self.second.broker is not None
        assert self.second.broker.controller is not None
        image, bucket = self.second.broker.controller.publisher.image, self.world.bucket
        objects = [
            (one, stored)
            for one, stored in image.objects.by_id.items()
            if stored.state is ObjectState.COMMITTED
        ]
        for object_id, stored in objects:
            key = object_key(self.second.cluster_id, ObjectId(object_id))
            content = bucket.objects[key][0]
            if content[-len(COMPOSITE_MAGIC) :] == COMPOSITE_MAGIC or not stored.writer:
                continue
            footer = decode_footer(memoryview(content)[-FOOTER_BYTES:], len(content))
            other = encode_footer(
                type(footer)(footer.index_position, footer.index_size_bytes, len(content), Writer(1, 4711)),
                FOOTER_MAGIC,
            )
            bucket.objects[key] = (content[:-FOOTER_BYTES] + other, bucket.objects[key][1])
            store = SimObjectStore(bucket, self.world.rand.split(key))
            try:
                await ObjectReader(store, key, stored.size_bytes, writer=stored.writer).index()
                self.find("foreign-read", key)
            except ObjectCorrupt:
                self.looked_count += 1


async def ask(client: SimClient, name: str, request: Any, version: int | None = None) -> Any:
    return await client.ask(NAMED[name].key, request, version=version)


def run_cloned(seed: str, *, is_halted: bool) -> Scene:
    async def main(loop: SimLoop) -> Scene:
        scene = Scene(loop, seed, is_halted=is_halted)
        try:
            async with asyncio.timeout(300):
                await scene.play()
        except Exception as error:
            scene.find("run-failed", repr(error))
        for node in (scene.first, scene.second):
            node.kill()
        return scene

    with steady_memory():
        return run_simulation(main)
