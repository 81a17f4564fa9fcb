"""What every write-ahead log must do, whatever it is made of: checks to run against a `Yard`, which knows how
to make and to kill one.

A check takes a yard and owns it. Not here: what only one kind does (its own folder's tests).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import pytest

from millrace.protocol.crc32c import crc32c
from millrace.runtime.rand import Rand
from millrace.wal.errors import WalClosed, WalFenced, WalFull, WalMismatch
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark, WalIdentity
from millrace.wal.log import WalOwner, WriteAheadLog
from tests.wal.build import KIB, Journal, owner, payload

SOME_ID = bytes(range(16))


class Yard(Protocol):
    """A place with at most one log of a quarter of a MiB to half a MiB."""

    record_bytes_max: int

    async def open(self, owner: WalOwner) -> WriteAheadLog:
        """As the implementation opens it: neither recovered nor started."""
        ...

    async def identify(self) -> WalIdentity:
        """What the log says of itself, where nobody has it open."""
        ...

    def crash(self) -> None:
        """Ends whatever log is open here as a power cut does."""
        ...

    def survivor(self) -> Yard:
        """The place as a power cut at this instant would leave it, beside this one, which goes on."""
        ...


async def recovered(yard: Yard, epoch: int, wal_id: bytes = NO_WAL_ID) -> tuple[WriteAheadLog, list[bytes]]:
    """`wal_id`: for a log that has none."""
    wal = await yard.open(replace(owner(epoch), new_wal_id=wal_id))
    return wal, [bytes(record.payload) async for record in wal.recover()]


async def started(
    yard: Yard, epoch: int, wal_id: bytes = NO_WAL_ID
) -> tuple[WriteAheadLog, list[bytes], Journal]:
    wal, found = await recovered(yard, epoch, wal_id)
    journal = Journal()
    wal.start(journal.on_confirmed, journal.on_failed)
    return wal, found, journal


async def records_come_back_in_order_after_a_close(yard: Yard) -> None:
    """What was appended, in parts of several kinds, is recovered whole and in order by the next owner."""
    wal, found, journal = await started(yard, 1)
    assert found == []
    sent = []
    for number in range(40):
        data = payload(number, 10 + 977 * number % 4000)
        record = wal.append(data[:3], bytearray(data[3:7]), memoryview(data)[7:])
        assert bytes(record.payload) == data
        assert record.payload.readonly
        sent.append(data)
    await wal.close()
    assert journal.end >= record.end
    assert (await recovered(yard, 2))[1] == sent


async def what_is_confirmed_survives_a_crash(yard: Yard) -> None:
    """At every iteration of the loop, what was confirmed is there for the next owner, in order, and nothing
    that was never sent."""
    wal, _, journal = await started(yard, 1)
    sent = []
    for number in range(30):
        data = payload(number, 1500)
        sent.append((wal.append(data).end, data))
        await asyncio.sleep(0.001 * (number % 3))
        told = journal.end
        found = (await recovered(yard.survivor(), 2))[1]
        assert found == [data for _, data in sent][: len(found)]
        assert len(found) >= sum(end <= told for end, _ in sent)


async def owners_continue_one_log(yard: Yard) -> None:
    """Through crashes and closes positions only grow, and each owner finds what those before it left, in
    order."""
    live: list[bytes] = []
    last = 0
    for epoch in range(1, 7):
        wal, found, journal = await started(yard, epoch)
        assert found[: len(live)] == live
        live = found
        for number in range(5):
            record = wal.append(data := payload(100 * epoch + number, 300))
            assert record.position >= last
            assert record.end >= record.position + 300
            last = record.end
            live.append(data)
        await journal.reach(record.end)
        if epoch % 2:
            yard.crash()
        else:
            await wal.close()
    assert (await recovered(yard, 7))[1] == live


async def confirmed_ends_only_grow(yard: Yard) -> None:
    """Whatever is appended when, the confirmed end grows in order and reaches the last record; the log's word
    and the callback agree."""
    wal, _, journal = await started(yard, 1)
    for number in range(60):
        record = wal.append(payload(number, 200 + number * 37 % 2000))
        if number % 7 == 0:
            await asyncio.sleep(0.002)
    await journal.reach(record.end)
    assert journal.end == wal.confirmed_end >= record.end


async def room_is_never_a_promise_that_breaks(yard: Yard) -> None:
    """Whatever fits `room_bytes` is taken, in records of any sizes from 64 bytes up; trimmed, there is room
    again, for ever."""
    rand = Rand(b"room")
    wal, _, journal = await started(yard, 1)
    for number in range(120):
        room, last = wal.room_bytes, None
        is_small = rand.below(2)
        while room >= 64 and rand.below(50):
            length = min(room, yard.record_bytes_max, 64 + rand.below(20 if is_small else 39 * KIB))
            last = wal.append(payload(number, length))
            room -= length
        if last is not None:
            await journal.reach(last.end)
            await wal.trim(last.end)
            assert wal.used_bytes == 0
    assert wal.confirmed_end > 5 * wal.capacity_bytes


async def full_takes_nothing_and_a_trim_gives_room_again(yard: Yard) -> None:
    """WalFull leaves the log as it was; after a trim the same append succeeds; what was there is still
    whole."""
    wal, _, journal = await started(yard, 1)
    records = []
    while wal.room_bytes >= 5000:
        records.append(wal.append(payload(len(records), 5000)))
    with pytest.raises(WalFull) as full:
        wal.append(payload(0, yard.record_bytes_max))
    assert full.value.needed_bytes == yard.record_bytes_max
    used = wal.used_bytes
    with pytest.raises(WalFull):
        wal.append(payload(0, yard.record_bytes_max))
    assert wal.used_bytes == used <= wal.capacity_bytes
    await journal.reach(records[-1].end)
    await wal.trim(records[9].end)
    records.append(wal.append(payload(len(records), 5000)))
    await wal.close()
    assert (await recovered(yard, 2))[1] == [payload(number, 5000) for number in range(10, len(records))]


async def sizes_at_the_edges(yard: Yard) -> None:
    """A payload of no bytes is a record; one of the maximum is taken; one beyond is a ValueError, and changes
    nothing."""
    wal, _, journal = await started(yard, 1)
    wal.append()
    wal.append(b"", b"x")
    with pytest.raises(ValueError, match="takes"):
        wal.append(bytes(yard.record_bytes_max + 1))
    record = wal.append(bytes(yard.record_bytes_max))
    await journal.reach(record.end)
    await wal.close()
    assert (await recovered(yard, 2))[1] == [b"", b"x", bytes(yard.record_bytes_max)]


async def a_checksum_is_carried_on(yard: Yard) -> None:
    """A record whose tail's CRC was handed in reads back like any other, with and without bytes before the
    tail; and the log tells a checksum of its end again."""
    wal, _, journal = await started(yard, 1)
    head, tail = payload(1, 61), payload(2, 5000)
    wal.append(head, tail, tail_crc=crc32c(tail))
    record = wal.append(tail, tail_crc=crc32c(tail))
    await journal.reach(record.end)
    yard.crash()
    found = [record async for record in (await yard.open(owner(2))).recover()]
    assert [bytes(one.payload) for one in found] == [head + tail, tail]
    assert [one.tail_crc for one in found] == [crc32c(one.payload[one.lead :]) for one in found]


async def a_trim_is_exact(yard: Yard) -> None:
    """Records appended together are trimmed one by one; a lower trim does not undo a higher one; the next
    owner gets exactly the rest."""
    wal, _, journal = await started(yard, 1)
    records = [wal.append(payload(number)) for number in range(10)]
    await journal.reach(records[-1].end)
    await asyncio.gather(*(wal.trim(record.end) for record in reversed(records[:7])))
    yard.crash()
    assert (await recovered(yard, 2))[1] == [payload(number) for number in range(7, 10)]


async def a_trim_is_durable_when_it_returns(yard: Yard) -> None:
    """After a trim and a crash at once, nothing of what was trimmed comes back."""
    wal, _, journal = await started(yard, 1)
    for number in range(5):
        record = wal.append(payload(number))
        await journal.reach(record.end)
        await wal.trim(record.end)
        assert (await recovered(yard.survivor(), 2))[1] == []


async def a_cancelled_trim_still_happens(yard: Yard) -> None:
    """Giving up the wait for a trim does not disturb another who waits for the same."""
    wal, _, journal = await started(yard, 1)
    record = wal.append(payload(1))
    await journal.reach(record.end)
    impatient = asyncio.create_task(wal.trim(record.end))
    patient = asyncio.create_task(wal.trim(record.end))
    await asyncio.sleep(0)
    impatient.cancel()
    await patient
    assert wal.used_bytes == 0


async def reset_forgets_everything(yard: Yard) -> None:
    """After recover and reset nothing is left for the next owner, even if this one never wrote."""
    wal, _, _ = await started(yard, 1)
    wal.append(payload(1, 9000))
    await wal.close()
    wal, found = await recovered(yard, 2)
    assert len(found) == 1
    await wal.reset()
    assert wal.used_bytes == 0
    yard.crash()
    assert (await recovered(yard, 3))[1] == []


async def only_the_first_owner_finds_it_new(yard: Yard) -> None:
    """A log is new until an owner has recovered it, and never again, though nobody ever appended."""
    wal = await yard.open(owner(1))
    assert wal.is_new
    yard.crash()
    wal, _ = await recovered(yard, 2)
    assert wal.is_new
    yard.crash()
    assert not (await recovered(yard, 3))[0].is_new


async def an_epoch_that_is_not_higher_is_fenced(yard: Yard) -> None:
    """An owner with the epoch of the last one, or a lower one, is refused and changes nothing."""
    wal, _, _ = await started(yard, 5)
    wal.append(payload(1))
    await wal.close()
    for epoch in (4, 5):
        with pytest.raises(WalFenced) as fenced:
            await recovered(yard, epoch)
        assert (fenced.value.own_epoch, fenced.value.found_epoch) == (epoch, 5)
    assert (await recovered(yard, 6))[1] == [payload(1)]


async def another_cluster_is_refused(yard: Yard) -> None:
    """A log of another cluster is refused with what was expected and what was found, and left untouched."""
    wal, _, _ = await started(yard, 1)
    wal.append(payload(1))
    await wal.close()
    with pytest.raises(WalMismatch) as mismatch:
        await yard.open(owner(9, cluster_id="other"))
    assert (mismatch.value.field, mismatch.value.expected, mismatch.value.found) == (
        "cluster",
        "other",
        "cluster",
    )
    assert (await recovered(yard, 2))[1] == [payload(1)]


async def a_closed_log_takes_nothing(yard: Yard) -> None:
    """After a close an append is refused and a second close does nothing; a log that was only opened closes
    too."""
    wal, _, _ = await started(yard, 1)
    wal.append(payload(1))
    await wal.close()
    await wal.close()
    with pytest.raises(WalClosed):
        wal.append(payload(2))
    opened = await yard.open(owner(2))
    await opened.close()
    assert (await recovered(yard, 3))[1] == [payload(1)]


async def metadata_is_named_through_crashes_and_owners(yard: Yard) -> None:
    """Once a record is durable that came after a mark, the log names that metadata, before and after it has
    other owners, who may know less."""
    mark = NO_MARK
    for epoch in range(1, 5):
        wal, _, journal = await started(yard, epoch, SOME_ID)
        assert (await yard.survivor().identify()).mark == mark
        if epoch != 3:
            mark = MetadataMark(100 * epoch, epoch)
            wal.see_metadata(mark)
            wal.see_metadata(MetadataMark(mark.offset - 1, epoch))
            await wal.mark_metadata()
        await journal.reach(wal.append(payload(epoch)).end)
        assert (await yard.survivor().identify()).mark == mark
        if epoch % 2:
            yard.crash()
        else:
            await wal.close()
        assert (await yard.survivor().identify()).mark == mark


async def a_durable_trim_names_the_metadata_that_allowed_it(yard: Yard) -> None:
    """At every iteration of the loop: where a record is forgotten, the log names the commit after which it
    was trimmed, or a later one."""
    wal, _, journal = await started(yard, 1, SOME_ID)
    for number in range(1, 5):
        records = [wal.append(payload(10 * number + one)) for one in range(3)]
        await journal.reach(records[-1].end)
        wal.see_metadata(MetadataMark(number, 1))
        trim = asyncio.create_task(wal.trim(records[-1].end))
        wal.append(payload(10 * number + 9))
        while not trim.done():
            await _check_named(yard.survivor(), number)
            await asyncio.sleep(0.002)
        await trim
        await _check_named(yard.survivor(), number)
        assert (await yard.survivor().identify()).mark >= MetadataMark(number, 1)


async def _check_named(yard: Yard, number: int) -> None:
    mark = (await yard.identify()).mark
    _, found = await recovered(yard, 2)
    for earlier in range(1, number + 1):
        assert payload(10 * earlier) in found or mark.offset >= earlier, (earlier, mark)


async def a_log_without_an_identity_names_no_metadata(yard: Yard) -> None:
    """In a cluster of millrace.version 0 nothing is written that the build before would not read."""
    wal, _, journal = await started(yard, 1)
    wal.see_metadata(MetadataMark(7, 1))
    await wal.mark_metadata()
    record = wal.append(payload(1))
    await journal.reach(record.end)
    await wal.trim(record.end)
    assert (await yard.survivor().identify()).mark == NO_MARK
    await wal.close()
    assert (await yard.survivor().identify()).mark == NO_MARK


CHECKS: tuple[Callable[[Yard], Awaitable[None]], ...] = (
    records_come_back_in_order_after_a_close,
    what_is_confirmed_survives_a_crash,
    owners_continue_one_log,
    confirmed_ends_only_grow,
    room_is_never_a_promise_that_breaks,
    full_takes_nothing_and_a_trim_gives_room_again,
    sizes_at_the_edges,
    a_checksum_is_carried_on,
    a_trim_is_exact,
    a_trim_is_durable_when_it_returns,
    a_cancelled_trim_still_happens,
    reset_forgets_everything,
    only_the_first_owner_finds_it_new,
    an_epoch_that_is_not_higher_is_fenced,
    another_cluster_is_refused,
    a_closed_log_takes_nothing,
    metadata_is_named_through_crashes_and_owners,
    a_durable_trim_names_the_metadata_that_allowed_it,
    a_log_without_an_identity_names_no_metadata,
)
