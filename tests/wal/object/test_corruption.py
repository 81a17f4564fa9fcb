"""What recovery does about objects that are damaged or gone, as wal.corruption says: refuses, steps over it,
or ends the log before it."""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.rand import Rand
from millrace.wal.errors import WalCorrupt
from millrace.wal.log import WalRecord
from millrace.wal.object.inspection import LogInspection
from millrace.wal.object.layout import HEADER_BYTES, object_key, root_key
from millrace.wal.record import RECORD_HEADER_BYTES
from tests.sim.loop import run_simulation
from tests.sim.objectstore import SimBucket
from tests.wal.build import Journal, payload
from tests.wal.object.build import copy_of, make_bucket, recover_wal, start_wal, store_on
from tests.wal.object.test_log import simulated

COUNT, EACH, SIZE = 6, 3, 400  # objects, records in each, bytes of a record
SPAN = RECORD_HEADER_BYTES + SIZE
POLICIES = ("refuse", "skip", "truncate")


async def log_of_objects(
    bucket: SimBucket, epochs: int = 1, *, is_closed: bool = False, trim_at: int = 0
) -> list[WalRecord]:
    """COUNT objects an owner, EACH records in each. The last owner trims `trim_at` records just before its
    last object."""
    sent: list[WalRecord] = []
    for epoch in range(1, epochs + 1):
        wal, _, journal = await start_wal(bucket, epoch)
        for number in range(COUNT):
            if trim_at and (epoch, number) == (epochs, COUNT - 1):
                trimming = asyncio.create_task(wal.trim(sent[trim_at - 1].end))
                await asyncio.sleep(0)
            sent += [wal.append(payload(1000 * epoch + 10 * number + place, SIZE)) for place in range(EACH)]
            await journal.reach(sent[-1].end)
        await asyncio.sleep(1)
        assert not trim_at or trimming.done()
        if is_closed:
            await wal.close()
    return sent


def object_of(bucket: SimBucket, epoch: int, number: int) -> str:
    """Of the `number`-th object with records: the first owner's slot 0 is a mark."""
    return f"cluster/wal/1/{epoch:020}/{number + (1 if epoch == 1 else 0):020}"


def bytes_of(records: list[WalRecord]) -> list[bytes]:
    return [bytes(record.payload) for record in records]


async def each_policy(
    bucket: SimBucket, fence: str = "conditional"
) -> tuple[WalCorrupt, list[bytes], list[bytes]]:
    """What refuse says, and what skip and truncate find; both report the same place."""
    with pytest.raises(WalCorrupt) as refused:
        await recover_wal(copy_of(bucket), 9, fence=fence)
    found = []
    for policy in ("skip", "truncate"):
        wal, records = await recover_wal(copy_of(bucket), 9, fence=fence, corruption=policy)
        assert wal.damages, policy
        if refused.value.position:
            assert wal.damages[0].start == refused.value.position, policy
        found.append(bytes_of(records))
    return refused.value, found[0], found[1]


# what is damaged -> byte of the object, records of it that skip still finds, and that truncate does
DAMAGES = {
    "header": (50, (), ()),
    "first record": (HEADER_BYTES + RECORD_HEADER_BYTES + 5, (1, 2), ()),
    "middle record": (HEADER_BYTES + SPAN + RECORD_HEADER_BYTES + 5, (0, 2), (0,)),
    "last record": (HEADER_BYTES + 2 * SPAN + RECORD_HEADER_BYTES + 5, (0, 1), (0, 1)),
    "middle record's header": (HEADER_BYTES + SPAN + 5, (0,), (0,)),
    "gone": (-1, (), ()),
}


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
@pytest.mark.parametrize("number", [0, 2, COUNT - 1])
@pytest.mark.parametrize("what", DAMAGES)
def test_each_policy_on_one_damaged_object(what: str, number: int, fence: str) -> None:
    """Refused with its position and its object; stepped over, all but what is damaged is there; truncated,
    all before it. That the last object is gone, nobody can know."""
    at, skipped, truncated = DAMAGES[what]
    if what == "gone" and number == COUNT - 1:
        return

    async def run() -> None:
        bucket = make_bucket()
        sent = []
        wal, _, journal = await start_wal(bucket, 1, fence=fence)
        for each in range(COUNT):
            sent += [wal.append(payload(10 * each + place, SIZE)) for place in range(EACH)]
            await journal.reach(sent[-1].end)
        key = object_of(bucket, 1, number)
        if at < 0:
            del bucket.objects[key]
        else:
            bucket.rot(key, at)
        error, skip, truncate = await each_policy(bucket, fence)
        own = sent[EACH * number : EACH * (number + 1)]
        before, after = sent[: EACH * number], sent[EACH * (number + 1) :]
        assert skip == bytes_of([*before, *(own[place] for place in skipped), *after])
        assert truncate == bytes_of([*before, *(own[place] for place in truncated)])
        if error.position:
            assert f"epoch 1, slot {number + 1}" in str(error)
        else:
            assert key in str(error)

    run_simulation(lambda loop: run())


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_the_newest_cannot_be_read_and_one_before_it_is_gone(fence: str) -> None:
    """Nobody can say whether the newest counted. Refused; else told as damage, by recovery and by who only
    looks; after a reset the log is sound."""

    async def run() -> None:
        bucket = make_bucket()
        sent = []
        wal, _, journal = await start_wal(bucket, 1, fence=fence)
        for each in range(COUNT):
            sent += [wal.append(payload(10 * each + place, SIZE)) for place in range(EACH)]
            await journal.reach(sent[-1].end)
        newest = object_of(bucket, 1, COUNT - 1)
        size_bytes = len(bucket.objects[newest][0])
        del bucket.objects[object_of(bucket, 1, COUNT - 2)]
        bucket.rot(newest, 50)
        before = bytes_of(sent[: EACH * (COUNT - 2)])
        error, skip, truncate = await each_policy(bucket, fence)
        assert newest in str(error)
        assert (skip, truncate) == (before, before)
        for reads_data in (True, False):
            looked = await LogInspection(store_on(bucket), "cluster", 1, Rand(b"look")).run(
                reads_data=reads_data
            )
            ((start, end, place),) = [(damage.start, damage.end, damage.place) for damage in looked.damages]
            assert (start, end) == (sent[EACH * (COUNT - 2)].position - HEADER_BYTES, start + size_bytes)
            assert object_key("cluster/wal/1/", place) == newest
            assert not looked.is_sound
        left = copy_of(bucket)
        await recover_wal(left, 2, fence=fence, corruption="skip")  # it dies before its reset
        wal, records = await recover_wal(left, 3, fence=fence, corruption="skip")
        assert (bytes_of(records), len(wal.damages)) == (before, 1)
        assert newest in left.objects
        await wal.reset()
        journal = Journal()
        wal.start(journal.on_confirmed, journal.on_failed)
        await journal.reach(wal.append(payload(77)).end)
        await asyncio.sleep(1)
        assert newest not in left.objects
        _, records = await recover_wal(left, 4, fence=fence)
        assert bytes_of(records) == [payload(77)]

    run_simulation(lambda loop: run())


@simulated
async def test_the_place_is_reported() -> None:
    """From where the damage begins to where the next sound record or object does, under both policies."""
    bucket = make_bucket()
    sent = await log_of_objects(bucket)
    bucket.rot(object_of(bucket, 1, 1), HEADER_BYTES + SPAN + RECORD_HEADER_BYTES)
    bucket.rot(object_of(bucket, 1, 3), 10)
    bucket.rot(object_of(bucket, 1, 4), 10)
    wal, _ = await recover_wal(copy_of(bucket), 2, corruption="skip")
    assert [(damage.start, damage.end, damage.place.slot) for damage in wal.damages] == [
        (sent[4].position, sent[4].end, 2),
        (sent[9].position - HEADER_BYTES, sent[15].position - HEADER_BYTES, 4),
    ]
    wal, _ = await recover_wal(copy_of(bucket), 2, corruption="truncate")
    assert [(damage.start, damage.end) for damage in wal.damages] == [(sent[4].position, sent[-1].end)]


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "cut"])
def test_several_owners(is_closed: bool) -> None:
    """Three owners' objects, and the last of the second's, which leads back to the first's, is damaged: the
    others of it lead there too."""

    async def run() -> None:
        bucket = make_bucket()
        sent = await log_of_objects(bucket, 3, is_closed=is_closed)
        last = [
            key for key in sorted(bucket.objects) if f"/{2:020}/" in key and len(bucket.objects[key][0]) > 300
        ][-1]
        bucket.rot(last, 50)
        if is_closed:  # the closing is the one that is looked at
            closing = [
                key
                for key in sorted(bucket.objects)
                if f"/{2:020}/" in key and len(bucket.objects[key][0]) == 200
            ]
            bucket.rot(closing[-1], 50)
        gone = bytes_of(sent[2 * COUNT * EACH - EACH : 2 * COUNT * EACH])
        _, skip, truncate = await each_policy(bucket)
        assert skip == [data for data in bytes_of(sent) if data not in gone]
        assert truncate == bytes_of(sent)[: 2 * COUNT * EACH - EACH]

    run_simulation(lambda loop: run())


@simulated
async def test_a_trim_that_cannot_be_read_is_no_damage() -> None:
    """The last object alone knows how far the log was trimmed, and its header is damaged: what was deleted
    before it is not taken for lost, and with truncate too all is there but the last object."""
    bucket = make_bucket()
    sent = await log_of_objects(bucket, trim_at=2 * EACH)
    assert object_of(bucket, 1, 1) not in bucket.objects
    bucket.rot(object_of(bucket, 1, COUNT - 1), 50)
    _, skip, truncate = await each_policy(bucket)
    assert skip == truncate == bytes_of(sent[2 * EACH : -EACH])
    wal, _ = await recover_wal(copy_of(bucket), 2, corruption="skip")
    assert wal.confirmed_end == sent[-1].end  # no position is given twice


@simulated
async def test_what_no_policy_helps() -> None:
    """The only object of an owner in the chain, and the seal that the log ends with: refused by each, naming
    the object."""
    bucket = make_bucket()
    await log_of_objects(bucket)
    wal, _, journal = await start_wal(bucket, 2)
    await journal.reach(wal.append(payload(1)).end)
    wal, _, journal = await start_wal(bucket, 3)
    await journal.reach(wal.append(payload(2)).end)
    for name in (f"{2:020}/{0:020}", f"{3:020}/{1:020}"):
        damaged = copy_of(bucket)
        await recover_wal(damaged, 4)
        damaged.rot(f"cluster/wal/1/{name}", 50)
        for policy in POLICIES:
            with pytest.raises(WalCorrupt, match="nobody can say" if policy != "refuse" else name):
                await recover_wal(copy_of(damaged), 5, corruption=policy)


@pytest.mark.parametrize("policy", ["skip", "truncate"])
@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_the_log_goes_on_afterwards(policy: str, fence: str) -> None:
    """Until the reset nothing is deleted, and who dies before it leaves the choice to the next. After it what
    is appended comes back to an owner that refuses damage, and what was given up is deleted."""

    async def run() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, 1, fence=fence)
        for number in range(COUNT):
            await journal.reach(wal.append(payload(number, SIZE)).end)
        bucket.rot(object_of(bucket, 1, 1), 50)
        before = {key: content for key, content in bucket.objects.items() if "/wal/" in key}
        first, found = await recover_wal(bucket, 2, fence=fence, corruption=policy)
        await asyncio.sleep(1)
        wal, again = await recover_wal(bucket, 3, fence=fence, corruption=policy)
        await asyncio.sleep(1)
        assert before.items() <= bucket.objects.items()
        assert bytes_of(found) == bytes_of(again)
        assert [damage.start for damage in first.damages] == [damage.start for damage in wal.damages]
        await wal.reset()
        journal = Journal()
        wal.start(journal.on_confirmed, journal.on_failed)
        await journal.reach(wal.append(payload(77)).end)
        await asyncio.sleep(1)
        assert not [key for key in before if key in bucket.objects and len(bucket.objects[key][0]) > 300]
        _, records = await recover_wal(bucket, 4, fence=fence)
        assert bytes_of(records) == [payload(77)]

    run_simulation(lambda loop: run())


@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_a_damaged_root_is_written_anew(fence: str, is_gone: bool) -> None:
    """Refused by name; read around by both other policies, which lose nothing by it; after a reset it is
    sound again."""

    async def run() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, 1, fence=fence)
        await journal.reach(wal.append(payload(1)).end)
        if is_gone:
            del bucket.objects[root_key(1)]
        else:
            bucket.rot(root_key(1), 50)
        with pytest.raises(WalCorrupt, match=root_key(1)):
            await recover_wal(copy_of(bucket), 2, fence=fence)
        wal, records = await recover_wal(bucket, 2, fence=fence, corruption="truncate")
        assert bytes_of(records) == [payload(1)]
        await wal.reset()
        journal = Journal()
        wal.start(journal.on_confirmed, journal.on_failed)
        await journal.reach(wal.append(payload(2)).end)
        _, records = await recover_wal(bucket, 3, fence=fence)
        assert bytes_of(records) == [payload(2)]

    run_simulation(lambda loop: run())


def test_a_log_with_nothing_but_a_damaged_root_is_refused() -> None:
    """Whose place it is cannot be said."""

    async def run() -> None:
        for policy in POLICIES:
            bucket = make_bucket()
            bucket.put(root_key(1), b"nothing to be read")
            with pytest.raises(WalCorrupt):
                await recover_wal(bucket, 2, corruption=policy)

    asyncio.run(run())
