"""Uploads: order, patience, expiry, and what ends the engine."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

import pytest

from millrace.protocol.crc32c import crc32c
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Fenced, Unavailable
from millrace.runtime.objectstore import (
    BytesChanged,
    ObjectMissing,
    ObjectStore,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
)
from millrace.runtime.objectstore.body import Body
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy
from millrace.runtime.rand import Rand
from millrace.s3stream.config import MIB, StreamSettings
from millrace.s3stream.errors import StreamFenced
from millrace.s3stream.ids import NO_OBJECT, ObjectId, StreamId, UploadCommit, Writer
from millrace.s3stream.log_cache import DENSITY_WINDOW_BYTES, CacheBlock, LogCache
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.reader import ObjectReader
from millrace.s3stream.objects.writer import ObjectWriter
from millrace.s3stream.ownership import UNOWNED, Ownership
from millrace.s3stream.uploader import SILENT_S, Uploader
from millrace.wal.errors import WalClosed, WalFenced
from tests.s3stream.build import CLUSTER_ID, MemoryCatalog, MemoryMultipart, MemoryStore, run


class Bench:
    """An uploader, its edges, and what it told."""

    def __init__(self, **settings: int) -> None:
        self.store = MemoryStore()
        self.catalog = MemoryCatalog()
        self.cache = LogCache(1 << 40)
        self.trims: list[int] = []
        self.commits_at_trim: list[int] = []
        self.uploaded: list[int] = []
        self.failures: list[BaseException] = []
        self.settings = StreamSettings(**settings)
        self.uploader = self.uploader_on(self.store)

    def uploader_on(self, store: ObjectStore, ownership: Ownership = UNOWNED) -> Uploader:
        """Started."""
        uploader = Uploader(
            store,
            self.catalog,
            self.settings,
            CLUSTER_ID,
            self.trim,
            self.on_uploaded,
            self.failures.append,
            ownership=ownership,
        )
        uploader.start()
        return uploader

    async def trim(self, end: int) -> None:
        self.trims.append(end)
        self.commits_at_trim.append(len(self.catalog.commits))

    def on_uploaded(self, block: CacheBlock) -> None:
        self.uploaded.append(block.number)

    def block(self, *sizes: tuple[int, int]) -> CacheBlock:
        """One entry of each (stream, bytes)."""
        for stream_id, size in sizes:
            if stream_id not in self.catalog.streams:
                self.catalog.open(stream_id)
            base = self.cache.end_of(stream_id) or 0
            self.cache.put(
                stream_id, Entry(base, 1, memoryview(bytes(size))), self.cache.active.wal_end + size
            )
        block = self.cache.seal()
        assert block is not None
        return block

    async def settle(self) -> None:
        await asyncio.sleep(60)

    async def stop(self) -> None:
        await self.uploader.stop()


class Owned:
    """Keeps its node, until `newer` says otherwise."""

    writer = Writer(1, 77)
    is_conditional = True
    newer: Fenced | None = None

    async def verify(self, since_s: float) -> None:
        if self.newer is not None:
            raise self.newer


@pytest.mark.parametrize("is_replaced", [False, True])
def test_an_id_under_which_another_was_quicker(is_replaced: bool) -> None:
    """Of two processes that gave the same id the one that still owns the node takes another id, and what lies
    there stays; the other one ends."""

    async def scenario() -> None:
        bench, owned = Bench(), Owned()
        await bench.uploader.stop()
        theirs = ObjectWriter(writer=Writer(1, 99))
        theirs.add(1, [Entry(0, 1, memoryview(b"theirs"))])
        content = b"".join(theirs.finish().parts)
        await bench.store.put(object_key(CLUSTER_ID, ObjectId(0)), [content])
        owned.newer = StreamFenced(-1, 1) if is_replaced else None
        bench.uploader = bench.uploader_on(bench.store, owned)
        bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        assert await bench.store.get(object_key(CLUSTER_ID, ObjectId(0))) == content
        if is_replaced:
            assert bench.failures == [owned.newer]
            assert not bench.catalog.commits
        else:
            assert not bench.failures
            assert [commit.object_id for commit in bench.catalog.commits] == [1]
            assert bench.uploaded
        await bench.stop()

    run(scenario())


def test_commits_follow_the_order_of_blocks() -> None:
    """Puts of several blocks run at once and end in any order; ids, commits, trims and news keep to the
    blocks' order."""

    async def scenario() -> None:
        bench = Bench(uploads_in_flight=4)
        gates: dict[str, asyncio.Event] = {}

        def wait(operation: str, key: str) -> Coroutine[Any, Any, Any] | None:
            return gates.setdefault(key, asyncio.Event()).wait() if operation == "put" else None

        bench.store.fault = wait
        for _ in range(3):
            bench.uploader.submit(bench.block((1, 100), (2, 100)))
        await bench.settle()
        assert len(gates) == 3, "the puts are pipelined"
        for key in (object_key(CLUSTER_ID, 2), object_key(CLUSTER_ID, 1)):  # type: ignore[arg-type]
            gates[key].set()
            await bench.settle()
            assert bench.catalog.commits == []
        gates[object_key(CLUSTER_ID, 0)].set()  # type: ignore[arg-type]
        await bench.settle()
        assert [commit.object_id for commit in bench.catalog.commits] == [0, 1, 2]
        assert (bench.trims, bench.uploaded) == ([200, 400, 600], [0, 1, 2])
        assert bench.commits_at_trim == [1, 2, 3], "the WAL is trimmed behind each commit"
        assert bench.uploader.pending_count == 0
        await bench.stop()

    run(scenario())


def test_blocks_under_way_are_bounded() -> None:
    """However many blocks wait, only a few are being put."""

    async def scenario() -> None:
        bench = Bench(uploads_in_flight=4)
        bench.store.fault = lambda operation, key: asyncio.sleep(1_000_000)
        for _ in range(20):
            bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        assert bench.store.count("put") == 4
        await bench.stop()

    run(scenario())


def test_single_puts_are_bounded() -> None:
    """A block of many large streams puts only so many objects at once."""

    async def scenario() -> None:
        bench = Bench(stream_object_split_bytes=1, puts_in_flight=3)
        under_way, most = 0, 0

        async def slow() -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(1)
            under_way -= 1

        bench.store.fault = lambda operation, key: slow()
        bench.uploader.submit(bench.block(*((stream_id, 10) for stream_id in range(10))))
        await bench.settle()
        assert (most, bench.uploader.objects_put, bench.uploaded) == (3, 10, [0])
        await bench.stop()

    run(scenario())


@pytest.mark.parametrize("error", [StoreUnavailable, StoreFull, StoreDenied, ObjectMissing])
def test_a_store_that_refuses_is_asked_for_ever(error: type[Exception]) -> None:
    """For an hour every put fails: nothing is trimmed, the reason is shown, pauses grow; then all goes on by
    itself."""

    async def scenario() -> None:
        bench = Bench(prepare_ttl_ms=86_400_000)

        def fail(operation: str, key: str) -> None:
            raise error("no")

        bench.store.fault = fail
        bench.uploader.submit(bench.block((1, 100)))
        bench.uploader.submit(bench.block((1, 100)))
        await asyncio.sleep(3600)
        assert error.__name__ in bench.uploader.blocked_reason
        assert bench.store.count("put") < 2 * 400
        assert (bench.trims, bench.failures) == ([], [])
        bench.store.fault = lambda operation, key: None
        await bench.settle()
        assert (bench.uploader.blocked_reason, bench.uploaded) == ("", [0, 1])
        await bench.stop()

    run(scenario())


def test_that_the_store_is_full_is_told() -> None:
    """Each put that is refused for want of room is told once, whatever its number of attempts; another
    trouble, or an answer, ends it."""

    async def scenario() -> None:
        bench = Bench(prepare_ttl_ms=86_400_000)
        told: list[str] = []
        bench.uploader.on_full = lambda: told.append("full" if bench.uploader.is_full else "not")
        fault: list[type[Exception]] = [StoreFull]

        def fail(operation: str, key: str) -> None:
            for error in fault:
                raise error("no")

        bench.store.fault = fail
        assert not bench.uploader.is_full
        bench.uploader.submit(bench.block((1, 100)))
        await asyncio.sleep(100)
        assert (told, bench.uploader.is_full) == (["full"], True)
        bench.uploader.submit(bench.block((1, 100)))
        await asyncio.sleep(100)
        assert told == ["full", "full"]
        fault[:] = [StoreUnavailable]
        await asyncio.sleep(100)
        assert (told, bench.uploader.is_full) == (["full", "full"], False)
        fault[:] = [StoreFull]
        await asyncio.sleep(100)
        assert (len(told), bench.uploader.is_full) == (4, True)
        fault.clear()
        await asyncio.sleep(100)
        assert (len(told), bench.uploader.is_full, bench.uploaded) == (4, False, [0, 1])
        await bench.stop()

    run(scenario())


def test_a_store_that_is_silent_is_named_before_it_fails() -> None:
    """A call that is not answered for a while is the reason why uploads wait, long before it times out; an
    answer clears it."""

    async def scenario() -> None:
        bench = Bench()
        gate = asyncio.Event()
        bench.store.fault = lambda operation, key: gate.wait() if operation == "put" else None
        bench.uploader.submit(bench.block((1, 100)))
        await asyncio.sleep(SILENT_S - 1)
        assert bench.uploader.blocked_reason == ""
        await asyncio.sleep(2)
        assert "no answer" in bench.uploader.blocked_reason
        gate.set()
        await bench.settle()
        assert (bench.uploader.blocked_reason, bench.uploaded) == ("", [0])
        await bench.stop()

    run(scenario())


def test_a_lost_answer_to_a_commit_changes_nothing() -> None:
    """The commit happened and its answer was lost: it is repeated with the same ids, and counts once."""

    async def scenario() -> None:
        bench = Bench()
        answers = [StoreUnavailable("lost")]

        def lose() -> None:
            if answers:
                raise answers.pop()

        bench.catalog.after_commit = lose
        bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        assert (len(bench.catalog.commits), bench.uploaded, bench.store.count("put")) == (1, [0], 1)
        await bench.stop()

    run(scenario())


def test_late_objects_take_new_ids() -> None:
    """The store was away longer than the ids live: their objects may be deleted already, so new ids are taken
    and put again."""

    async def scenario() -> None:
        bench = Bench(prepare_ttl_ms=10_000)
        bench.store.fault = lambda operation, key: (
            asyncio.sleep(9) if operation == "put" and key.endswith("/0") else None
        )
        bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        assert [commit.object_id for commit in bench.catalog.commits] == [1]
        assert bench.store.count("put") == 2
        await bench.stop()

    run(scenario())


@pytest.mark.parametrize("size", [100, 6 * MIB], ids=["whole", "in parts"])
def test_nothing_is_put_under_ids_that_are_too_old(size: int) -> None:
    """The store refuses for hours: what was never committed counts as deleted by then, and nobody would
    delete it again."""

    async def scenario() -> None:
        bench = Bench(prepare_ttl_ms=100_000, object_part_bytes=5 * MIB, stream_object_split_bytes=MIB)

        def refuse(operation: str, key: str) -> None:
            if operation in ("put", "start_multipart"):
                raise StoreDenied(key, "AccessDenied")

        bench.store.fault = refuse
        bench.uploader.submit(bench.block((1, size)))
        bench.uploader.submit(bench.block((1, size)))
        await asyncio.sleep(3600)
        bench.store.fault = lambda operation, key: None
        await bench.settle()
        known = {object_key(CLUSTER_ID, one) for commit in bench.catalog.commits for one in ids_of(commit)}
        assert set(bench.store.objects) == known
        assert bench.uploaded == [0, 1]
        assert not bench.failures
        await bench.stop()

    run(scenario())


def ids_of(commit: UploadCommit) -> list[ObjectId]:
    own = [one.object_id for one in commit.stream_objects]
    return own if commit.object_id == NO_OBJECT else [commit.object_id, *own]


def test_what_waits_for_the_store_is_not_made_into_bytes() -> None:
    """Of many blocks that wait while the store refuses, no more than the puts in flight are held a second
    time."""

    async def scenario() -> None:
        bench = Bench(puts_in_flight=2, uploads_in_flight=8)
        most = 0

        def bodies() -> int:
            return sum(type(one) is Body for one in gc.get_objects())

        async def refuse_slowly(key: str) -> None:
            nonlocal most
            most = max(most, bodies() - before)
            await asyncio.sleep(1)
            raise StoreUnavailable(key, "SlowDown")

        gc.collect()
        before = bodies()
        bench.store.fault = lambda operation, key: refuse_slowly(key) if operation == "put" else None
        for _ in range(6):
            bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        bench.store.fault = lambda operation, key: None
        await bench.settle()
        assert 2 <= most <= 3  # one that has just failed may be on its way out
        assert bench.uploaded == list(range(6))
        await bench.stop()

    run(scenario())


def test_an_expired_id_is_replaced() -> None:
    """The controller says that an id expired: the objects are put again under new ones, and the next blocks
    follow in order."""

    async def scenario() -> None:
        bench = Bench()
        hold = asyncio.Event()
        bench.store.fault = lambda operation, key: hold.wait() if operation == "put" else None
        bench.uploader.submit(bench.block((1, 100), (2, 100)))
        bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        del bench.catalog.prepared[0]
        hold.set()
        await bench.settle()
        assert [commit.object_id for commit in bench.catalog.commits] == [2, 1]
        assert bench.uploaded == [0, 1]
        await bench.stop()

    run(scenario())


def test_large_objects_go_in_parts() -> None:
    """Above the part size an object is put in parts of at least that size, numbered in order, and reads back
    whole."""

    async def scenario() -> None:
        bench = Bench(object_part_bytes=5 * MIB, stream_object_split_bytes=8 * MIB)
        data = [bytes([number]) * (700_000 + number) for number in range(25)]
        bench.catalog.open(1)
        for number, piece in enumerate(data):
            bench.cache.put(1, Entry(number, 1, memoryview(piece)), number + 1)
        block = bench.cache.seal()
        assert block is not None
        bench.uploader.submit(block)
        await bench.settle()
        assert (bench.store.count("put"), bench.store.count("complete")) == (0, 1)
        assert bench.store.count("put_part") == 3
        [info] = bench.catalog.streams[1].objects
        reader = ObjectReader(bench.store, object_key(CLUSTER_ID, info.object_id), info.size_bytes)
        blocks = await reader.read_blocks(await reader.find(1, 0, 25, 1 << 30))
        assert [bytes(entry.data) for entries in blocks for entry in entries] == data
        await bench.stop()

    run(scenario())


@pytest.mark.parametrize(("operation", "part_bytes"), [("put", 64 * MIB), ("put_part", 5 * MIB)])
def test_what_is_uploaded_is_not_summed_once_more(
    operation: str, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects and parts reach the store under the sum that their making gave, which is that of their bytes;
    nobody walks them for it."""
    sums: list[tuple[int, int]] = []

    async def refuse(body: Body) -> int:
        raise AssertionError("summed once more")

    async def note(body: Any) -> None:
        assert isinstance(body, Body)
        sums.append((await body.crc(), crc32c(b"".join(body))))

    async def put(store: MemoryStore, key: str, parts: Sequence[Buffer]) -> None:
        await note(parts)
        await kept_put(store, key, parts)

    async def put_part(upload: MemoryMultipart, parts: Sequence[Buffer], number: int) -> None:
        await note(parts)
        await kept_put_part(upload, parts, number)

    kept_put, kept_put_part = MemoryStore.put, MemoryMultipart._put_part
    monkeypatch.setattr(MemoryStore, "put", put)
    monkeypatch.setattr(MemoryMultipart, "_put_part", put_part)
    monkeypatch.setattr(Body, "_sum", refuse)

    async def scenario() -> None:
        bench = Bench(object_part_bytes=part_bytes)
        await bench.stop()
        bench.uploader = bench.uploader_on(RetryingObjectStore(bench.store, Rand(b"r")))
        bench.uploader.submit(bench.block(*[(1, 700_000), (1, 100), (2, 3 * MIB), (3, 2 * MIB)] * 4))
        await bench.settle()
        assert bench.failures == []
        assert len(bench.catalog.commits) == 1
        assert bench.store.count(operation) > 0
        assert bench.store.count("put") + bench.store.count("put_part") == len(sums)
        await bench.stop()

    run(scenario())
    assert all(known == found for known, found in sums)


@pytest.mark.parametrize("operation", ["start_multipart", "put_part", "complete"])
@pytest.mark.parametrize("error", [StoreUnavailable, ObjectMissing])
def test_a_multipart_upload_that_fails_begins_anew(operation: str, error: type[Exception]) -> None:
    """A part, the beginning or the end fails: the upload is given up, another is made, and no permit of the
    puts is lost."""

    async def scenario() -> None:
        bench = Bench(object_part_bytes=5 * MIB, puts_in_flight=2)
        failing = [operation] * 3

        def fail(called: str, key: str) -> None:
            if called == operation and failing:
                failing.pop()
                raise error("gone")

        if error is ObjectMissing and operation != "complete":
            return
        bench.store.fault = fail
        bench.uploader.submit(bench.block((1, 6 * MIB), (2, 6 * MIB)))
        await bench.settle()
        bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        assert bench.uploaded == [0, 1]
        assert (bench.failures, failing, bench.uploader.blocked_reason) == ([], [], "")
        await bench.stop()

    run(scenario())


@pytest.mark.parametrize("operation", ["start_multipart", "put_part", "complete"])
def test_a_multipart_upload_that_is_cancelled_is_aborted(operation: str) -> None:
    """Another object of the block could not be put under its id, or the engine stops: what was begun does not
    stay in the bucket, invisible."""

    async def scenario() -> None:
        bench = Bench(object_part_bytes=5 * MIB)
        entered, meet = asyncio.Event(), bench.store.meet

        async def hang(called: str, key: str) -> None:
            await meet(called, key)
            if called == operation:
                entered.set()
                await asyncio.Event().wait()

        bench.store.meet = hang  # type: ignore[method-assign, assignment]
        bench.uploader.submit(bench.block((1, 6 * MIB)))
        await entered.wait()
        await bench.stop()
        assert bench.store.count("abort") == (
            operation != "start_multipart"
        )  # which nobody knows the name of yet

    run(scenario())


@pytest.mark.parametrize("operation", ["put_part", "complete"])
def test_multipart_uploads_of_ids_that_are_given_up_are_aborted(operation: str) -> None:
    """Under one id of the block lies what a replaced owner put: that upload, and the one beside it that is
    under way, are aborted, and all is put again under other ids."""

    async def scenario() -> None:
        bench = Bench(object_part_bytes=5 * MIB, stream_object_split_bytes=MIB)
        await bench.stop()
        bench.uploader = bench.uploader_on(bench.store, Owned())
        first_key, second_key = (object_key(CLUSTER_ID, ObjectId(number)) for number in (0, 1))
        theirs = ObjectWriter(bench.settings.block_bytes, Writer(1, 99))
        theirs.add(StreamId(9), [Entry(0, 1, memoryview(b"theirs"))])
        bench.store.objects[first_key] = b"".join(theirs.finish().parts)

        def hang(called: str, key: str) -> Awaitable[object] | None:
            return asyncio.Event().wait() if (called, key) == (operation, second_key) else None

        bench.store.fault = hang
        bench.uploader.submit(bench.block((1, 6 * MIB), (2, 6 * MIB)))
        await bench.settle()
        assert (bench.uploaded, bench.failures) == ([0], [])
        assert [key for called, key in bench.store.calls if called == "abort"] == [first_key, second_key]
        await bench.stop()

    run(scenario())


@pytest.mark.parametrize("verb", ["prepare", "commit"])
def test_metadata_that_is_away_is_asked_again(verb: str) -> None:
    """Ids cannot be had, or a commit is not answered, for a while: no block is forgotten, the reason is
    shown, and all goes on by itself."""

    async def scenario() -> None:
        bench = Bench()
        is_away = True

        def fail(called: str) -> None:
            if is_away and called == verb:
                raise Unavailable("the controller")

        bench.catalog.before = fail
        bench.uploader.submit(bench.block((1, 100)))
        bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        assert (bench.trims, bench.uploaded, bench.failures) == ([], [], [])
        assert bench.uploader.blocked_reason.startswith(f"{verb}: Unavailable")
        is_away = False
        await bench.settle()
        assert (bench.uploaded, bench.failures, bench.uploader.blocked_reason) == ([0, 1], [], "")
        await bench.stop()

    run(scenario())


@pytest.mark.parametrize("verb", ["prepare", "commit"])
def test_a_refusal_is_not_asked_for_again(verb: str) -> None:
    """Offsets that do not fit what metadata has, or any other answer that no waiting changes: asked once,
    told once, and nothing is trimmed."""

    async def scenario() -> None:
        bench = Bench()
        asked: list[str] = []

        def refuse(called: str) -> None:
            asked.append(called)
            if called == verb:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the range does not begin where the stream ends")

        bench.catalog.before = refuse
        bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        assert asked.count(verb) == 1
        assert [type(error) for error in bench.failures] == [KafkaError]
        assert (bench.trims, bench.uploaded) == ([], [])
        await bench.stop()

    run(scenario())


def test_a_fenced_commit_ends_the_engine() -> None:
    """A newer owner exists: the failure is told once, and nothing is trimmed or committed after it."""

    async def scenario() -> None:
        bench = Bench()

        def fence(verb: str) -> None:
            if verb == "commit":
                raise StreamFenced(1, 0)

        bench.catalog.before = fence
        bench.uploader.submit(bench.block((1, 100)))
        bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        assert [type(error) for error in bench.failures] == [StreamFenced]
        assert (bench.trims, bench.uploaded) == ([], [])
        await bench.stop()

    run(scenario())


def test_a_log_that_was_taken_over_is_told_as_that(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trim finds it closed; what closed it is the news, for a closed log alone looks like a broken
    disk."""

    async def scenario() -> None:
        async def trim(self: Bench, end: int) -> None:
            raise WalClosed("a write failed") from WalFenced(3, 4)

        monkeypatch.setattr(Bench, "trim", trim)
        bench = Bench()
        bench.uploader.submit(bench.block((1, 100)))
        await bench.settle()
        assert [type(error) for error in bench.failures] == [WalClosed]
        await bench.stop()

    run(scenario())
    [line] = [record.getMessage() for record in caplog.records if "uploads end" in record.getMessage()]
    assert "the WAL was taken in epoch" in line
    assert "WalClosed" not in line


def test_bytes_that_changed_in_memory_are_not_uploaded() -> None:
    """An entry that no longer matches the checksum it was acknowledged with ends the engine: the WAL has the
    right bytes."""

    async def scenario() -> None:
        bench = Bench()
        bench.catalog.open(1)
        bench.cache.put(1, Entry(0, 1, memoryview(b"what was said"), crc=12345), 10)
        block = bench.cache.seal()
        assert block is not None
        bench.uploader.submit(block)
        await bench.settle()
        assert len(bench.failures) == 1
        assert bench.store.objects == {}
        await bench.stop()

    run(scenario())


def test_bytes_that_change_between_two_attempts_end_the_engine() -> None:
    """The store is away for one put, and a record changes meanwhile: the object is not put again, nothing is
    committed or trimmed."""

    async def scenario() -> None:
        bench = Bench()
        await bench.stop()
        bench.uploader = bench.uploader_on(
            RetryingObjectStore(bench.store, Rand(b"r"), RetryPolicy(attempts_max=1))
        )
        bench.catalog.open(1)
        record = bytearray(DENSITY_WINDOW_BYTES + 1)  # large enough that the cache keeps the view

        def fail(operation: str, key: str) -> None:
            record[:4] = b"EVIL"
            raise StoreUnavailable(key, "SlowDown")

        bench.store.fault = fail
        bench.cache.put(1, Entry(0, 1, memoryview(record)), len(record))
        block = bench.cache.seal()
        assert block is not None
        bench.uploader.submit(block)
        await bench.settle()
        assert [type(error) for error in bench.failures] == [BytesChanged]
        assert bench.store.count("put") == 1
        assert (bench.store.objects, bench.catalog.commits, bench.trims) == ({}, [], [])
        await bench.stop()

    run(scenario())


def test_a_block_of_nothing_only_trims() -> None:
    """What remains of deleted streams costs no object and no commit, but its place in the WAL is freed."""

    async def scenario() -> None:
        bench = Bench()
        bench.uploader.submit(bench.block((1, 100)))
        bench.cache.put(1, Entry(1, 1, memoryview(b"deleted")), 107)
        bench.cache.drop(1)
        block = bench.cache.seal()
        assert block is not None
        bench.uploader.submit(block)
        await bench.settle()
        assert (bench.uploaded, bench.trims, len(bench.catalog.commits)) == ([0, 1], [100, 107], 1)
        await bench.stop()

    run(scenario())


def test_many_small_entries_leave_the_loop_to_others() -> None:
    """An object of a hundred thousand entries is built in steps: others run meanwhile."""

    async def scenario() -> None:
        bench = Bench()
        bench.catalog.open(1)
        view = memoryview(b"twenty bytes of data")
        for number in range(20_000):
            bench.cache.put(1, Entry(number, 1, view), number + 1)
        block = bench.cache.seal()
        assert block is not None
        turns = 0
        bench.uploader.submit(block)
        while not bench.uploaded:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 30
        await bench.stop()

    run(scenario())


def test_puts_that_fail_after_the_commits_have_ended_are_not_complained_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A trim that fails, as after a failed write of the WAL, ends the commits; the puts of the next block,
    which fail later, are no news."""
    warned: list[str] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: warned.append(context["message"]))
        bench = Bench()

        async def trim(end: int) -> None:
            raise WalClosed("a write failed")

        bench.uploader._trim_wal = trim
        bench.uploader.submit(bench.block((1, 100)))
        await asyncio.sleep(1)
        assert bench.failures
        bench.store.meet = broken  # type: ignore[method-assign]
        bench.uploader.submit(bench.block((1, 100)))
        await asyncio.sleep(1)
        await bench.uploader.stop()

    async def broken(operation: str, key: str) -> None:
        raise AssertionError("a defect")

    run(scenario())
    caplog.clear()  # its records hold the error, and so the block
    gc.collect()
    assert warned == []


def test_who_is_replaced_once_its_commit_is_safe_trims_nothing() -> None:
    """The look before the commit found no newer owner, the one before the trim does: whoever took over finds
    the WAL as it was."""

    class Owned:
        writer = None
        is_conditional = False
        looks = 0

        async def verify(self, since_s: float) -> None:
            self.looks += 1
            if self.looks > 1:
                raise Fenced("another incarnation")

    async def main() -> None:
        bench = Bench()
        owned = Owned()
        uploader = bench.uploader_on(bench.store, owned)
        uploader.submit(bench.block((1, 100)))
        await asyncio.sleep(5)
        assert len(bench.catalog.commits) == 1
        assert owned.looks == 2
        assert bench.trims == bench.uploaded == []
        assert isinstance(bench.failures[0], Fenced)
        await uploader.stop()

    run(main())
