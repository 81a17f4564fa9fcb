"""What only an object WAL does: when objects go out, what a trim costs, what is deleted, what a store in
trouble does to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.runtime.objectstore import BytesChanged, StoreDenied
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy
from millrace.runtime.rand import Rand
from millrace.wal.errors import WalClosed, WalCorrupt, WalFenced, WalFull, WalMismatch
from millrace.wal.object.layout import HEADER_BYTES, Kind, ObjectHeader, decode_header, root_key
from tests.patience import PATIENCE_S
from tests.sim.loop import run_simulation
from tests.sim.objectstore import SimBucket, StoreFault, StoreFaults
from tests.wal.build import KIB, owner, payload
from tests.wal.object.build import copy_of, make_bucket, open_wal, recover_wal, start_wal, store_on

STEADY = StoreFaults(latency_ms=(60, 60))


def simulated(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_simulation(lambda loop: test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def headers(bucket: SimBucket) -> list[ObjectHeader]:
    """Of every object of the log, in order of key."""
    return [
        decode_header(content, 0) for key, (content, _) in sorted(bucket.objects.items()) if "/wal/" in key
    ]


def keys(bucket: SimBucket) -> list[str]:
    return [
        f"{int(key.split('/')[3])}:{int(key.split('/')[4])}"
        for key in sorted(bucket.objects)
        if "/wal/" in key
    ]


@simulated
async def test_the_first_append_after_idle_goes_out_at_once() -> None:
    """No timer stands before the upload: it begins on the next iteration of the loop, and what one turn
    appends shares an object."""
    bucket = make_bucket()
    store = store_on(bucket, faults=STEADY)
    wal, _, journal = await start_wal(bucket, 1, store)
    for _ in range(3):
        before, began = store.requests["put_if_absent"], asyncio.get_running_loop().time()
        for number in range(20):
            record = wal.append(payload(number))
        assert store.requests["put_if_absent"] == before
        for _ in range(3):
            await asyncio.sleep(0)
        assert store.requests["put_if_absent"] == before + 1
        await journal.reach(record.end)
        assert round(asyncio.get_running_loop().time() - began, 3) == 0.06
        await asyncio.sleep(1)


@simulated
async def test_batches_grow_while_uploads_are_under_way() -> None:
    """A record every millisecond for a second: far fewer objects than records, several side by side; ten
    times the latency gives fewer still."""
    counts = []
    for latency_ms in (60, 600):
        bucket = make_bucket()
        store = store_on(bucket, faults=StoreFaults(latency_ms=(latency_ms, latency_ms)))
        wal, _, journal = await start_wal(bucket, 1, store)
        before = store.requests["put_if_absent"]
        for number in range(1000):
            record = wal.append(payload(number))
            await asyncio.sleep(0.001)
        await journal.reach(record.end)
        counts.append(store.requests["put_if_absent"] - before)
    assert 25 <= counts[0] <= 60
    assert 8 <= counts[1] <= 16
    assert counts[0] > 2 * counts[1]


@simulated
async def test_no_record_waits_longer_than_the_interval() -> None:
    """With many uploads under way and the interval at 30 ms, each record's upload has begun 30 ms after its
    append, and no more uploads than the interval allows."""
    bucket = make_bucket()
    store = store_on(bucket, faults=StoreFaults(latency_ms=(500, 500)))
    wal, _, journal = await start_wal(bucket, 1, store, batch_interval_ms=30, uploads_max=100)
    loop = asyncio.get_running_loop()
    sent = []
    for number in range(300):
        sent.append((loop.time(), wal.append(payload(number)).end))
        await asyncio.sleep(0.001)
    await journal.reach(sent[-1][1])
    ends = {header.end: header for header in headers(bucket)}
    assert 10 <= len(ends) <= 13
    assert loop.time() - sent[-1][0] <= 0.5 + 0.03 + 0.002


@simulated
async def test_an_interval_bounds_requests_whatever_producers_do() -> None:
    """For ten seconds on a store of 60 ms, an interval of 100: one producer that sends when it was answered,
    and 120 sends a second, make ten uploads a second; after a second of rest the first goes out at once."""
    loop = asyncio.get_running_loop()
    for is_closed in (True, False):
        bucket = make_bucket()
        store = store_on(bucket, faults=STEADY)
        wal, _, journal = await start_wal(bucket, 1, store, batch_interval_ms=100)
        before, until, number = store.requests["put_if_absent"], loop.time() + 10, 0
        while loop.time() < until:
            record, number = wal.append(payload(number)), number + 1
            await (journal.reach(record.end) if is_closed else asyncio.sleep(1 / 120))
        assert 95 <= store.requests["put_if_absent"] - before <= 102
        await asyncio.sleep(1)
        began = loop.time()
        await journal.reach(wal.append(payload(number)).end)
        assert loop.time() - began < 0.061
        await wal.close()


@simulated
async def test_a_batch_is_closed_when_it_is_full() -> None:
    """Records beyond the size of a batch go out in the next object at once, and a larger record is an object
    of its own."""
    bucket = make_bucket()
    store = store_on(bucket, faults=STEADY)
    wal, _, journal = await start_wal(bucket, 1, store, max_record_bytes=80 * KIB)
    for number in range(15):
        wal.append(payload(number, 10 * KIB))
    record = wal.append(payload(99, 80 * KIB))
    await journal.reach(record.end)
    counts = [header.record_count for header in headers(bucket)]
    assert counts == [0, 6, 6, 3, 1]
    assert all(header.body_bytes <= 64 * KIB for header in headers(bucket)[:-1])


@simulated
async def test_uploads_end_in_any_order_and_are_acknowledged_in_one() -> None:
    """The first upload is the slowest: nothing is confirmed before it, then everything at once; never more
    side by side than allowed."""
    bucket = make_bucket()
    store = store_on(bucket, faults=STEADY)
    wal, _, journal = await start_wal(bucket, 1, store, uploads_max=3)
    store.plan("put_if_absent", StoreFault.LOST_REQUEST)
    told = len(journal.ends)
    for number in range(5):
        last = wal.append(payload(number))
        await asyncio.sleep(0.1)
        assert len(store._under_way) <= 3
    assert keys(bucket) == ["1:0", "1:2", "1:3"]
    assert len(journal.ends) == told
    await journal.reach(last.end)
    assert len(journal.ends) <= told + 2


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_bytes_that_change_between_two_puts_end_the_log(fence: str) -> None:
    """A put is refused for now and a record changes in memory: the batch is not put again, nothing is
    confirmed, and its producer is told."""

    async def run() -> None:
        bucket = make_bucket()
        sim = store_on(bucket, faults=STEADY)
        store = RetryingObjectStore(sim, Rand(b"r"), RetryPolicy(attempts_max=1))
        wal, _, journal = await start_wal(bucket, 1, store, fence=fence)
        verb = "put_if_absent" if fence == "conditional" else "put"
        before, stored = sim.requests[verb], dict(bucket.objects)
        sim.plan(verb, StoreFault.REFUSED)
        record = wal.append(payload(1, 1000))
        await asyncio.sleep(0.03)
        assert sim.requests[verb] == before + 1
        assert wal._arena is not None
        memory = wal._arena.view
        memory[bytes(memory).index(record.payload)] ^= 1
        await journal.reach(record.end)
        assert [type(error) for error in journal.failures] == [BytesChanged]
        assert (sim.requests[verb], bucket.objects, journal.ends) == (before + 1, stored, [])

    run_simulation(lambda loop: run())


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_a_store_in_trouble_costs_time_and_nothing_else(fence: str) -> None:
    """The store refuses, is silent, loses answers, is full and denies for half a minute: no error reaches the
    log's user, appends stop at the bound and go on after it, all is confirmed in order and recovered."""

    async def run() -> None:
        bucket = make_bucket()
        store = store_on(bucket, faults=StoreFaults(latency_ms=(5, 50), timeout_ms=700))
        wal, _, journal = await start_wal(bucket, 1, store, fence=fence)
        sent: list[bytes] = []
        store.faults = StoreFaults(
            refused=200,
            throttled=100,
            lost_request=100,
            lost_answer=100,
            late=100,
            latency_ms=(5, 50),
            timeout_ms=700,
        )
        is_full = False
        for number in range(400):
            if number == 150:
                bucket.is_away = True
            if number == 250:
                bucket.is_away, bucket.capacity_bytes = False, 1
            if number == 380:
                bucket.capacity_bytes = None
            data = payload(number, 1 + number * 97 % 4000)
            try:
                record = wal.append(data)
                sent.append(data)
            except WalFull:
                is_full = True
            await asyncio.sleep(0.1)
        assert is_full
        await journal.reach(record.end)
        assert not journal.failures
        store.faults = StoreFaults()
        await wal.close()
        assert {
            "REFUSED",
            "THROTTLED",
            "LOST_REQUEST",
            "LOST_ANSWER",
            "LATE",
            "AWAY",
            "FULL",
        } <= bucket.hits.keys()
        _, records = await recover_wal(bucket, 2, fence=fence)
        assert [bytes(record.payload) for record in records] == sent

    run_simulation(lambda loop: run())


@simulated
async def test_credentials_that_expire_are_waited_for() -> None:
    """A store that denies is asked again, since keys are renewed; nothing fails meanwhile."""
    bucket = make_bucket()
    store = store_on(bucket)
    wal, _, journal = await start_wal(bucket, 1, store)
    put, denials = store.put_if_absent, []

    async def deny(key: str, parts: Any) -> None:
        if len(denials) < 4:
            denials.append(key)
            raise StoreDenied(key, "ExpiredToken")
        await put(key, parts)

    store.put_if_absent = deny  # type: ignore[method-assign]
    record = wal.append(b"patience")
    await journal.reach(record.end)
    assert len(denials) == 4
    assert not journal.failures


@simulated
async def test_an_error_that_time_does_not_mend_ends_the_log() -> None:
    """What the store was never to raise is told once, nothing is confirmed after it, and appends are
    refused."""
    bucket = make_bucket()
    store = store_on(bucket)
    wal, _, journal = await start_wal(bucket, 1, store)

    async def fail(key: str, parts: Any) -> None:
        raise ValueError(key)

    store.put_if_absent = fail  # type: ignore[method-assign]
    for number in range(3):
        wal.append(payload(number))
        await asyncio.sleep(0.02)
        if journal.failures:
            break
    assert [type(error) for error in journal.failures] == [ValueError]
    with pytest.raises(WalClosed):
        wal.append(b"more")
    with pytest.raises(WalClosed):
        await wal.reset()
    await wal.close()


@simulated
async def test_an_acknowledgement_is_one_request() -> None:
    """Each append alone, behind the one before: one conditional put, and no look at who owns the log."""
    bucket = make_bucket()
    store = store_on(bucket)
    wal, _, journal = await start_wal(bucket, 1, store)
    before = sum(store.requests.values())
    for number in range(20):
        await journal.reach(wal.append(payload(number)).end)
    assert sum(store.requests.values()) == before + 20
    await wal.close()


@pytest.mark.parametrize("is_first", [True, False])
def test_an_object_that_could_not_be_made_holds_up_nobody(is_first: bool) -> None:
    """An error before its upload begins, be it of the first or of one that waited for a free slot: told once,
    and who waits is let go."""

    async def scenario() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, 1, store_on(bucket, faults=STEADY), uploads_max=1)
        stamp = wal._writer._stamp
        left = 0 if is_first else 1

        def break_down(batch: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise ValueError("cannot be made")
            return stamp(batch)

        wal._writer._stamp = break_down
        ends = []
        for number in range(3):
            ends.append(wal.append(payload(number)).end)
            await asyncio.sleep(0.01)
            if journal.failures:
                break
        await journal.reach(1 << 40)
        assert [type(error) for error in journal.failures] == [ValueError]
        assert journal.end < ends[-1]
        with pytest.raises(WalClosed):
            wal.append(b"more")
        with pytest.raises(WalClosed):
            await wal.reset()
        await wal.close()

    run_simulation(lambda loop: scenario())


@simulated
async def test_a_replaced_owner_is_told_once_by_whom() -> None:
    """Another owner takes the log: the next append's upload fails with that owner's epoch, and nothing is
    confirmed any more."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 1)
    record = wal.append(payload(1))
    await journal.reach(record.end)
    _, records = await recover_wal(bucket, 5)
    wal.append(payload(2))
    await journal.reach(1 << 40)
    (error,) = journal.failures
    assert isinstance(error, WalFenced)
    assert (error.own_epoch, error.found_epoch) == (1, 5)
    assert [bytes(found.payload) for found in records] == [payload(1)]
    assert journal.end == record.end
    await wal.close()


@simulated
async def test_a_replaced_owner_is_fenced_though_the_seal_cannot_be_read() -> None:
    """What lies in its slot is not its own, whosever it was: that is no damage of its log."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 1)
    await journal.reach(wal.append(payload(1)).end)
    await recover_wal(bucket, 5)
    seal = max(key for key in bucket.objects if f"/{1:020}/" in key)
    bucket.rot(seal, 50)
    wal.append(payload(2))
    await journal.reach(1 << 40)
    (error,) = journal.failures
    assert str(error) == "the WAL was taken in an epoch that cannot be told any more, not before our own, 1"
    await wal.close()


@simulated
async def test_a_start_that_is_refused_shuts_nobody_out() -> None:
    """With the other fence, or where the root is gone, or another cluster's: it leaves no claim; whoever has
    the log goes on, or starts."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 1)
    await journal.reach(wal.append(payload(1)).end)
    with pytest.raises(WalMismatch, match="fence"):
        await recover_wal(bucket, 2, fence="reservation")
    _, records = await recover_wal(bucket, 3)
    assert [bytes(record.payload) for record in records] == [payload(1)]
    for root in (None, "another cluster's"):
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, 1, fence="reservation")
        await journal.reach(wal.append(payload(1)).end)
        del bucket.objects[root_key(1)]
        if root is not None:
            other = await open_wal(bucket, owner(1, "other"), fence="reservation")
            assert [record async for record in other.recover()] == []
        keys = sorted(bucket.objects)
        with pytest.raises((WalMismatch, WalCorrupt)):
            await recover_wal(bucket, 2, fence="reservation")
        assert sorted(bucket.objects) == keys
        await journal.reach(wal.append(payload(2)).end)
        assert not journal.failures


@simulated
async def test_an_owner_replaced_before_it_wrote_is_fenced_at_its_start() -> None:
    """Whoever opened the log and was overtaken learns of it before it takes the first append."""
    bucket = make_bucket()
    wal, _, _ = await start_wal(bucket, 1)
    wal.append(payload(1))
    await wal.close()
    slow = await open_wal(bucket, owner(2))
    await recover_wal(bucket, 3)
    assert len([record async for record in slow.recover()]) == 1
    with pytest.raises(WalFenced):
        await slow.reset()


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
@pytest.mark.parametrize("is_rotten", [False, True], ids=["sound", "rotten"])
def test_an_owner_replaced_while_it_recovers_is_fenced(fence: str, is_rotten: bool) -> None:
    """A newer owner has trimmed and deleted what a slow one is about to read: that one is fenced, and does
    not speak of damage; also where what the newer one put into its place cannot be read."""

    async def run() -> None:
        bucket = make_bucket()
        wal, _, _ = await start_wal(bucket, 1, fence=fence)
        wal.append(payload(1))
        await wal.close()
        slow = await open_wal(bucket, owner(2), fence=fence)
        newer, _, journal = await start_wal(bucket, 3, fence=fence)
        await newer.reset()
        await journal.reach(newer.append(payload(2)).end)
        await asyncio.sleep(1)
        if is_rotten:
            for key in [key for key in bucket.objects if f"/{2:020}/" in key]:
                bucket.rot(key, 50)
        with pytest.raises(WalFenced) as fenced:
            assert [record async for record in slow.recover()]
        assert fenced.value.found_epoch == (-1 if is_rotten and fence == "conditional" else 3)

    run_simulation(lambda loop: run())


@simulated
async def test_a_trim_rides_with_records() -> None:
    """While records flow a trim costs no object: as many as without it, and it is durable with the next."""
    bucket = make_bucket()
    store = store_on(bucket, faults=STEADY)
    wal, _, journal = await start_wal(bucket, 1, store, trim_wait_ms=500)
    before = store.requests["put_if_absent"]
    for number in range(5):
        trimming = asyncio.create_task(wal.trim(journal.end))
        await asyncio.sleep(0)
        record = wal.append(payload(number))
        await journal.reach(record.end)
        await asyncio.sleep(0.1)
        assert trimming.done()
    assert store.requests["put_if_absent"] == before + 5


@simulated
async def test_a_trim_is_not_taken_for_an_earlier_one() -> None:
    """A trim that is asked for while an upload carries an earlier one is done when a later object has carried
    it, not when that upload is."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 1, store_on(bucket, faults=STEADY))
    first, second = wal.append(payload(1)), wal.append(payload(2))
    await journal.reach(second.end)
    early = asyncio.create_task(wal.trim(first.end))
    await asyncio.sleep(0)
    third = wal.append(payload(3))
    await asyncio.sleep(0.01)
    late = asyncio.create_task(wal.trim(second.end))
    await journal.reach(third.end)
    await early
    assert not late.done()
    await late
    _, records = await recover_wal(copy_of(bucket), 2)
    assert [bytes(record.payload) for record in records] == [payload(3)]


@simulated
async def test_trims_of_an_idle_log_share_a_mark() -> None:
    """Nothing is appended: a hundred trims asked for at once cost one object, and a trim of what is trimmed
    costs none."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 1)
    records = [wal.append(payload(number)) for number in range(100)]
    await journal.reach(records[-1].end)
    await asyncio.gather(*(wal.trim(record.end) for record in records))
    await wal.trim(records[-1].end)
    await wal.reset()
    await asyncio.sleep(1)
    assert keys(bucket) == ["1:2"]
    assert headers(bucket)[0].record_count == 0


@simulated
async def test_objects_below_the_trim_are_deleted() -> None:
    """After each trim only what it left remains, deleted in bulk; other owners' objects too, once ours
    carries the trim; a seal over an owner that had not closed stays."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 1)
    for number in range(10):
        record = wal.append(payload(number))
        await journal.reach(record.end)
    assert len(keys(bucket)) == 11
    store = store_on(bucket, "second")
    wal, records, journal = await start_wal(bucket, 2, store)
    record = wal.append(payload(10))
    await journal.reach(record.end)
    assert keys(bucket) == [*(f"1:{slot}" for slot in range(12)), "2:0"]
    await wal.trim(record.end)
    await asyncio.sleep(1)
    assert keys(bucket) == ["1:11", "2:1"]
    assert store.requests["delete"] == 1
    await wal.close()
    wal, _, _ = await start_wal(bucket, 3)
    await wal.close()
    assert keys(bucket) == ["1:11", "2:1", "2:2", "2:3", "3:0"]
    await (await start_wal(bucket, 4))[0].close()
    assert len(records) == 10


@simulated
async def test_deletes_that_fail_are_tried_again() -> None:
    """The store refuses deletes: nothing else notices; the next trim asks again, and at the latest the next
    owner deletes what is left."""
    bucket = make_bucket()
    store = store_on(bucket)
    wal, _, journal = await start_wal(bucket, 1, store)
    for count in (6, 11):
        store.plan("delete", StoreFault.REFUSED)
        for number in range(4):
            record = wal.append(payload(number))
            await journal.reach(record.end)
        await wal.trim(record.end)
        await asyncio.sleep(1)
        assert len(keys(bucket)) == count
    store.cut(takes_effect=False)
    await start_wal(bucket, 2)
    await asyncio.sleep(1)
    assert len(keys(bucket)) == 2


@simulated
async def test_room_is_bounded_by_what_is_unflushed() -> None:
    """A store that takes nothing: appends end at the bound for what is not confirmed, below the capacity."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 1, unflushed_bytes_max=256 * KIB, capacity_bytes=4096 * KIB)
    bucket.is_away = True
    while wal.room_bytes >= 1000:
        wal.append(bytes(1000))
    assert 200 * KIB < wal.used_bytes <= 256 * KIB
    with pytest.raises(WalFull):
        wal.append(bytes(40 * KIB))
    bucket.is_away = False
    await journal.reach(wal.used_bytes)
    assert wal.room_bytes > 100 * KIB


@simulated
async def test_a_close_does_not_wait_for_ever() -> None:
    """The store is away: a close gives up after its bound; the next owner finds what was confirmed, and
    perhaps more."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 1, close_wait_ms=3000)
    record = wal.append(payload(1))
    await journal.reach(record.end)
    bucket.is_away = True
    wal.append(payload(2))
    began = asyncio.get_running_loop().time()
    await wal.close()
    assert asyncio.get_running_loop().time() - began < 5
    bucket.is_away = False
    _, records = await recover_wal(bucket, 2)
    assert [bytes(found.payload) for found in records][:1] == [payload(1)]


@pytest.mark.parametrize("waits_for", ["trim", "mark", "root"])
def test_a_reset_ends_with_a_close(waits_for: str) -> None:
    """The store does not answer while a log is reset: a close ends the wait, whatever it is for, and whoever
    resets is told; the next owner resets it."""

    async def run() -> None:
        bucket = make_bucket()
        changes: dict[str, Any] = {"fence": "conditional", "corruption": "skip"}
        if waits_for != "root":
            changes = {"fence": "reservation"}
        wal, _, journal = await start_wal(bucket, 1, **changes)
        first = wal.append(payload(1))
        await journal.reach(first.end)
        if waits_for == "mark":
            await wal.trim(first.end)
        store = store_on(bucket, "second")
        if waits_for == "root":
            bucket.rot(root_key(1), 20)
            store.plan("put", *[StoreFault.REFUSED] * 100)
        wal, _ = await recover_wal(bucket, 2, store, close_wait_ms=3000, **changes)
        bucket.is_away = waits_for != "root"
        resetting = asyncio.create_task(wal.reset())
        await asyncio.sleep(10)
        assert not resetting.done()
        await wal.close()
        with pytest.raises(WalClosed):
            await asyncio.wait_for(resetting, PATIENCE_S)
        bucket.is_away = False
        wal, _ = await recover_wal(bucket, 3, **changes)
        await wal.reset()
        await wal.close()

    run_simulation(lambda loop: run())


@simulated
async def test_damage_is_named_by_its_place() -> None:
    """A byte flipped in a header or a record, an object cut short, one replaced by another, one gone:
    WalCorrupt with the position, whichever object it is, and mended everything is read."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 1)
    sent = []
    for number in range(4):
        sent.append(wal.append(payload(number, 500)))
        await journal.reach(sent[-1].end)
    names = [key for key in sorted(bucket.objects) if "/wal/" in key]
    for number, name in enumerate(names[1:]):
        whole = bucket.objects[name]
        position = sent[number].position
        for at, place in (
            (20, position - HEADER_BYTES),
            (HEADER_BYTES + 5, position),
            (HEADER_BYTES + 300, position),
        ):
            bucket.rot(name, at)
            assert await damage(bucket) in (place, 0)
            bucket.rot(name, at)
        for content in (whole[0][:-1], whole[0] + b"x", whole[0][:100], bucket.objects[names[0]][0], None):
            if content is None:
                del bucket.objects[name]
                if name == names[-1]:
                    bucket.objects[name] = whole
                    continue  # an object that was never there: the log is one shorter
            else:
                bucket.objects[name] = (content, 1)
            assert await damage(bucket) in (position - HEADER_BYTES, position, 0)
            bucket.objects[name] = whole
    _, records = await recover_wal(bucket, 2)
    assert len(records) == 4


async def damage(bucket: SimBucket) -> int:
    """The position that is named."""
    with pytest.raises(WalCorrupt) as corrupt:
        await recover_wal(copy_of(bucket), 2)
    return corrupt.value.position


@simulated
async def test_recovery_reads_ahead_within_its_bound() -> None:
    """Forty objects of 10 KiB on a store that takes 0.1 s for each: ten side by side where 100 KiB may be
    ahead, one by one where nothing may."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 1, store_on(bucket, faults=StoreFaults()))
    for number in range(40):
        await journal.reach(wal.append(payload(number, 10_000)).end)
    loop, spent_s, most = asyncio.get_running_loop(), [], []
    for ahead_bytes in (100_000, 1):
        store = store_on(copy_of(bucket), faults=StoreFaults(latency_ms=(100, 100)))
        opened = await open_wal(bucket, owner(2), store, ahead_bytes=ahead_bytes)
        under_way, began, count = [], loop.time(), 0
        async for record in opened.recover():
            assert bytes(record.payload) == payload(count, 10_000)
            count += 1
            under_way.append(len(store._under_way))
        spent_s.append(loop.time() - began)
        most.append(max(under_way))
        assert count == 40
    assert 0.35 <= spent_s[0] <= 0.7
    assert most[0] <= 10
    assert spent_s[1] >= 4.0
    assert most[1] <= 1


@simulated
async def test_a_listing_goes_on_where_it_was_left() -> None:
    """Two thousand keys in pages, and the store fails again and again between them: no page is asked for
    twice once it was given."""
    bucket = make_bucket()
    wal, _, journal = await start_wal(bucket, 3)
    await journal.reach(wal.append(payload(1)).end)
    for number in range(2200):
        bucket.put(f"cluster/wal/1/{0:020}/{number:020}", b"litter")
    store = store_on(bucket, "listing")
    store.plan(
        "list", *[StoreFault.REFUSED] * 30, StoreFault.NONE, *[StoreFault.LOST_ANSWER] * 20, StoreFault.NONE
    )
    _, records = await recover_wal(bucket, 4, store)
    assert [bytes(record.payload) for record in records] == [payload(1)]
    assert store.requests["list"] == 30 + 20 + 2 * 3  # it looks once more when it has sealed
    await asyncio.sleep(60)
    assert not any("/00000000000000000000/" in key for key in bucket.objects)


@simulated
async def test_a_closing_is_the_last_object() -> None:
    """A close in order leaves a word that its owner writes no more, with what it knew last."""
    bucket = make_bucket()
    wal, _, _ = await start_wal(bucket, 1)
    wal.append(payload(1))
    await wal.close()
    assert [header.kind for header in headers(bucket)] == [Kind.RECORDS, Kind.RECORDS, Kind.CLOSING]
    assert headers(bucket)[-1].stamp.confirmed_slot in (1, 2)


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_after_a_reset_nothing_counts_that_arrives_late(is_trimmed: bool) -> None:
    """A put of an owner that is dead lands behind what the next one read, without a seal to hold it off. That
    one reset the log, acted on it and died before it wrote: the third finds nothing. (Streams were closed
    without these records; others of the same object would be taken.)"""

    async def run() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, 1, fence="reservation")
        first = wal.append(payload(1))
        await journal.reach(first.end)
        if is_trimmed:
            await wal.trim(first.end)
        late = wal.append(payload(2))
        await journal.reach(late.end)
        name = max(key for key in bucket.objects if "/wal/" in key and not key.endswith("claim"))
        content = bucket.objects.pop(name)[0]
        wal, records = await recover_wal(bucket, 2, fence="reservation")
        assert [bytes(record.payload) for record in records] == ([] if is_trimmed else [payload(1)])
        await wal.reset()
        bucket.put(name, content)
        _, records = await recover_wal(bucket, 3, fence="reservation")
        assert not records

    run_simulation(lambda loop: run())
