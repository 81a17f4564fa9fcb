"""Which metadata a log of objects names, by its newest object, seal or claim; and that naming it asks nothing
more of the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from millrace.runtime.objectstore import ObjectMissing
from millrace.runtime.rand import Rand
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark, WalIdentity
from millrace.wal.log import WalOwner
from millrace.wal.object.inspection import LogInspection
from millrace.wal.object.layout import Place, log_prefix, object_key
from millrace.wal.object.log import identify
from tests.sim.loop import run_simulation
from tests.sim.objectstore import SimBucket, SimObjectStore, StoreFaults
from tests.wal.build import owner, payload
from tests.wal.object.build import copy_of, make_bucket, open_wal, recover_wal, start_wal, store_on

SOME_ID = bytes(range(16))
STEADY = StoreFaults(latency_ms=(5, 5))
FENCES = ("conditional", "reservation")
PREFIX = log_prefix("cluster", 1)


def simulated(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_simulation(lambda loop: scenario())


def knowing(epoch: int, offset: int = 0) -> WalOwner:
    """An owner that knows metadata up to there as it opens the log."""
    mark = MetadataMark(offset, epoch) if offset else NO_MARK
    return replace(owner(epoch), new_wal_id=SOME_ID, mark=mark)


async def looked(bucket: SimBucket, store: SimObjectStore | None = None) -> WalIdentity:
    found = await identify(store or store_on(copy_of(bucket)), 1, Rand(b"look"))
    assert found is not None
    return found


@pytest.mark.parametrize("fence", FENCES)
def test_naming_metadata_costs_no_request(fence: str) -> None:
    """Two owners, records, trims alone and with records, a close: the same requests with metadata as
    without."""

    async def requests(wal_id: bytes) -> Counter[str]:
        bucket, asked = make_bucket(), Counter[str]()
        for epoch in (1, 2):
            store = store_on(bucket, f"store {epoch}", STEADY)
            who = replace(
                owner(epoch), new_wal_id=wal_id, mark=MetadataMark(5, 1) if wal_id != NO_WAL_ID else NO_MARK
            )
            wal, _, journal = await start_wal(bucket, who, store, fence=fence)
            for number in range(6):
                wal.see_metadata(MetadataMark(10 * number + 100, epoch))
                await wal.mark_metadata()
                record = wal.append(payload(number))
                await journal.reach(record.end)
                if number % 2:
                    await wal.trim(record.end)
            await wal.close()
            asked += store.requests
        assert ((await looked(bucket)).mark != NO_MARK) == (wal_id != NO_WAL_ID)
        return asked

    async def scenario() -> None:
        assert await requests(SOME_ID) == await requests(NO_WAL_ID)

    simulated(scenario)


def test_a_look_reads_one_header_of_many() -> None:
    """The newest object says it: fifty others are not read."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, knowing(1, 5))
        for number in range(50):
            wal.see_metadata(MetadataMark(100 + number, 1))
            await journal.reach(wal.append(payload(number)).end)
        store = store_on(copy_of(bucket))
        assert (await looked(bucket, store)).mark == MetadataMark(149, 1)
        assert store.requests == Counter({"get": 2, "list": 1})  # root and newest object

    simulated(scenario)


@pytest.mark.parametrize("fence", FENCES)
def test_an_owner_that_wrote_nothing_is_known_by_its_seal_or_claim(fence: str) -> None:
    """Killed before its first object: its epoch, and the metadata that it knew as it opened the log."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, knowing(1, 50), fence=fence)
        await journal.reach(wal.append(payload(1)).end)
        await open_wal(bucket, knowing(4, 70), fence=fence)
        found = await looked(bucket)
        assert (found.owner_epoch, found.mark) == (4, MetadataMark(70, 4))

    simulated(scenario)


@pytest.mark.parametrize("fence", FENCES)
def test_the_last_owner_s_word_counts_alone(fence: str) -> None:
    """One that was replaced, as by a clone of its node, named later offsets of a fork of the metadata until
    it was shut out: that keeps nobody from starting again, before the new owner's first object and after
    it."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, knowing(1, 50), fence=fence)
        wal.see_metadata(MetadataMark(90, 1))
        await journal.reach(wal.append(payload(1)).end)
        wal, _, journal = await start_wal(bucket, knowing(2, 60), fence=fence)
        assert (await looked(bucket)).mark == MetadataMark(60, 2)
        await journal.reach(wal.append(payload(2)).end)
        assert (await looked(bucket)).mark == MetadataMark(60, 2)

    simulated(scenario)


def test_an_owner_that_brings_no_metadata_takes_none_back() -> None:
    """Of a kind of caller that tells of it later: what the log names stays, until more is seen."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, knowing(1, 50))
        await journal.reach(wal.append(payload(1)).end)
        wal, _, journal = await start_wal(bucket, knowing(2))
        assert (await looked(bucket)).mark == MetadataMark(50, 1)
        wal.see_metadata(MetadataMark(45, 2))
        await journal.reach(wal.append(payload(2)).end)
        assert (await looked(bucket)).mark == MetadataMark(50, 1)

    simulated(scenario)


def test_an_object_that_does_not_count_names_metadata_all_the_same() -> None:
    """What lies behind a hole was never acknowledged, but what its header says of metadata was committed when
    it was written."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, knowing(1, 50))
        for number in range(3):
            wal.see_metadata(MetadataMark(100 + number, 1))
            await journal.reach(wal.append(payload(number)).end)
        holed = copy_of(bucket)
        del holed.objects[object_key(PREFIX, Place(1, 2))]
        assert (await looked(holed)).mark == MetadataMark(102, 1)

    simulated(scenario)


def test_a_header_that_cannot_be_read_is_left_to_the_opening() -> None:
    """A look neither guesses nor fails: with the newest header damaged or cut it tells nothing of owner or
    metadata."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, knowing(1, 50))
        await journal.reach(wal.append(payload(1)).end)
        key = object_key(PREFIX, Place(1, 1))
        whole = bucket.objects[key][0]
        for content in (whole[:70] + b"\1" + whole[71:], whole[:199]):
            bucket.put(key, content)
            found = await looked(bucket)
            assert (found.owner_epoch, found.mark) == (None, NO_MARK)

    simulated(scenario)


def test_a_claim_that_goes_between_listing_and_look_is_looked_for_again() -> None:
    """A newer owner deletes it meanwhile; one that is always gone is left to the opening."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, knowing(1, 50), fence="reservation")
        await journal.reach(wal.append(payload(1)).end)
        await open_wal(bucket, knowing(2, 60), fence="reservation")
        store = store_on(copy_of(bucket))
        get_range, left = store.get_range, 1

        async def without_claim(key: str, start: int, end: int) -> bytes:
            nonlocal left
            if key.endswith("claim") and left:
                left -= 1
                raise ObjectMissing(key)
            return await get_range(key, start, end)

        store.get_range = without_claim  # type: ignore[method-assign]
        assert (await looked(bucket, store)).mark == MetadataMark(60, 2)
        left = 100
        found = await looked(bucket, store)
        assert (found.owner_epoch, found.mark) == (None, NO_MARK)

    simulated(scenario)


def test_a_log_that_named_none_begins_to() -> None:
    """After the upgrade to millrace.version 1 the next owner's objects name metadata; those before it are
    recovered as ever."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, 1)
        await journal.reach(wal.append(payload(1)).end)
        assert (await looked(bucket)).mark == NO_MARK
        wal, found, journal = await start_wal(bucket, knowing(2, 30))
        assert found == [payload(1)]
        await journal.reach(wal.append(payload(2)).end)
        assert (await looked(bucket)).mark == MetadataMark(30, 2)
        _, records = await recover_wal(bucket, knowing(3, 40))
        assert [bytes(record.payload) for record in records] == [payload(1), payload(2)]

    simulated(scenario)


def test_an_inspection_tells_the_metadata() -> None:
    """In words and as facts."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, knowing(1, 50))
        await journal.reach(wal.append(payload(1)).end)
        report = (await LogInspection(store_on(copy_of(bucket)), "cluster", 1, Rand(b"i")).run()).report()
        assert report.facts["metadata"] == {"offset": 50, "epoch": 1}
        assert "written when metadata was committed up to offset 50 of epoch 1" in report.about

    simulated(scenario)


@pytest.mark.parametrize("fence", FENCES)
def test_who_takes_a_log_is_told_what_it_named(fence: str) -> None:
    """By its last owner's newest object, also where that was written while the log was being taken; the same
    again for whoever takes it next, where the one before took it without a mark and wrote nothing."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, knowing(1, 40), fence=fence)
        assert wal.found_mark == NO_MARK
        wal.see_metadata(MetadataMark(55, 1))
        await journal.reach(wal.append(payload(1)).end)
        for epoch in (2, 3):
            taken = await open_wal(bucket, knowing(epoch), fence=fence)
            assert taken.found_mark == MetadataMark(55, 1)

    simulated(scenario)
