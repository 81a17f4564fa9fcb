"""An object WAL that is looked at: every object has its kind, damage is found where recovery finds it, and
the owner notices nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace.runtime.rand import Rand
from millrace.wal.log import WalRecord
from millrace.wal.object.inspection import Inspected, Kind, LogInspection, nodes_of
from millrace.wal.object.layout import HEADER_BYTES, Place, decode_header, root_key
from millrace.wal.record import RECORD_HEADER_BYTES
from tests.sim.loop import run_simulation
from tests.sim.objectstore import SimBucket, SimObjectStore, StoreFaults
from tests.wal.build import owner as owner_of
from tests.wal.build import payload
from tests.wal.object.build import copy_of, make_bucket, open_wal, recover_wal, start_wal, store_on
from tests.wal.object.test_log import simulated

PREFIX = "cluster/wal/1/"


async def look(
    bucket: SimBucket,
    store: SimObjectStore | None = None,
    on_record: Callable[[WalRecord], None] = lambda record: None,
    *,
    reads_data: bool = True,
) -> Inspected:
    """Every request of it reads."""
    store = store or store_on(bucket, "look")
    found = await LogInspection(store, "cluster", 1, Rand(b"look")).run(on_record, reads_data=reads_data)
    assert store.requests.keys() <= {"list", "get", "head"}
    return found


def counts(found: Inspected) -> dict[str, int]:
    return {kind: count for kind, (count, _) in found.counts().items()}


async def two_owners(bucket: SimBucket, fence: str = "conditional") -> list[bytes]:
    """The first cut off, the second still there; the first's last two records are trimmed by nobody."""
    sent = []
    for epoch in (1, 2):
        wal, _, journal = await start_wal(bucket, epoch, fence=fence)
        for number in range(4):
            record = wal.append(payload(10 * epoch + number, 300))
            sent.append((record.end, payload(10 * epoch + number, 300)))
            await journal.reach(record.end)
    await wal.trim(sent[1][0])
    await asyncio.sleep(1)
    return [data for end, data in sent[2:]]


@simulated
async def test_every_object_has_its_kind() -> None:
    """Records, marks, the seal between two owners, the root; what is below the head, behind a newer owner's
    beginning or behind a hole; and keys that no log would have made."""
    bucket = make_bucket()
    sent = await two_owners(bucket)
    some = bucket.objects[f"{PREFIX}{2:020}/{0:020}"][0]
    bucket.put(f"{PREFIX}{1:020}/{1:020}", some)  # a late duplicate
    bucket.put(f"{PREFIX}{1:020}/{8:020}", some)  # behind the seal
    later = replace(decode_header(some, 0), place=Place(2, 8)).encode() + some[HEADER_BYTES:]
    bucket.put(f"{PREFIX}{2:020}/{8:020}", later)  # behind a hole
    bucket.put(f"{PREFIX}hello", b"what is this")
    records: list[bytes] = []
    found = await look(bucket, on_record=lambda record: records.append(bytes(record.payload)))
    assert records == sent
    assert counts(found) == {
        "root": 1,
        "records": 6,
        "mark": 1,
        "seal": 1,
        "under way": 1,
        "litter": 2,
        "strange key": 1,
    }
    assert [(one.key[-2:], one.what[:6]) for one in found.held if one.kind is Kind.LITTER] == [
        ("01", "below "),
        ("08", "behind"),
    ]
    assert found.is_sound
    assert (found.epoch, found.is_closed, found.record_count) == (2, False, 6)
    assert sum(count for count, _ in found.counts().values()) == len(bucket.objects)
    assert found.counts()["litter"] == (2, 2 * len(some))
    wal, _ = await recover_wal(copy_of(bucket), 3)
    assert (wal.confirmed_end, wal._taken.extent.trim) == (found.end, found.trim)


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_a_log_that_was_closed_and_one_that_never_was(fence: str) -> None:
    """Closed in order is told from cut off; where nobody ever wrote there is nothing, and that is no
    damage."""

    async def run() -> None:
        bucket = make_bucket()
        assert counts(await look(bucket)) == {}
        assert await nodes_of(store_on(bucket)) == []
        wal, _, journal = await start_wal(bucket, 1, fence=fence)
        await journal.reach(wal.append(payload(1)).end)
        assert not (await look(bucket)).is_closed
        await wal.close()
        found = await look(bucket)
        assert found.is_closed
        assert found.is_sound
        assert counts(found) == {"root": 1, "records": 1, "mark": 2} | (
            {"claim": 1} if fence == "reservation" else {}
        )
        assert await nodes_of(store_on(bucket)) == [(1, "cluster")]

    run_simulation(lambda loop: run())


@pytest.mark.parametrize("at", [50, HEADER_BYTES + RECORD_HEADER_BYTES + 9, -1])
@pytest.mark.parametrize(
    "name", [f"{1:020}/{3:020}", f"{1:020}/{4:020}", f"{2:020}/{1:020}", f"{2:020}/{4:020}"]
)
def test_damage_is_found_where_recovery_finds_it(name: str, at: int) -> None:
    """A byte of a header or of a record, or a whole object, of either owner: the same places as recovery
    steps over. What is gone is found without reading any object."""

    async def run() -> None:
        bucket = make_bucket()
        await two_owners(bucket)
        if at < 0:
            if name == f"{2:020}/{4:020}":
                return  # of the newest nobody can know
            del bucket.objects[PREFIX + name]
            quick = await look(bucket, reads_data=False)
            assert [f"{damage.place.epoch:020}/{damage.place.slot:020}" for damage in quick.damages] == [name]
        else:
            if at >= len(bucket.objects[PREFIX + name][0]):
                return  # the mark
            bucket.rot(PREFIX + name, at)
        found = await look(bucket)
        wal, records = await recover_wal(copy_of(bucket), 3, corruption="skip")
        assert found.damages == wal.damages
        assert found.damages
        assert found.record_count == len(records)
        assert not found.is_sound

    run_simulation(lambda loop: run())


@simulated
async def test_what_hides_the_whole_log_is_a_fault() -> None:
    """A root that is gone or damaged, and a seal at the end that cannot be read, are named."""
    bucket = make_bucket()
    await two_owners(bucket)
    await open_wal(bucket, owner_of(3))
    seal = f"{PREFIX}{2:020}/{5:020}"
    for spoil, words in (
        (lambda one: one.rot(seal, 60), "nobody can say who owns"),
        (lambda one: one.rot(root_key(1), 60), root_key(1)),
        (lambda one: one.delete([root_key(1)]), "is gone, where the log begins"),
    ):
        damaged = copy_of(bucket)
        spoil(damaged)
        found = await look(damaged)
        assert not found.is_sound
        assert words in found.faults[0]


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_an_owner_at_work_is_not_disturbed(fence: str) -> None:
    """While it appends, trims and deletes, and another takes the log from it, it is looked at again and
    again: always sound, and no owner is fenced by that."""

    async def run() -> None:
        bucket = make_bucket()
        looks = [0, 0]
        is_over = False

        async def keep_looking() -> None:
            while not is_over:
                found = await look(
                    bucket, store_on(bucket, f"look {looks[0]}", StoreFaults(latency_ms=(1, 60)))
                )
                assert found.is_sound, (found.damages, found.faults)
                looks[0] += 1
                looks[1] += found.record_count

        looking = asyncio.create_task(keep_looking())
        for epoch in (1, 3):
            wal, _, journal = await start_wal(bucket, epoch, fence=fence)
            for number in range(300):
                record = wal.append(payload(number, 2000))
                await asyncio.sleep(0.01)
                if number % 20 == 19:
                    await journal.reach(record.end)
                    await wal.trim(record.end - 5000)
            await journal.reach(record.end)
            assert not journal.failures
        is_over = True
        await looking
        assert looks[0] > 5
        assert looks[1] > 50

    run_simulation(lambda loop: run())
