"""Committed metadata in the bucket: what is put and when, what waits, what a reader makes of it after each
sort of loss."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

import pytest

from millrace.kraft.bucket.layout import (
    BackupCorrupt,
    Kind,
    PieceName,
    frame,
    log_prefix,
    newest_key,
    piece_key,
    snapshots_prefix,
    unframe,
)
from millrace.kraft.bucket.writer import BackupForked
from millrace.kraft.image.voter_records import encode_voters_change
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.raft.voters import DYNAMIC, Endpoint, Voter, VotersChange, VoterSet
from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Closed, Fenced
from millrace.runtime.objectstore import ObjectMissing, PreconditionFailed, StoreContradicts
from millrace.runtime.objectstore.rounds import ROUNDS_MAX
from tests.kraft.bucket.build import BackedUp, Bucket, Refusing
from tests.kraft.build import HandClock, run, sim_disk
from tests.patience import PATIENCE_S
from tests.sim.loop import run_simulation


def test_a_frame_that_was_touched_is_refused() -> None:
    """Every byte of header and payload counts, and so does the length."""
    data = b"".join(frame(Kind.PIECE, 3, 9, 2, 1_700_000_000_000, [b"some ", b"records"]))
    found = unframe("k", data)
    assert (found.kind, found.base, found.end, found.epoch, bytes(found.payload)) == (
        1,
        3,
        9,
        2,
        b"some records",
    )
    for place in range(len(data)):
        with pytest.raises(BackupCorrupt):
            unframe("k", data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    for damaged in (data[:-1], data + b"x", b"", data[:20]):
        with pytest.raises(BackupCorrupt):
            unframe("k", damaged)


def test_what_was_reached_can_be_restored_from_the_bucket_alone() -> None:
    """After each wait the bucket gives the image as it was committed; nobody's id or path stands in a key."""

    async def main() -> None:
        up = await BackedUp().start()
        for number in range(5):
            await up.create(f"topic-{number}")
            await up.backup.reach_committed()
            loaded = await up.load()
            assert loaded.image == up.node.publisher.image
            assert not loaded.losses
        assert up.backup.age_s() == 0
        assert all("/metadata/log/" in key for key in up.bucket.keys)
        assert up.backup.pieces_put == 5
        await up.stop()

    run(main())


def test_many_who_wait_share_a_piece() -> None:
    """While one put is under way the next gathers: 100 waits cost a few puts."""

    async def main() -> None:
        up = await BackedUp().start()

        async def one(number: int) -> None:
            await up.create(f"topic-{number}")
            await up.backup.reach_committed()

        await asyncio.gather(*map(one, range(100)))
        assert up.backup.pieces_put <= 5
        assert (await up.load()).image == up.node.publisher.image
        await up.stop()

    run(main())


def test_what_nobody_waits_for_goes_by_age() -> None:
    """One put an interval; whoever is in no hurry waits for it, and the gauge shows how old the oldest is."""

    async def main() -> None:
        up = await BackedUp(interval_ms=200).start()
        began = asyncio.get_running_loop().time()
        for number in range(10):
            await up.create(f"topic-{number}")
        assert up.backup.pieces_put == 0
        await asyncio.sleep(0.05)
        assert 0.04 < up.backup.age_s() < 0.2
        await up.backup.reach_committed(is_urgent=False)
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.2, abs=0.05)
        assert up.backup.pieces_put == 1
        assert up.backup.age_s() == 0
        await up.stop()

    run_simulation(lambda loop: main())


async def waiting_for_the_store() -> tuple[BackedUp, asyncio.Future[None]]:
    """A backup whose store is away, and who waits for it."""
    up = await BackedUp().start()
    up.bucket.is_away = True
    await up.create("one")
    waiting = asyncio.ensure_future(up.backup.reach_committed())
    await asyncio.sleep(0.1)
    return up, waiting


def test_a_store_that_is_away_makes_everything_wait() -> None:
    """No wait ends and nothing fails; the reason is told; when the store is back everything goes on."""

    async def main() -> None:
        up, waiting = await waiting_for_the_store()
        await up.create("two")
        assert not waiting.done()
        assert "away" in up.backup.blocked_reason
        assert up.backup.age_s() > 0.05
        up.bucket.is_away = False
        await waiting
        assert up.backup.blocked_reason == ""
        await up.stop()

    run_simulation(lambda loop: main())


def test_who_waits_while_it_is_ended_is_told() -> None:
    """As where a leader's term is over: what it would have put, the next one puts."""

    async def main() -> None:
        up, waiting = await waiting_for_the_store()
        up.task.cancel()
        await asyncio.wait([up.task])
        up.backup.close()
        for wait in (waiting, up.backup.reach_committed()):
            with pytest.raises(Closed):
                await asyncio.wait_for(wait, PATIENCE_S)
        await up.stop()

    run_simulation(lambda loop: main())


def test_a_full_store_is_told_once_each_time() -> None:
    """Whoever can make room hears of it when the store begins to be full, not at each attempt; and asks
    whether it still is."""

    async def main() -> None:
        up = await BackedUp().start()
        told: list[bool] = []
        up.backup.on_full = lambda: told.append(up.backup.is_full)
        for times in (1, 2):
            up.bucket.is_full = True
            await up.create(f"topic-{times}")
            waiting = asyncio.ensure_future(up.backup.reach_committed())
            await asyncio.sleep(0.5)
            assert told == [True] * times
            up.bucket.is_full = False
            await waiting
            assert not up.backup.is_full
        await up.stop()

    run(main())


def test_a_time_that_was_not_confirmed_is_not_saved() -> None:
    """Records are stamped by a clock that is a day ahead: what is saved says the newest time that was
    confirmed, in pieces and snapshots. One whose answer was lost is put again with the same bytes, although
    time went on."""

    async def main() -> None:
        up = await BackedUp().start(clock=HandClock(1_700_086_400_000))
        await up.create("one")
        await up.backup.reach_committed()
        assert (await up.load()).time_ms == 1_700_000_000_000
        up.bucket.loses_answers = True
        await up.create("two")
        waiting = asyncio.ensure_future(up.backup.reach_committed())
        await asyncio.sleep(0.05)
        assert "lost" in up.backup.blocked_reason
        up.confirmed.now_ms += 5
        up.bucket.loses_answers = False
        await waiting
        assert (await up.load()).time_ms == 1_700_000_000_000
        await up.create("three")
        await up.backup.reach_committed()
        assert (await up.load()).time_ms == 1_700_000_000_005
        await up.stop()

    run_simulation(lambda loop: main())


def test_a_restart_goes_on_where_the_bucket_ends() -> None:
    """Kills in the middle of anything: the next start sees by names how far the bucket is, and the chain has
    no gap."""

    async def main() -> None:
        chance = random.Random(4)
        bucket, disk = Bucket(), sim_disk()
        for life in range(8):
            up = await BackedUp(bucket, disk, snapshot_pieces=7).start(segment_bytes=2_000)
            for number in range(6):
                await up.create(f"topic-{life}-{number}")
                bucket.is_away = chance.random() < 0.2
                if not bucket.is_away:
                    await up.backup.reach_committed()
                if chance.random() < 0.3:
                    await up.node.snapshot()
            bucket.is_away = False
            if chance.random() < 0.5:
                await up.backup.reach_committed()
            await up.stop()
        up = await BackedUp(bucket, disk).start()
        await up.backup.reach_committed()
        assert (await up.load()).image == up.node.publisher.image
        found = await up.survey()
        assert found.highest == (up.node.publisher.image.offset, up.node.publisher.image.epoch)
        await up.stop()

    run(main())


def test_snapshots_shorten_the_way_and_old_ones_go() -> None:
    """Three snapshots stay with the pieces behind the oldest; each suffices to restore when the newer ones
    are damaged."""

    async def main() -> None:
        up = await BackedUp(snapshot_pieces=5).start()
        for number in range(40):
            await up.create(f"topic-{number}")
            await up.backup.reach_committed()
            await asyncio.sleep(0.01)
        found = await up.survey()
        assert len(found.snapshots) == 3
        assert found.newest == found.snapshots[0]
        assert all(piece.end > found.snapshots[-1].end for piece in found.pieces)
        assert len(found.pieces) <= 20
        expected = up.node.publisher.image
        for damaged in range(3):
            one = found.snapshots[damaged]
            key = f"{snapshots_prefix(up.node.cluster_id)}{one.end:020}-{one.epoch:010}"
            up.bucket.set(key, up.bucket.content(key)[:-1])
            loaded = await up.load()
            if damaged < 2:
                assert loaded.image == expected
                assert len(loaded.losses) == damaged + 1
            else:
                assert loaded.image.offset == 0
                assert "cannot be had" in loaded.losses[-1]
        await up.stop()

    run_simulation(lambda loop: main())


def test_who_voted_is_known_from_a_snapshot_and_from_the_pieces_behind_it() -> None:
    """At kraft.version 1; at 0 nothing names them. A piece that cannot be read says nothing."""

    def voters(*ids: int) -> VoterSet:
        return VoterSet(
            tuple(Voter(one, bytes([one] * 16), (Endpoint("C", "h", one),), (0, 1)) for one in ids), DYNAMIC
        )

    async def main() -> None:
        up = await BackedUp(snapshot_pieces=2).start()
        await up.create("one")
        await up.backup.reach_committed()
        assert (await up.load()).voters is None
        up.voters = voters(1, 2)
        while not up.backup.snapshots_put:
            await up.create(f"topic-{up.backup.pieces_put}")
            await up.backup.reach_committed()
            await asyncio.sleep(0.01)
        found = await up.survey()
        assert (await up.load()).voters == up.voters
        cluster_id, end, epoch = up.node.cluster_id, found.chain_end, up.node.publisher.image.epoch
        batch = encode_voters_change(VotersChange(None, voters(2, 3).voters), end, epoch, 0)
        name = PieceName(end + 1, epoch, end)
        body = b"".join(frame(Kind.PIECE, end, end + 1, epoch, 0, [batch]))
        up.bucket.set(piece_key(cluster_id, name), body)
        assert (await up.load()).voters == voters(2, 3)
        up.bucket.set(piece_key(cluster_id, name), body[:-1])
        loaded = await up.load()
        assert loaded.voters == up.voters
        assert loaded.losses
        await up.stop()

    run_simulation(lambda loop: main())


def test_a_damaged_piece_ends_the_way_and_is_named() -> None:
    """What is before it is restored; the loss is stated with offsets and key."""

    async def main() -> None:
        up = await BackedUp().start()
        ends = []
        for number in range(6):
            await up.create(f"topic-{number}")
            await up.backup.reach_committed()
            ends.append(up.backup.saved_end)
        key = up.bucket.keys[3]
        content = up.bucket.content(key)
        up.bucket.set(key, content[:-5] + b"xxxxx")
        loaded = await up.load()
        assert loaded.image.offset == ends[2]
        assert key in loaded.losses[0]
        assert f"between offset {ends[2]} and {ends[5]}" in loaded.losses[-1]
        up.bucket.remove(key)
        assert (await up.load()).image.offset == ends[2]
        # The next start sees the gap and puts a snapshot, from which everything can be had again.
        await up.stop()
        up = await BackedUp(up.bucket, up.disk).start()
        await up.create("later")
        await up.backup.reach_committed()
        loaded = await up.load()
        assert loaded.image == up.node.publisher.image
        await up.stop()

    run(main())


def test_a_pointer_that_came_before_its_snapshot_is_named() -> None:
    """A bucket that is being copied: the older snapshot is used, and waiting is told as a way."""

    async def main() -> None:
        up = await BackedUp(snapshot_pieces=5).start()
        for number in range(12):
            await up.create(f"topic-{number}")
            await up.backup.reach_committed()
            await asyncio.sleep(0.01)
        newest = (await up.survey()).snapshots[0]
        up.bucket.remove(f"{snapshots_prefix(up.node.cluster_id)}{newest.end:020}-{newest.epoch:010}")
        loaded = await up.load()
        assert loaded.image == up.node.publisher.image
        assert "have not all arrived" in loaded.losses[0]
        await up.stop()

    run_simulation(lambda loop: main())


def test_the_pointer_moves_only_up() -> None:
    """A snapshot that is late, of a leader that was replaced, does not take the pointer back; a damaged
    pointer is written anew."""

    async def main() -> None:
        up = await BackedUp().start()
        key = newest_key(up.node.cluster_id)
        up.bucket.set(key, b'{"version": 1, "end": 1000000, "epoch": 9}')
        await up.backup._save_snapshot()
        assert b"1000000" in up.bucket.content(key)
        up.bucket.set(key, b"nonsense")
        await up.create("one")
        await up.backup._save_snapshot()
        assert b"%d" % up.node.publisher.image.offset in up.bucket.content(key)
        await up.stop()

    run(main())


def test_another_copy_that_wrote_on_is_found_out() -> None:
    """Two copies of one log write the same offsets: the second one is told, and ends."""

    async def main() -> None:
        up = await BackedUp().start()
        await up.create("ours")
        await up.backup.reach_committed()
        key = up.bucket.keys[-1]
        await up.stop()
        bucket = Bucket()
        other = await BackedUp(bucket, up.disk).start()
        await other.create("x")
        image = other.node.publisher.image
        name = f"{log_prefix(other.node.cluster_id)}{image.offset:020}-{image.epoch:010}-{0:020}"
        bucket.set(name, up.bucket.content(key))
        waiting = asyncio.ensure_future(other.backup.reach_committed())
        await asyncio.wait([other.task], timeout=PATIENCE_S)
        assert isinstance(other.task.exception(), BackupForked)
        waiting.cancel()
        await other.node.close()

    run(main())


def test_who_was_replaced_puts_nothing_and_moves_no_pointer() -> None:
    """A node that has a newer owner ends at its next piece, and a snapshot that was due does not become the
    newest."""

    class Owned:
        writer = None
        is_conditional = False
        is_replaced = False

        async def verify(self, since_s: float) -> None:
            if self.is_replaced:
                raise Fenced("another incarnation")

    async def main() -> None:
        up = BackedUp()
        up.ownership = owned = Owned()
        await up.start()
        await up.create("ours")
        await up.backup.reach_committed()
        await up.backup._save_snapshot()
        before = {key: up.bucket.content(key) for key in up.bucket.keys}
        owned.is_replaced = True
        await up.create("replaced")
        for put in (
            up.backup._save_snapshot(),
            up.backup._point_to(SnapshotId(10_000, 9)),
            up.backup._delete_old(),
        ):
            with contextlib.suppress(Fenced):
                await put
        with pytest.raises(Fenced):
            await up.backup.reach_committed()
        assert isinstance(up.task.exception(), Fenced)
        with pytest.raises(Fenced):
            await up.backup.reach_committed()  # who comes later does not wait either
        await up.backup.finish(3_600_000)
        assert {key: up.bucket.content(key) for key in up.bucket.keys} == before
        await up.node.close()

    run(main())


@pytest.mark.parametrize("is_longer", [False, True])
def test_of_two_forks_the_one_of_the_later_epoch_is_read(is_longer: bool) -> None:
    """A process that was replaced put one more piece, which ends before or behind what its successor has put:
    none of it is read."""

    async def main() -> None:
        first = await BackedUp().start()
        await first.create("common")
        await first.backup.reach_committed()
        second = await BackedUp(
            first.bucket, first.disk.restart(lambda path: True, power_was_cut=False)
        ).start()
        await second.create("winner")
        await second.backup.reach_committed()
        await first.create(*(f"replaced-{number}" for number in range(9 if is_longer else 1)))
        await first.backup.reach_committed()
        await second.create("later")
        await second.backup.reach_committed()
        loaded = await second.load()
        assert loaded.image == second.node.publisher.image
        assert not loaded.losses
        await first.stop()
        await second.stop()

    run(main())


def test_a_store_that_refuses_conditions_gets_it_all_the_same() -> None:
    """A name is looked at before it is put: another's content is left, and our own, whose answer was lost, is
    taken for it."""

    async def main() -> None:
        up = BackedUp(Refusing(), is_conditional=False)
        await up.start()
        await up.create("one")
        await up.backup.reach_committed()
        await up.backup._save_snapshot()
        assert (await up.load()).image == up.node.publisher.image
        pieces = [key for key in up.bucket.keys if "/log/" in key]
        await up.backup._put_once(pieces[-1], [up.bucket.content(pieces[-1])])
        with pytest.raises(BackupForked):
            await up.backup._put_once(pieces[-1], [b"other"])
        await up.stop()

    run(main())


def test_a_pointer_about_which_the_store_contradicts_itself() -> None:
    """It is tried a bounded number of times with pauses in between, and the wait names key and contradiction;
    it heals by itself."""

    async def main() -> None:
        bucket = BlindBucket()
        up = await BackedUp(bucket).start()
        bucket.blind_key = newest_key(up.node.cluster_id)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(
            StoreContradicts, match="a put is told that it exists, a read that there is no such object"
        ):
            await up.backup._save_snapshot()
        assert bucket.refusals == ROUNDS_MAX
        assert asyncio.get_running_loop().time() - began_s > 1
        bucket.blind_key = ""
        await up.backup._save_snapshot()
        assert b"%d" % up.node.publisher.image.offset in bucket.content(newest_key(up.node.cluster_id))
        await up.stop()

    run_simulation(lambda loop: main())


def test_a_refused_piece_that_is_not_there_is_no_other_copy() -> None:
    """The store's own word that nothing lies there: it is asked again, and the node goes on."""

    async def main() -> None:
        bucket = DenyingBucket()
        up = await BackedUp(bucket).start()
        bucket.denials = 3
        await up.create("orders")
        await up.backup.reach_committed()
        assert bucket.denials == 0
        await up.stop()

    run_simulation(lambda loop: main())


class DenyingBucket(Bucket):
    """Says so many times that a key is there, where there is none."""

    denials = 0

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        if self.denials:
            self.denials -= 1
            raise PreconditionFailed(key)
        await super().put_if_absent(key, parts)


class BlindBucket(Bucket):
    """Of one key it says that it exists to who puts, and that it does not to who reads."""

    blind_key, refusals = "", 0

    async def get(self, key: str) -> bytes:
        if key == self.blind_key:
            raise ObjectMissing(key)
        return await super().get(key)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        if key == self.blind_key:
            self.refusals += 1
            raise PreconditionFailed(key)
        await super().put_if_absent(key, parts)
