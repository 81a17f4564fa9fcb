"""Streams that are given to their next owner before they are uploaded: who acknowledges, who uploads, what a
restart of either finds, and what is read of which."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from millrace.s3stream.errors import OffsetGap, OffsetTrimmed, RangeOwed, StreamFenced
from millrace.s3stream.ids import (
    OWED_RANGE,
    ObjectHint,
    ObjectId,
    ObjectKind,
    OpenedStream,
    StreamId,
    StreamRange,
    UploadCommit,
)
from millrace.s3stream.objects.format import Entry, EntryHeader
from millrace.s3stream.recovery import ExpectedOffsets, Recovered
from millrace.s3stream.storage import Storage
from millrace.s3stream.stream import Stream
from tests.s3stream.build import CatalogStream, MemoryCatalog, World, append, run

STREAM = StreamId(1)


class NodeCatalog(MemoryCatalog):
    """One node's view of a catalog that several nodes use: streams are sealed, and what is owed is committed
    by its node alone."""

    def __init__(self, node: str, shared: NodeCatalog | None = None) -> None:
        super().__init__()
        self.node = node
        self._first = self if shared is None else shared
        if shared is not None:
            self.streams = shared.streams
            self.prepared, self.committed, self.commits = shared.prepared, shared.committed, shared.commits
            self.lost = shared.lost
        self.seals: list[tuple[int, int]] = []
        self.is_sealing = True

    def open(self, stream_id: int) -> OpenedStream:
        stream = self.streams.get(stream_id)
        assert stream is None or self.node not in stream.owed, f"{self.node} owes some of {stream_id}"
        opened = super().open(stream_id)
        self.streams[stream_id].node = self.node
        return opened

    async def opening_streams(self) -> list[OpenedStream]:
        opened = [
            OpenedStream(StreamId(key), s.epoch, s.start, s.end)
            for key, s in self.streams.items()
            if s.is_open and s.node == self.node
        ]
        for key, stream in self.streams.items():
            if self.node in stream.owed:
                start, end, epoch = stream.owed[self.node]
                opened.append(OpenedStream(StreamId(key), epoch, start, start, end))
        return opened

    async def seal(self, stream_id: StreamId, epoch: int, start: int, end: int) -> bool:
        await self._meet("seal")
        stream = self._owned(stream_id, epoch)
        if not self.is_sealing:
            return False
        self.seals.append((stream_id, end))
        if stream.is_open:
            if end > stream.end:
                stream.owed[self.node] = stream.end, end, epoch
            stream.is_open, stream.start, stream.end = False, start, end
        return True

    async def prepare(self, count: int, ttl_ms: int) -> ObjectId:
        await self._meet("prepare")
        first = self._first._next_object
        self._first._next_object += count
        self.prepared |= dict.fromkeys(range(first, first + count))
        return ObjectId(first)

    def candidates(self, stream_id: StreamId, offset: int, limit: int) -> Sequence[ObjectHint]:
        stream = self.streams[stream_id]
        for start, end, _ in stream.owed.values():
            if start <= offset < end:
                return [ObjectHint(OWED_RANGE, ObjectKind.STREAM, 0, start, end)]
        return super().candidates(stream_id, offset, limit)

    def lose(self) -> None:
        """What this node owes is given up."""
        start, end, _ = self.streams[STREAM].owed.pop(self.node)
        self.lost.append(StreamRange(STREAM, start, end))

    def _check_ranges(self, commit: UploadCommit) -> None:
        for span in [*commit.ranges, *(made.range for made in commit.stream_objects)]:
            stream = self.streams.get(span.stream_id)
            if stream is None:
                continue
            owed = stream.owed.get(self.node)
            if owed is not None:
                assert (span.start, span.end <= owed[1]) == (owed[0], True), (span, owed)
            elif span.end > stream.end:  # else it is passed over
                assert stream.is_open
                assert (stream.node, span.start) == (self.node, stream.end), (span, vars(stream))

    def _advance(self, span: StreamRange, object_id: ObjectId, kind: ObjectKind, size_bytes: int) -> None:
        stream = self.streams.get(span.stream_id)
        owed = None if stream is None else stream.owed.pop(self.node, None)
        if stream is None or (owed is None and span.end <= stream.end):
            return
        stream.objects.append(ObjectHint(object_id, kind, size_bytes, span.start, span.end))
        stream.objects.sort(key=lambda hint: hint.start)
        if owed is None:
            stream.end = span.end
        elif span.end < owed[1]:
            stream.owed[self.node] = span.end, owed[1], owed[2]


class Asked:
    """A node's way to the other: what that owes is read from it, as long as it answers."""

    def __init__(self, pair: Pair, owner: Storage) -> None:
        self.pair, self.owner = pair, owner
        self.asked: list[tuple[int, int]] = []
        self.is_silent = False

    async def read(self, wanted: StreamRange, max_bytes: int) -> Sequence[Entry]:
        self.asked.append((wanted.start, wanted.end))
        await asyncio.sleep(0)
        if self.is_silent:
            raise RangeOwed(wanted.stream_id, wanted.start, wanted.end, "no answer")
        owed = self.pair.stream.owed.get("old")
        if owed is None:
            return []
        return await self.owner.read_sealed(wanted.stream_id, owed[2], wanted.start, max_bytes)


class Pair:
    """Two nodes on one store and one catalog, each with a log of its own."""

    def __init__(self) -> None:
        self.old, self.new = World(), World()
        self.old.catalog = first = NodeCatalog("old")
        self.new.catalog = NodeCatalog("new", first)
        self.new.store = self.old.store
        self.is_away = False
        self._back = asyncio.Event()

        async def wait() -> None:
            await self._back.wait()

        self.old.store.fault = lambda operation, key: wait() if self.is_away else None

    def away(self) -> None:
        """The store takes nothing for a while."""
        self.is_away = True

    def back(self) -> None:
        self.is_away = False
        self._back.set()
        self._back = asyncio.Event()

    @property
    def stream(self) -> CatalogStream:
        return self.old.catalog.streams[STREAM]


def opened(world: World, engine: Storage) -> Stream:
    return engine.open_stream(world.catalog.open(STREAM))


async def write(stream: Stream, count: int) -> None:
    for _ in range(count):
        await append(stream, b"%03d" % stream.next_offset)


async def texts(stream: Stream, start: int, end: int) -> list[bytes]:
    found: list[bytes] = []
    while start < end:
        entries = await stream.fetch(start, end, 1 << 20)
        found += [bytes(entry.data) for entry in entries]
        start = entries[-1].end
    return found


async def until_uploaded(engine: Storage, *stream_ids: int) -> None:
    """Returns once the engine has uploaded all that it sealed of these."""
    while any(stream_id in engine.sealed for stream_id in stream_ids):
        await engine._wait_for(engine._uploaded)


async def sealed_away(pair: Pair) -> tuple[Storage, Storage]:
    """Both engines; a stream of the old one is sealed, with ten entries that the store did not take."""
    old, new = await pair.old.started(), await pair.new.started()
    stream = opened(pair.old, old)
    await write(stream, 10)
    pair.away()
    await stream.seal()
    return old, new


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%03d" % offset for offset in range(start, end)]


def test_the_next_owner_writes_before_the_upload() -> None:
    """While the store takes nothing: the stream is sealed, opened elsewhere at its end in a later epoch, and
    written on. When the store is back, what was owed is committed by its node; then all is in objects."""

    async def scenario() -> None:
        pair = Pair()
        old, new = await sealed_away(pair)
        assert pair.stream.owed == {"old": (0, 10, 0)}
        following = opened(pair.new, new)
        assert (following.epoch, following.next_offset, following.committed_end) == (1, 10, 10)
        await write(following, 5)
        assert following.confirmed_end == 15
        assert STREAM in old.sealed
        ranges, _ = old.not_uploaded()
        assert ranges == [StreamRange(STREAM, 0, 10)]
        pair.back()
        await until_uploaded(old, STREAM)
        assert (pair.stream.owed, len(old.sealed)) == ({}, 0)
        assert await new.upload_all(1000)
        new.drop_caches()
        assert await texts(following, 0, 15) == numbered(0, 15)
        for engine in (old, new):
            await engine.close(1000)

    run(scenario())


def test_what_was_in_flight_is_sealed_too() -> None:
    """Appends that are not durable yet are waited for, and no further one is taken."""

    async def scenario() -> None:
        pair = Pair()
        pair.old.wal.is_auto = False
        old = await pair.old.started()
        stream = opened(pair.old, old)
        stream.append(1, (b"000",))
        sealing = asyncio.ensure_future(stream.seal())
        await asyncio.sleep(0.01)
        assert pair.stream.is_open
        with pytest.raises(Exception, match="closed"):
            stream.append(1, (b"001",))
        pair.old.wal.confirm()
        await sealing
        assert pair.stream.end == 1
        await old.close(1000)

    run(scenario())


def test_a_stream_that_is_uploaded_is_closed() -> None:
    """Nothing is sealed where nothing is owed."""

    async def scenario() -> None:
        pair = Pair()
        old = await pair.old.started()
        stream = opened(pair.old, old)
        await write(stream, 3)
        assert await old.upload_all(1000)
        await stream.seal()
        catalog: Any = pair.old.catalog
        assert (catalog.seals, pair.old.catalog.closed, pair.stream.is_open) == ([], [STREAM], False)
        await old.close(1000)

    run(scenario())


def test_a_refused_seal_uploads_first() -> None:
    """Where metadata takes none, the stream stays open until all of it is committed."""

    async def scenario() -> None:
        pair = Pair()
        old = await pair.old.started()
        catalog: Any = pair.old.catalog
        catalog.is_sealing = False
        stream = opened(pair.old, old)
        await write(stream, 3)
        pair.away()
        sealing = asyncio.ensure_future(stream.seal())
        await asyncio.sleep(0.05)
        assert pair.stream.is_open
        pair.back()
        await sealing
        assert (pair.stream.is_open, pair.stream.end, len(old.sealed)) == (False, 3, 0)
        await old.close(1000)

    run(scenario())


def test_an_owner_that_is_killed_commits_what_it_owes() -> None:
    """Its next start finds the range in its log, uploads it, and closes nothing that is another's by then."""

    async def scenario() -> None:
        pair = Pair()
        old, new = await sealed_away(pair)
        following = opened(pair.new, new)
        await write(following, 5)
        await pair.old.crash(old)
        pair.back()
        again = await pair.old.started()
        assert (again.recovered.accepted_count, again.recovered.closed_count) == (10, 0)
        assert (pair.stream.owed, pair.stream.is_open, pair.stream.node) == ({}, True, "new")
        assert pair.old.wal.used_bytes == 0
        assert await new.upload_all(1000)
        new.drop_caches()
        assert await texts(following, 0, 15) == numbered(0, 15)
        for engine in (again, new):
            await engine.close(1000)

    run(scenario())


def test_a_log_that_lacks_what_it_owes_is_refused() -> None:
    """The end of what is owed is known, so that a loss at the log's end is seen, which of an open stream it
    is not. With the loss accepted, what is there is committed, and the rest told."""

    async def scenario() -> None:
        pair = Pair()
        old = await pair.old.started()
        stream = opened(pair.old, old)
        await write(stream, 10)
        pair.away()
        await stream.seal()
        await pair.old.crash(old)
        pair.back()
        del pair.old.wal.records[-3:]
        with pytest.raises(OffsetGap) as refused:
            await pair.old.started()
        assert (refused.value.expected, refused.value.found) == (7, 10)
        assert pair.stream.owed == {"old": (0, 10, 0)}, "nothing was changed"
        engine = pair.old.engine()
        await engine.start(is_loss_accepted=True)
        assert pair.stream.owed == {"old": (7, 10, 0)}, "what is there is committed"
        assert engine.recovered.not_found == {STREAM: StreamRange(STREAM, 7, 10)}
        assert engine.recovered.has_loss
        await engine.close(1000)

    run(scenario())


@pytest.mark.parametrize("is_written_between", [False, True])
def test_what_a_log_owes_and_what_it_has_of_the_stream_again_are_both_recovered(
    is_written_between: bool,
) -> None:
    """By metadata that was restored and is older than the log: it has the stream open at the node, and does
    not know that what that owes was uploaded before. What another wrote between is in that one's log."""

    async def scenario() -> None:
        pair = Pair()
        old, new = await sealed_away(pair)
        end = 10
        if is_written_between:
            following = opened(pair.new, new)
            await write(following, 5)
            await following.seal()
            end = 15
        owed = pair.stream.owed.pop("old")
        taken = pair.old.catalog.open(STREAM)
        old.take_back([STREAM])
        await write(old.open_stream(taken), 3)
        await pair.old.crash(old)
        pair.stream.owed["old"] = owed
        pair.back()
        engine = await pair.old.started()
        await until_uploaded(new, STREAM)
        assert (pair.stream.owed, pair.stream.is_open, pair.stream.end) == ({}, False, end + 3)
        again = opened(pair.old, engine)
        assert await texts(again, 0, end + 3) == numbered(0, end + 3)
        engine.drop_caches()
        assert await texts(again, 0, end + 3) == numbered(0, end + 3)
        for one in (engine, new):
            await one.close(1000)

    run(scenario())


def judged(
    records: Sequence[tuple[int, int]], *, is_loss_accepted: bool
) -> tuple[list[int], list[StreamRange], list[StreamRange]] | tuple[int, int]:
    """Of a log with these entries, of which [0, 10) is owed and which has the stream open from 15 on: where
    those begin that are uploaded, what is given up behind a hole, and what was not found; or the hole."""
    opened = [OpenedStream(STREAM, 3, 0, 15), OpenedStream(STREAM, 1, 0, 0, 10)]
    expected, recovered = ExpectedOffsets(opened, is_loss_accepted=is_loss_accepted), Recovered()
    taken = []
    try:
        for base, end in records:
            entry = EntryHeader(STREAM, 1, base, end - base, 1, 0)
            if expected.judge(entry, recovered):
                taken.append(base)
        expected.end(recovered)
    except OffsetGap as gap:
        return gap.expected, gap.found
    return taken, list(recovered.behind_hole.values()), list(recovered.not_found.values())


@pytest.mark.parametrize(
    ("records", "found", "accepted"),
    [
        ([(0, 10), (15, 20)], ([0, 15], [], []), None),
        ([(0, 10)], ([0], [], []), None),
        ([(0, 7), (15, 20)], (7, 15), ([0, 15], [], [(7, 10)])),
        ([(0, 7)], (7, 10), ([0], [], [(7, 10)])),
        ([(15, 20)], (0, 15), ([15], [], [(0, 10)])),
        ([], (0, 10), ([], [], [(0, 10)])),
        ([(0, 10), (10, 12), (15, 20)], (10, 12), ([0, 15], [(10, 12)], [])),
        ([(0, 10), (16, 20)], (10, 16), ([0], [(16, 20)], [])),
        ([(0, 10), (15, 17), (18, 20)], (17, 18), ([0, 15], [(18, 20)], [])),
    ],
)  # fmt: skip
def test_a_hole_in_either_part_is_refused_or_given_up(records: Any, found: Any, accepted: Any) -> None:
    """And nothing else with it: by the word the parts are recovered as far as they are there."""
    assert judged(records, is_loss_accepted=False) == found
    taken, behind, missing = found if accepted is None else accepted
    ranges = [[StreamRange(STREAM, *one) for one in some] for some in (behind, missing)]
    assert judged(records, is_loss_accepted=True) == (taken, *ranges)


def test_it_moves_on_before_it_is_uploaded() -> None:
    """Twice, over a store that takes nothing: each node owes its own, and what one has committed is not in
    the other's way. The first gets it back once it owes nothing."""

    async def scenario() -> None:
        pair = Pair()
        old, new = await sealed_away(pair)
        following = opened(pair.new, new)
        await write(following, 5)
        await following.seal()
        assert pair.stream.owed == {"old": (0, 10, 0), "new": (10, 15, 1)}
        coming = asyncio.ensure_future(until_uploaded(old, STREAM))
        await asyncio.sleep(0.01)
        assert not coming.done()
        pair.back()
        await coming
        await until_uploaded(new, STREAM)
        again = opened(pair.old, old)
        await write(again, 2)
        assert await old.upload_all(1000)
        old.drop_caches()
        assert await texts(again, 0, 17) == numbered(0, 17)
        for engine in (old, new):
            await engine.close(1000)

    run(scenario())


def test_what_is_owed_is_read_from_its_node() -> None:
    """From memory while it is not uploaded, in the epoch under which it was written; then no more: it is in
    objects."""

    async def scenario() -> None:
        pair = Pair()
        old = await pair.old.started()
        stream = opened(pair.old, old)
        await write(stream, 10)
        pair.away()
        await stream.seal()
        entries = await old.read_sealed(STREAM, 0, 4, 1 << 20)
        assert [bytes(entry.data) for entry in entries] == numbered(4, 10)
        assert [entry.epoch for entry in entries] == [0] * 6
        with pytest.raises(StreamFenced):
            await old.read_sealed(STREAM, 1, 4, 100)
        with pytest.raises(StreamFenced):
            await old.read_sealed(StreamId(2), 0, 4, 100)
        pair.back()
        await until_uploaded(old, STREAM)
        with pytest.raises(StreamFenced):
            await old.read_sealed(STREAM, 0, 4, 100)
        await old.close(1000)

    run(scenario())


def test_a_deleted_stream_is_owed_no_more() -> None:
    """Deleted before it is uploaded: what its node has of it is passed over, and nothing waits for it."""

    async def scenario() -> None:
        pair = Pair()
        old = await pair.old.started()
        stream = opened(pair.old, old)
        await write(stream, 3)
        pair.away()
        await stream.seal()
        pair.old.catalog.delete(STREAM)
        await old.drop_streams([STREAM])
        await until_uploaded(old, STREAM)
        pair.back()
        assert await old.upload_all(1000)
        await old.close(1000)

    run(scenario())


def test_what_is_being_sealed_is_read_too() -> None:
    """The next owner may know of the seal before the one that asked for it."""

    async def scenario() -> None:
        pair = Pair()
        old, new = await pair.old.started(), await pair.new.started()
        stream = opened(pair.old, old)
        await write(stream, 10)
        answer = asyncio.Event()
        seal = pair.old.catalog.seal

        async def slowly(*asked: Any) -> bool:
            is_sealed = await seal(*asked)
            await answer.wait()
            return is_sealed

        catalog: Any = pair.old.catalog
        catalog.seal = slowly
        pair.away()
        with pytest.raises(StreamFenced):
            await old.read_sealed(STREAM, 0, 4, 1 << 20)
        sealing = asyncio.ensure_future(stream.seal())
        await asyncio.sleep(0.01)
        following = opened(pair.new, new)
        new.owed_reads.reader = Asked(pair, old)
        assert await texts(following, 0, 10) == numbered(0, 10)
        answer.set()
        await sealing
        assert await texts(following, 0, 10) == numbered(0, 10)
        pair.back()
        for engine in (old, new):
            await engine.close(1000)

    run(scenario())


def test_a_seal_that_came_to_nothing_is_waited_for() -> None:
    """Its answer was lost, and metadata says when it is asked again that another has the stream: what is here
    is uploaded, or passed over, before the stream is opened here again."""

    async def scenario() -> None:
        pair = Pair()
        old = await pair.old.started()
        stream = opened(pair.old, old)
        await write(stream, 10)
        seal = pair.old.catalog.seal

        async def unheard(*asked: Any) -> bool:
            await seal(*asked)
            raise StreamFenced(STREAM, 0)

        catalog: Any = pair.old.catalog
        catalog.seal = unheard
        pair.away()
        with pytest.raises(StreamFenced):
            await stream.seal()
        assert [bytes(one.data) for one in await old.read_sealed(STREAM, 0, 4, 1)] == numbered(4, 5)
        coming = asyncio.ensure_future(until_uploaded(old, STREAM))
        await asyncio.sleep(0.01)
        assert not coming.done()
        pair.back()
        await coming
        again = opened(pair.old, old)
        assert (again.next_offset, again.epoch) == (10, 1)
        await old.close(1000)

    run(scenario())


def test_what_is_uploaded_is_not_asked_of_itself() -> None:
    """A read of what an owner has uploaded meanwhile is refused at once, whatever its own copy of metadata
    says: it looks neither there nor into the store."""

    async def scenario() -> None:
        pair = Pair()
        old = await pair.old.started()
        stream = opened(pair.old, old)
        await write(stream, 4)
        assert await old.upload_all(1000)
        await write(stream, 6)
        pair.away()
        await stream.seal()
        old.drop_caches()
        reader = old.owed_reads.reader = Asked(pair, old)
        gets_count = pair.old.store.count("get")
        with pytest.raises(OffsetTrimmed):
            await old.read_sealed(STREAM, 0, 2, 1 << 20)
        assert (reader.asked, pair.old.store.count("get")) == ([], gets_count)
        assert [bytes(one.data) for one in await old.read_sealed(STREAM, 0, 4, 1)] == numbered(4, 5)
        pair.back()
        await old.close(1000)

    run(scenario())


@pytest.mark.parametrize("is_lost", [False, True], ids=["trimmed", "given up"])
@pytest.mark.parametrize("is_written", [False, True], ids=["as it was", "written by another"])
def test_what_is_owed_no_more_is_not_waited_for(is_lost: bool, is_written: bool) -> None:
    """The next owner has trimmed it, or it was given up: the stream comes back while the store takes nothing,
    and of what is left of it here nothing is read. Its upload counts for nothing."""

    async def scenario() -> None:
        pair = Pair()
        old, new = await sealed_away(pair)
        await asyncio.sleep(0.05)  # its upload waits
        assert pair.stream.owed
        catalog: Any = pair.old.catalog
        end = 10
        if is_written:
            following = opened(pair.new, new)
            await write(following, 5)
            pair.is_away, end = False, 15
            await following.close()
            pair.is_away = True
        if is_lost:
            catalog.lose()
        else:
            pair.stream.owed.clear()
            pair.stream.start = 10
        assert STREAM in old.sealed
        taken = pair.old.catalog.open(STREAM)
        old.take_back([STREAM])
        again = old.open_stream(taken)
        assert (again.next_offset, again.committed_end) == (end, end)
        await write(again, 3)
        if not is_written:
            assert await again.fetch(5 if is_lost else 10, end, 1 << 20) == []
        pair.back()
        assert await old.upload_all(1000)
        old.drop_caches()
        assert await texts(again, 5 if is_lost else 10, end + 3) == numbered(10, end + 3)
        for engine in (old, new):
            await engine.close(1000)

    run(scenario())


async def sealed_and_gone_on(pair: Pair) -> tuple[Storage, Storage]:
    """[0, 4) is in objects, [4, 10) owed, [10, 15) in the next owner's log."""
    old, new = await pair.old.started(), await pair.new.started()
    stream = opened(pair.old, old)
    await write(stream, 4)
    assert await old.upload_all(1000)
    await write(stream, 6)
    pair.away()
    await stream.seal()
    pair.is_away = False  # to readers; what was begun waits
    following = opened(pair.new, new)
    await write(following, 5)
    return old, new, following


def test_the_next_owner_reads_what_is_owed() -> None:
    """From objects, from the earlier owner and from its own log, in one go from any offset; once it is
    uploaded, from objects alone."""

    async def scenario() -> None:
        pair = Pair()
        old, new, following = await sealed_and_gone_on(pair)
        asked = new.owed_reads.reader = Asked(pair, old)
        for start in range(15):
            assert await texts(following, start, 15) == numbered(start, 15)
        assert all(start >= 4 and end == 10 for start, end in asked.asked), asked.asked
        (only,) = await following.fetch(6, 15, 1)
        assert bytes(only.data) == b"006"
        pair.back()
        await until_uploaded(old, STREAM)
        asked.asked.clear()
        assert await texts(following, 0, 15) == numbered(0, 15)
        assert asked.asked == []
        for engine in (old, new):
            await engine.close(1000)

    run(scenario())


def test_what_nobody_gives_is_said_to_be_owed() -> None:
    """Its owner does not answer, or there is no way to it: the read fails, what lies before and behind is
    given, and nothing else is the matter."""

    async def scenario() -> None:
        pair = Pair()
        old, new, following = await sealed_and_gone_on(pair)
        for reader in (None, Asked(pair, old)):
            new.owed_reads.reader = reader
            if reader is not None:
                reader.is_silent = True
            with pytest.raises(RangeOwed) as refused:
                await following.fetch(5, 15, 1 << 20)
            assert (refused.value.start, refused.value.end)[1] == 10
            assert [bytes(one.data) for one in await following.fetch(0, 15, 1 << 20)] == numbered(0, 4)
            assert await texts(following, 10, 15) == numbered(10, 15)
        assert not new.damaged
        pair.back()
        for engine in (old, new):
            await engine.close(1000)

    run(scenario())


def test_what_was_uploaded_meanwhile_is_looked_up_anew() -> None:
    """The owner gives nothing, as metadata has it in an object by then."""

    async def scenario() -> None:
        pair = Pair()
        old, new, following = await sealed_and_gone_on(pair)
        reader = Asked(pair, old)

        class Late(Asked):
            async def read(self, wanted: StreamRange, max_bytes: int) -> Sequence[Entry]:
                pair.back()
                await until_uploaded(old, STREAM)
                return await reader.read(wanted, max_bytes)

        new.owed_reads.reader = Late(pair, old)
        assert await texts(following, 4, 15) == numbered(4, 15)
        for engine in (old, new):
            await engine.close(1000)

    run(scenario())


def test_what_is_lost_is_stepped_over() -> None:
    """Given up with its log: entries go on behind it, from any offset in it; those before it are as they
    were."""

    async def scenario() -> None:
        pair = Pair()
        old, new, following = await sealed_and_gone_on(pair)
        await pair.old.crash(old)
        catalog: Any = pair.old.catalog
        catalog.lose()
        assert await texts(following, 0, 15) == numbered(0, 4) + numbered(10, 15)
        for start in range(4, 10):
            entries = await following.fetch(start, 15, 1 << 20)
            assert [bytes(entry.data) for entry in entries] == numbered(10, 15)
        assert await following.fetch(5, 10, 1 << 20) == []
        assert not new.damaged
        pair.back()
        await new.close(1000)

    run(scenario())
