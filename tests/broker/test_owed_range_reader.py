"""Reads of what another broker's write-ahead log owes: over a real connection, from a real engine; what its
owner does not give, or gives wrongly; who waits is woken by the image."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millrace.broker.handlers.api_versions import ApiVersions
from millrace.broker.handlers.read_owed_range import ReadOwedRange
from millrace.broker.owed_range_reader import OwedRangeReader, checked_entries
from millrace.kraft.image.delta import delta_between
from millrace.kraft.peers.table import PeerTable
from millrace.kraft.tables.owed_ranges import OwedRange
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest, Listener
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange
from millrace.protocol.messages.read_owed_range import ReadOwedRangeRequest, ReadOwedRangeResponse
from millrace.protocol.messages.register_node_wal import RegisterNodeWalRequest
from millrace.runtime.net import LoopNet
from millrace.s3stream.errors import ObjectCorrupt, RangeOwed
from millrace.s3stream.ids import StreamId, StreamRange
from millrace.s3stream.objects.format import encode_entry_header
from millrace.s3stream.storage import Storage
from tests.broker.shell import Shell
from tests.kraft.tables.test_owed_ranges import DATA, Movers
from tests.kraft.test_replay import CLUSTER
from tests.patience import PATIENCE_S
from tests.s3stream.build import CatalogStream
from tests.s3stream.test_sealed_streams import STREAM, Pair, numbered, opened, until_uploaded, write

WAL_ID = b"the owner's log."


class Owner:
    """Broker 1, which owes [0, 10) of a stream that broker 2 has by now, behind a real listener; and metadata
    that says so. `answer` stands in the place of its handler, where a test gives one."""

    def __init__(self, answer: Callable[[Any, Any], Any] | None = None) -> None:
        self.pair = Pair()
        self.machine = Movers(roles=(0, 1))
        self.machine.stream_id = STREAM
        self._answer = answer

    async def __aenter__(self) -> Owner:
        self.pair.old.catalog.streams[STREAM] = former = CatalogStream(0)
        former.is_open = False
        self.engine: Storage = await self.pair.old.started()
        stream = opened(self.pair.old, self.engine)
        await write(stream, 10)
        self.pair.away()
        await stream.seal()
        handle = self._answer or ReadOwedRange(self.engine).handle
        image = self.machine.image
        shown = ApiVersions({18, 530}, CLUSTER, 1, lambda: image)
        self.shell = await Shell({18: shown.handle, 530: handle}).__aenter__()
        place = Listener("PLAINTEXT", "127.0.0.1", self.shell.port, 0)
        request = BrokerRegistrationRequest(1, CLUSTER, bytes(16), listeners=[place])
        self.machine.epochs[1] = self.machine.do(request).broker_epoch
        self.pair.old.wal.wal_id = WAL_ID
        self.machine.do(RegisterNodeWalRequest(1, self.machine.epochs[1], WAL_ID, "block", "file", 0))
        self.machine.seal(10)
        self.machine.move(2)
        assert self.machine.owed == [(1, 0, 10)]
        self.reader = OwedRangeReader(lambda: self.machine.image, PeerTable(LoopNet()), 2, patience_s=0.5)
        return self

    async def __aexit__(self, *what: object) -> None:
        await self.reader.close()
        await self.shell.__aexit__(None, None, None)
        self.pair.back()
        await self.engine.close(1000)

    def commit(self) -> None:
        """Metadata has it in an object, and who follows it is told."""
        before = self.machine.image
        object_id = self.machine.prepare(1)
        request = CommitUploadRequest(1, self.machine.epochs[1], object_id, 10)
        request.ranges = [UploadedRange(STREAM, 0, 10)]
        assert self.machine.do(request).error_code == 0
        self.reader.on_image(delta_between(before, self.machine.image), self.machine.image)

    async def read(self, start: int, end: int = 10, max_bytes: int = 1 << 20) -> list[bytes]:
        entries = await self.reader.read(StreamRange(STREAM, start, end), max_bytes)
        assert all(entry.epoch == 1 for entry in entries)
        return [bytes(entry.data) for entry in entries]


def run(
    scenario: Callable[[Owner], Awaitable[None]], answer: Callable[[Any, Any], Any] | None = None
) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), Owner(answer) as owner:
            await scenario(owner)

    asyncio.run(main())


def test_what_is_owed_comes_over_the_connection() -> None:
    """From any offset, as much as is asked for, the first whole; many at a time over one connection."""

    async def scenario(owner: Owner) -> None:
        assert await owner.read(0) == numbered(0, 10)
        assert await owner.read(7) == numbered(7, 10)
        assert await owner.read(2, max_bytes=1) == numbered(2, 3)
        found = await asyncio.gather(*(owner.read(start % 10) for start in range(100)))
        assert found == [numbered(start % 10, 10) for start in range(100)]
        assert owner.reader._ways.open_count == 1

    run(scenario)


def test_metadata_that_has_moved_on_is_told_by_nothing() -> None:
    """The range is in an object: its node is not asked, and who reads looks there."""

    async def scenario(owner: Owner) -> None:
        owner.commit()
        assert await owner.read(0) == []

    run(scenario)


def test_who_waits_is_woken_by_the_image() -> None:
    """The node owes nothing any more, and metadata says so a little later: no pause is waited out."""

    async def scenario(owner: Owner) -> None:
        owner.pair.back()
        await until_uploaded(owner.engine, STREAM)
        owner.reader._patience_s = 60.0
        reading = asyncio.ensure_future(owner.read(0))
        await asyncio.sleep(0.9)  # its pauses are a second by then
        assert not reading.done()
        owner.commit()
        async with asyncio.timeout(0.3):
            assert await reading == []

    run(scenario)


def test_an_owner_that_is_gone_is_waited_for_a_while() -> None:
    """Then the read fails with why, and passes once the owner answers again."""

    async def scenario(owner: Owner) -> None:
        await owner.read(0)
        await owner.shell.__aexit__(None, None, None)
        with pytest.raises(RangeOwed) as refused:
            await owner.read(0)
        assert (refused.value.start, refused.value.end) == (0, 10)
        assert refused.value.why
        owner.shell = await Shell({}).__aenter__()

    run(scenario)


def test_what_is_not_the_owners_is_refused() -> None:
    """Entries of another epoch, damaged ones, or none: nothing of it is given, and the connection ends."""
    said = [
        encode_entry_header(STREAM, 2, 0, 1, (b"x",)) + b"x",
        encode_entry_header(STREAM, 1, 0, 1, (b"x",)) + b"y",
        b"",
    ]
    for entries in said:

        async def scenario(owner: Owner) -> None:
            with pytest.raises(RangeOwed):
                await owner.read(0)
            assert owner.reader._ways.open_count == 0

        run(scenario, lambda context, request, told=entries: ReadOwedRangeResponse(entries=told))


def test_another_process_at_the_owners_address_owes_nothing() -> None:
    """A broker of another cluster, say, which owes the same offsets of a stream of the same id under the same
    epoch: it has another log, and nothing of it is given."""

    async def scenario(owner: Owner) -> None:
        owner.pair.old.wal.wal_id = b"another log's id"
        with pytest.raises(RangeOwed) as refused:
            await owner.read(0)
        assert "another write-ahead log" in refused.value.why

    run(scenario)


def test_a_reader_that_closes_leaves_nobody_waiting() -> None:
    """Reads that wait are given up with it."""

    async def scenario(owner: Owner) -> None:
        await owner.shell.__aexit__(None, None, None)
        owner.reader._patience_s = 60.0
        reading = asyncio.ensure_future(owner.read(0))
        await asyncio.sleep(0.2)
        await owner.reader.close()
        with pytest.raises(RangeOwed):
            await reading
        owner.shell = await Shell({}).__aenter__()

    run(scenario)


async def silent_owner(owner: Owner) -> asyncio.Server:
    """Broker 2 owes [10, 20) of the stream, and stands still: connections are accepted, nothing is
    answered."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    place = Listener("PLAINTEXT", "127.0.0.1", server.sockets[0].getsockname()[1], 0)
    machine = owner.machine
    request = BrokerRegistrationRequest(2, CLUSTER, b"2" * 16, listeners=[place])
    machine.epochs[2] = machine.do(request).broker_epoch
    machine.roles = [DATA]
    assert (machine.move(2), machine.seal(20)) == (0, 0)
    assert machine.owed == [(1, 0, 10), (2, 10, 20)]
    return server


def test_an_owner_that_stands_still_is_in_nobodys_way() -> None:
    """However many read what it owes: what another owes is given at once."""

    async def scenario(owner: Owner) -> None:
        async with await silent_owner(owner):
            owner.reader._patience_s = 60.0
            waiting = [asyncio.ensure_future(owner.read(10, 20)) for _ in range(64)]
            await asyncio.sleep(0.1)
            async with asyncio.timeout(1):
                assert await owner.read(0) == numbered(0, 10)
            await owner.reader.close()
            assert all(
                isinstance(one, RangeOwed) for one in await asyncio.gather(*waiting, return_exceptions=True)
            )

    run(scenario)


def test_reads_end_in_time_however_many_there_are() -> None:
    """None of them waits for those before it longer than for an answer."""

    async def scenario(owner: Owner) -> None:
        async with await silent_owner(owner):
            async with asyncio.timeout(1.5):
                reads = (owner.read(10, 20) for _ in range(64))
                found = await asyncio.gather(*reads, return_exceptions=True)
            assert all(isinstance(one, RangeOwed) for one in found)

    run(scenario)


def test_who_waits_for_an_answer_is_woken_too() -> None:
    """The owner stands still, and another has recovered its log: that is seen without waiting for it."""

    async def scenario(owner: Owner) -> None:
        async with await silent_owner(owner):
            owner.reader._patience_s = 60.0
            reading = asyncio.ensure_future(owner.read(10, 20))
            await asyncio.sleep(0.1)
            machine, before = owner.machine, owner.machine.image
            assert machine.upload(2, (10, 20))[0] == 0
            owner.reader.on_image(delta_between(before, machine.image), machine.image)
            async with asyncio.timeout(0.3):
                assert await reading == []

    run(scenario)


def test_nobody_is_shown_the_api() -> None:
    """A client's listener serves it to brokers, and tells clients of Kafka's APIs alone."""

    async def scenario(owner: Owner) -> None:
        client = await owner.shell.client()
        versions = await client.ask(18, 2)
        assert [one.api_key for one in versions.api_keys] == [18]
        answer = await client.ask(530, 0, ReadOwedRangeRequest(STREAM, 0, bytes(16), 0, 100))
        assert answer.error_code == 74, "FENCED_LEADER_EPOCH: another epoch"

    run(scenario)


OWED = OwedRange(STREAM, 4, 10, 1, 1, bytes(16))


@pytest.mark.parametrize(
    ("entries", "is_right"),
    [
        ([(4, 1), (5, 2)], True),
        ([(3, 2), (5, 5)], True),
        ([(5, 1)], False),
        ([(3, 1)], False),
        ([(4, 1), (6, 1)], False),
        ([(4, 1), (4, 1)], False),
        ([(4, 7)], False),
        ([], False),
    ],
)
def test_entries_are_those_that_were_asked_for(entries: list[tuple[int, int]], is_right: bool) -> None:
    """From 4 on: the first holds it, each goes on where the one before ended, none beyond what is owed."""
    data = b"".join(encode_entry_header(STREAM, 1, base, count, (b"x",)) + b"x" for base, count in entries)
    wanted = StreamRange(StreamId(STREAM), 4, 10)
    if is_right:
        assert [one.base_offset for one in checked_entries(memoryview(data), OWED, wanted)] == [
            base for base, _ in entries
        ]
    else:
        with pytest.raises(ObjectCorrupt):
            checked_entries(memoryview(data), OWED, wanted)
