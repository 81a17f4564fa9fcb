"""Uploads that nobody will finish: which are aborted, when, and what fsck says of them. A real controller, a
store in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial

import pytest

from millrace.broker.background import unfinished_uploads
from millrace.broker.background.unfinished_uploads import CLOCKS_APART_MS, EVERY_S, FIRST_S, UploadSweep
from millrace.broker.cli.fsck import Deletion, abort_uploads, newer_owner
from millrace.broker.inspection.bucket_check import Checked, Kind
from millrace.broker.inspection.opening import Inspected
from millrace.runtime.errors import Fenced
from millrace.runtime.objectstore import (
    ObjectMissing,
    ObjectStore,
    StoreDenied,
    StoreUnavailable,
    UnfinishedUpload,
)
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.keys import object_key, objects_prefix
from tests.broker.background.test_object_cleaner import Cluster
from tests.broker.cli.test_fsck import log_in
from tests.crash.test_full_disk import Fixture, drive
from tests.sim.loop import run_simulation
from tests.sim.objectstore import SimUpload

UPLOAD_MS_MAX = 6 * 3_600_000
HOUR_MS = 3_600_000


class Uploads:
    """One of each kind, all begun at the same time; `keys` by what they are."""

    async def start(self) -> Uploads:
        self.cluster = await Cluster().start(2)
        objects = self.cluster.cache.image.objects
        committed = next(iter(objects.by_id))
        prepared = await self.cluster.client.prepare(1, 30 * 86_400_000)
        gone = await self.cluster.client.prepare(1, 1)
        newer = int(self.cluster.cache.image.objects.next_id) + 5
        self.keys = {
            "prepared": self.cluster.key(prepared),
            "committed": self.cluster.key(committed),
            "given up": self.cluster.key(gone),
            "newer": self.cluster.key(newer),
            "another's": object_key("another-cluster", ObjectId(committed)),
            "strange": f"{self.cluster.node.cluster_id}/objects/strange",
            "of the log": f"{self.cluster.node.cluster_id}/wal/1",
        }
        for key in self.keys.values():
            upload = await self.cluster.store.start_multipart(key)
            await upload.put_part([b"lost"])
        self.cluster.clock.now_ms += 1000
        await self.is_given_up(gone)
        self.sweep = UploadSweep(self.cluster.store, self.cluster.cache, self.cluster.clock, UPLOAD_MS_MAX)
        return self

    async def is_given_up(self, object_id: int) -> None:
        """The controller has given up what was prepared for a millisecond."""
        while (found := self.cluster.cache.image.objects.get(object_id)) is not None and found.state == 0:
            self.cluster.node.controller.expire()
            await asyncio.sleep(1)

    async def left(self) -> list[str]:
        keys = [upload.key async for upload in self.cluster.store.list_uploads("")]
        return [name for name, key in self.keys.items() if key in keys]


ALL = ["prepared", "committed", "given up", "newer", "another's", "strange", "of the log"]
NOT_OURS_TO_END = ["prepared", "newer", "another's", "strange", "of the log"]


def test_what_nobody_will_finish_goes_when_it_is_old() -> None:
    """Not before an upload's longest time and a margin; then only that of ids that metadata gave and does not
    wait for, of this cluster."""

    async def main() -> None:
        uploads = await Uploads().start()
        uploads.cluster.clock.now_ms += UPLOAD_MS_MAX + CLOCKS_APART_MS - 2000
        await uploads.sweep.sweep()
        assert await uploads.left() == ALL
        uploads.cluster.clock.now_ms += 2000
        await uploads.sweep.sweep()
        assert await uploads.left() == NOT_OURS_TO_END
        assert uploads.sweep.aborted_count == 2
        uploads.cluster.clock.now_ms += 365 * 86_400_000
        await uploads.sweep.sweep()
        assert await uploads.left() == NOT_OURS_TO_END
        await uploads.cluster.stop()

    run_simulation(lambda loop: main())


def test_a_start_looks_once_and_then_daily() -> None:
    """Some minutes after the start, then a day later: what came in between waits."""

    async def main() -> None:
        uploads = await Uploads().start()
        uploads.cluster.clock.now_ms += 30 * HOUR_MS
        running = asyncio.create_task(uploads.sweep.run())
        await asyncio.sleep(FIRST_S - 1)
        assert await uploads.left() == ALL
        await asyncio.sleep(2)
        assert await uploads.left() == NOT_OURS_TO_END
        await uploads.cluster.store.start_multipart(uploads.keys["given up"])
        uploads.cluster.clock.now_ms += 30 * HOUR_MS
        await asyncio.sleep(EVERY_S - 10)
        assert "given up" in await uploads.left()
        await asyncio.sleep(20)
        assert await uploads.left() == NOT_OURS_TO_END
        running.cancel()
        await uploads.cluster.stop()

    run_simulation(lambda loop: main())


def test_a_replaced_node_aborts_nothing() -> None:
    """Its successor may have given the id, and wait for that upload: the sweep ends."""

    class Replaced:
        writer = None
        is_conditional = False

        async def verify(self, since_s: float) -> None:
            raise Fenced("another incarnation")

    async def main() -> None:
        uploads = await Uploads().start()
        uploads.cluster.clock.now_ms += 30 * HOUR_MS
        cluster = uploads.cluster
        sweep = UploadSweep(cluster.store, cluster.cache, cluster.clock, UPLOAD_MS_MAX, Replaced())
        await sweep.run()
        assert await uploads.left() == ALL
        assert sweep.aborted_count == 0
        await cluster.stop()

    run_simulation(lambda loop: main())


class Refusing(MemoryObjectStore):
    """`denied` to list; the first `failures` aborts are not answered."""

    denied: Exception | None = None
    failures = 0

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        if self.denied is not None:
            raise self.denied
        async for upload in super().list_uploads(prefix):
            yield UnfinishedUpload(upload.key, upload.began_ms, lambda upload=upload: self.abort(upload))

    async def abort(self, upload: UnfinishedUpload) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable(upload.key, "SlowDown")
        await upload.abort()


def test_a_store_that_does_not_do_it_is_borne(caplog: pytest.LogCaptureFixture) -> None:
    """It cannot list: said once, with what to do. It is away: the next time. One abort fails: the others go,
    and that one the next time."""

    async def main() -> None:
        uploads = await Uploads().start()
        store = Refusing(uploads.cluster.clock)
        store.uploads = uploads.cluster.store.uploads
        sweep = UploadSweep(store, uploads.cluster.cache, uploads.cluster.clock, UPLOAD_MS_MAX)
        uploads.cluster.clock.now_ms += 30 * HOUR_MS
        refusals = (
            StoreDenied("k", "NotImplemented", 501),
            StoreDenied("k", "501"),
            ObjectMissing("k"),
            StoreUnavailable("k"),
        )
        for store.denied in refusals:
            await sweep.sweep()
        assert await uploads.left() == ALL
        warnings = [
            record.getMessage() for record in caplog.records if record.name == unfinished_uploads.log.name
        ]
        assert [line for line in warnings if "let a rule of the bucket expire" in line] == warnings[:1]
        store.denied, store.failures = None, 1
        await sweep.sweep()
        assert (sweep.aborted_count, len(await uploads.left())) == (1, len(ALL) - 1)
        await sweep.sweep()
        assert await uploads.left() == NOT_OURS_TO_END
        await uploads.cluster.stop()

    with caplog.at_level(logging.WARNING, unfinished_uploads.log.name):
        run_simulation(lambda loop: main())


def test_fsck_tells_them_and_aborts_when_asked() -> None:
    """Key and age of each of the cluster's are told and count as no harm; asked, what is nobody's and old
    goes, with no broker running alone."""

    async def main() -> None:
        uploads = await Uploads().start()
        cluster = uploads.cluster

        async def fsck(
            *, is_asked: bool, running: str = "", store: ObjectStore = cluster.store
        ) -> tuple[str, Checked]:
            found = Checked()
            inspected = Inspected(cluster.node.cluster_id, 1, cluster.cache.image, running, None)
            newer = partial(
                newer_owner, store, inspected, found, log_in(lambda: MemoryObjectStore(cluster.clock))
            )
            deletion = Deletion(store, inspected, found, is_asked, 24 * HOUR_MS, cluster.clock.now_ms, newer)
            return await abort_uploads(deletion), found

        cluster.clock.now_ms += 23 * HOUR_MS
        told, found = await fsck(is_asked=True)
        assert told == (
            "5 unfinished uploads, 2 of them nobody's; 0 were aborted, 0 could not be, 2 are younger than "
            "the grace"
        )
        cluster.clock.now_ms += 2 * HOUR_MS
        told, found = await fsck(is_asked=False)
        assert told.endswith("2 of these are older than the grace and are aborted with --delete-orphans")
        of_ours = [uploads.keys[name] for name in ("prepared", "committed", "given up", "newer", "strange")]
        assert sorted(finding.key for finding in found.findings) == sorted(of_ours)
        assert {(finding.kind, finding.what) for finding in found.findings} == {
            (Kind.UPLOAD, "began 25.0 hours ago")
        }
        assert found.is_sound
        assert (await fsck(is_asked=True, running="77"))[0].endswith(
            "for a broker is running on the directory"
        )
        assert await uploads.left() == ALL
        assert "2 were aborted, 0 could not be, 0 are younger" in (await fsck(is_asked=True))[0]
        assert await uploads.left() == NOT_OURS_TO_END
        refusing = Refusing(cluster.clock)
        for refusing.denied in (StoreDenied("k", "NotImplemented", 501), ObjectMissing("k")):
            assert "let a rule of the bucket expire them" in (await fsck(is_asked=True, store=refusing))[0]
        assert (await fsck(is_asked=True, store=MemoryObjectStore(cluster.clock)))[0] == ""
        await cluster.stop()

    run_simulation(lambda loop: main())


def test_a_broker_looks_for_them() -> None:
    """A whole broker, minutes after its start: what an earlier life left of a known object goes, by one
    listing; an unknown one's stays."""

    async def look(fixture: Fixture) -> None:
        await fixture.node.stop()  # everything is in objects
        await fixture.node.start()
        bucket, cluster_id = fixture.world.bucket, fixture.node.cluster_id
        known = next(key for key in bucket.objects if key.startswith(objects_prefix(cluster_id)))
        unknown = object_key(cluster_id, ObjectId(1 << 40))
        began_ms = fixture.world.clock.wall_ms() - 30 * HOUR_MS
        old, other = (SimUpload(key, began_ms) for key in (known, unknown))
        bucket.uploads += [old, other]
        await asyncio.sleep(FIRST_S + 10)
        assert (old.state, other.state) == ("aborted", "open")
        assert fixture.node.stores[0].requests["list_uploads"] == 1
        await fixture.node.stop()

    drive(look)
