"""What a restore finds in a bucket and makes of it, over one in memory; the first start's look at the bucket
behind it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millrace.broker.config import BrokerSettings
from millrace.broker.identity.binding import MARKER_KEY, BindingRefused
from millrace.broker.identity.claim_format import NOBODY, ClaimKind, OwnerClaim, encode_claim
from millrace.broker.identity.claims import check_claims, claimed_nodes, known_newest, read_newest_claim
from millrace.broker.identity.known_time import NEWEST
from millrace.broker.identity.known_time_text import decode_time
from millrace.broker.identity.metadata_check import check_restored_from
from millrace.broker.identity.restored_claim import prepared_in, with_prepared
from millrace.broker.identity.unknown_streams import WalStream
from millrace.broker.quorum.restored_member import compare_restored
from millrace.broker.restore.other_logs import SeenLog
from millrace.broker.restore.plan import unknown_from
from millrace.broker.restore.restoring import Restored, Restoring
from millrace.kraft.errors import LogCorrupt
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.log.restored_from import (
    FILE,
    RestoredFrom,
    encode_restored_from,
    forget_restored_from,
    read_restored_from,
    write_restored_from,
)
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.kraft.tables.owed_ranges import OwedRange
from millrace.kraft.tables.wals import NodeWal, WalState, wal_record
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.close_streams import CloseStreamsRequest, StreamClose
from millrace.protocol.messages.register_node_wal import RegisterNodeWalRequest
from millrace.runtime.bundle import Runtime
from millrace.runtime.clock import Clock
from millrace.runtime.net import LoopNet
from millrace.runtime.objectstore import ObjectStore, StoreDate
from millrace.runtime.objectstore.address import StoreAddress
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import StreamId, StreamRange
from millrace.wal.identity import NO_MARK, WalIdentity
from tests.kraft.bucket.build import BackedUp, Bucket
from tests.kraft.build import NODE, Broker, HandClock, open_node, run, sim_disk
from tests.sim.settings import node_settings

OWN = bytes(range(16))
SETTINGS = node_settings(NODE, "10.0.0.1")
LOG_DIR = SETTINGS.controller.log_dir


class DatedBucket(Bucket):
    """Its answers carry a time, as S3's do."""

    last_date: StoreDate | None = None


async def lost() -> BackedUp:
    """A node whose log directory goes; everything is in its bucket."""
    up = await BackedUp(DatedBucket()).start()
    await up.create("orders")
    await up.backup.reach_committed()
    up.bucket.set(MARKER_KEY, b'{"cluster_id": "%s"}' % up.node.cluster_id.encode())
    return up


async def no_wal() -> WalIdentity | None:
    return None


async def no_begin(cluster_id: str) -> int | None:
    return None


def restoring(up: BackedUp) -> Restoring:
    return Restoring(SETTINGS, up.bucket, "the bucket", no_wal, list, no_begin, HandClock())


async def found_in(up: BackedUp) -> Restored:
    return await restoring(up).find(is_taking_over=True)


def claimed(up: BackedUp, series: int, number: int, end: int, kind: ClaimKind = ClaimKind.CLAIMED) -> None:
    claim = OwnerClaim(kind, up.node.cluster_id, series, number, OWN, NOBODY, end, 1, 0)
    up.bucket.set(claim.key, encode_claim(claim))


@pytest.mark.parametrize("series", [METADATA_SERIES, NODE])
def test_a_standing_claim_is_refused_and_taken_over_by_word(series: int) -> None:
    """Also of a node that metadata does not know yet; what is restored knows the claim, whatever the log's
    end was when it was made."""

    async def main() -> None:
        up = await lost()
        claimed(up, series, 7, 9_000_000)
        keys = up.bucket.keys
        with pytest.raises(BindingRefused, match=r"number 7, .*--take-over.*nothing was changed"):
            await restoring(up).find(is_taking_over=False)
        restored = await found_in(up)
        assert restored.image.claims.highest(series) == 7
        assert restored.image.offset > 9_000_000
        await check_claims(up.bucket, "the bucket", up.node.cluster_id, restored.image, NODE)
        assert up.bucket.keys == keys
        claimed(up, series, 8, 9_000_000, ClaimKind.RELEASED)
        assert (await restoring(up).find(is_taking_over=False)).claims[0].number == 8
        await up.stop()

    run(main())


@pytest.mark.parametrize("series", [METADATA_SERIES, NODE])
def test_a_claim_that_cannot_be_read_is_got_past_by_removing_it(series: int) -> None:
    """The restore and a start say the same: nobody but the operator knows whether somebody is at work."""

    async def main() -> None:
        up = await lost()
        claimed(up, series, 7, 9)
        (key,) = [key for key in up.bucket.keys if "/owners/" in key]
        up.bucket.set(key, b"rot")
        said = (
            f"{key} cannot be read: .* no process of this node runs, remove that object, .*restore "
            "--take-over"
        )
        with pytest.raises(BindingRefused, match=said):
            await found_in(up)
        with pytest.raises(BindingRefused, match=said):
            await check_claims(up.bucket, "the bucket", up.node.cluster_id, up.node.publisher.image, NODE)
        await up.bucket.delete([key])
        await found_in(up)
        await up.stop()

    run(main())


def test_a_lost_marker_is_stood_in_for_by_the_clusters_id() -> None:
    async def main() -> None:
        up = await lost()
        await up.bucket.delete([MARKER_KEY])
        with pytest.raises(BindingRefused, match=r"has no marker .*--override cluster\.id=ID"):
            await found_in(up)
        controller = replace(SETTINGS.controller, cluster_id=up.node.cluster_id)
        named = Restoring(
            replace(SETTINGS, controller=controller),
            up.bucket,
            "the bucket",
            no_wal,
            list,
            no_begin,
            HandClock(),
        )
        restored = await named.find(is_taking_over=True)
        assert [topic.name for topic in restored.image.topics] == ["orders"]
        await up.stop()

    run(main())


def test_the_first_start_is_refused_where_the_bucket_has_grown_since() -> None:
    """By a piece of a process that lived on, or one that arrived late: refused each time. Where nothing has
    come the question is not asked again."""

    async def main() -> None:
        up = await lost()
        disk = sim_disk()
        await restoring(up).write(await found_in(up), disk, Rand(b"ids"))
        place = up.bucket, "the bucket", up.node.cluster_id, disk, LOG_DIR
        before = await disk.read_file(f"{LOG_DIR}/{FILE}")
        await up.create("lived-on")
        await up.backup.reach_committed()
        for _ in range(2):
            with pytest.raises(BindingRefused, match=r"still at work.*run `millrace restore` again"):
                await check_restored_from(*place)
        assert await disk.read_file(f"{LOG_DIR}/{FILE}") == before
        again = sim_disk()
        await restoring(up).write(await found_in(up), again, Rand(b"ids"))
        await check_restored_from(*place[:3], again, LOG_DIR)
        basis = await read_restored_from(again, LOG_DIR)
        assert basis is not None
        assert basis.is_compared
        await up.create("restored")
        await up.backup.reach_committed()
        await check_restored_from(*place[:3], again, LOG_DIR)
        await forget_restored_from(again, LOG_DIR)
        assert await read_restored_from(again, LOG_DIR) is None
        await forget_restored_from(again, LOG_DIR)
        await up.stop()

    run(main())


def test_what_a_directory_was_restored_from_is_read_whole_or_not_at_all() -> None:
    """The golden bytes; and every other length or byte is refused."""
    whole = encode_restored_from(RestoredFrom(12_345, 7, 41))
    assert whole == b"version=2\nend=12345\nepoch=7\nstream=41\ncompared=0\nlost=0\ncrc32c=a3c2906b\n"

    async def main() -> None:
        disk = sim_disk()
        await disk.make_folder(LOG_DIR)
        assert await read_restored_from(disk, LOG_DIR) is None
        await write_restored_from(disk, LOG_DIR, RestoredFrom(12_345, 7, 41))
        assert await read_restored_from(disk, LOG_DIR) == RestoredFrom(12_345, 7, 41)
        known = RestoredFrom(12_345, 7, 41, is_compared=True, is_loss_known=True)
        await write_restored_from(disk, LOG_DIR, known)
        assert await read_restored_from(disk, LOG_DIR) == known
        for data in (
            *(whole[:size] for size in range(len(whole))),
            whole + b"\n",
            whole.replace(b"7\n", b"8\n", 1),
        ):
            await disk.write_file(f"{LOG_DIR}/{FILE}", data)
            with pytest.raises(LogCorrupt):
                await read_restored_from(disk, LOG_DIR)

    run(main())


def test_the_newest_known_time_is_metadatas_or_the_stores() -> None:
    """Whichever is later: a machine whose clock is years ahead deletes nothing by age after a restore. Its
    own clock is not asked."""

    async def main() -> None:
        up = await lost()
        metadata_ms = HandClock().wall_ms()
        for date_ms, known_ms in (
            (None, metadata_ms),
            (metadata_ms - 100_000, metadata_ms),
            (metadata_ms + 10**9, None),
        ):
            assert isinstance(up.bucket, DatedBucket)
            now_s = asyncio.get_running_loop().time()
            up.bucket.last_date = None if date_ms is None else StoreDate(date_ms, now_s - 60)
            disk = sim_disk()
            await restoring(up).write(await found_in(up), disk, Rand(b"ids"))
            kept_ms = decode_time(await disk.read_file(f"{LOG_DIR}/{NEWEST}") or b"")
            assert kept_ms is not None
            if known_ms is not None:
                assert kept_ms == known_ms
            else:
                assert kept_ms >= metadata_ms + 10**9 + 60_000
            node = await open_node(disk, log_dir=LOG_DIR)
            assert node.newest_ms <= kept_ms
            await node.close()
        await up.stop()

    run(main())


def test_logs_of_other_nodes_are_listed_and_their_epochs_left_behind() -> None:
    """Node 2's log of objects in the bucket is to be recovered when that node starts, and nothing that it saw
    is given again."""

    async def main() -> None:
        up = await lost()
        other = BrokerRegistrationRequest(2, up.node.cluster_id, b"o" * 16)
        epoch = (await up.node.channel.send(other)).broker_epoch
        wal = RegisterNodeWalRequest(2, epoch, b"w" * 16, "object", "s3://logs", 0)
        assert (await up.node.channel.send(wal)).error_code == 0
        await up.backup.reach_committed()
        up.bucket.set(f"{up.node.cluster_id}/wal/2/7000000/00", b"a log's object")
        up.bucket.set(f"{up.node.cluster_id}/wal/2/none/00", b"litter")
        restored = await found_in(up)
        assert restored.image.offset > 7_000_000
        assert restored.wals == [
            f"node 2: the object log {(b'w' * 16).hex()} at s3://logs: no stream is open in it; it is not "
            "seen from here (it was not looked at)"
        ]
        assert [(wal.node_id, wal.state) for wal in restored.image.wals] == [(2, WalState.RECOVERING)]
        await up.stop()

    run(main())


def test_a_restore_of_a_restore_that_was_never_started_knows_the_ids_of_the_first() -> None:
    """The ids of its image are lifted ones; the log that is to be recovered says from which on streams were
    not known. One that an earlier release restored does not: of a stream in the WAL nobody can tell whether
    it was made since, and it is named."""

    async def main() -> None:
        up = await lost()
        epoch = up.node.publisher.image.brokers.by_id[NODE].epoch
        wal = RegisterNodeWalRequest(NODE, epoch, b"w" * 16, "block", "file:///wal", 0)
        assert (await up.node.channel.send(wal)).error_code == 0
        await up.backup.reach_committed()
        restored = await found_in(up)
        assert restored.restored_from.next_stream_id == restored.loaded.image.streams.next_id
        assert [wal.state for wal in restored.image.wals] == [WalState.RECOVERING]
        first = restored.loaded.image.streams.next_id
        assert unknown_from(restored.image, NODE) == first < restored.image.streams.next_id
        delta = MetadataDelta(restored.image)
        for wal in restored.image.wals:
            delta.apply(wal_record(replace(wal, unknown_from=None)))
        assert unknown_from(delta.done(restored.image.offset, restored.image.epoch), NODE) == 0
        assert unknown_from(restored.image, 2) == restored.image.streams.next_id
        await up.stop()

    run(main())


def test_a_block_wal_that_is_gone_is_said_where_its_owner_was_killed() -> None:
    """Streams that it opened last are known to nobody: one sentence. An owner that ended in order had told
    the bucket of everything."""

    async def main() -> None:
        up = await lost()
        for number, kind, count in ((7, ClaimKind.CLAIMED, 1), (8, ClaimKind.RELEASED, 0)):
            claimed(up, NODE, number, 1, kind)
            losses = (await found_in(up)).losses
            assert sum("cannot be named" in text for text in losses) == count
        await up.stop()

    run(main())


def test_a_node_that_the_bucket_does_not_know_says_so_and_has_no_log() -> None:
    """Without the word it is refused, and so is one that is known with it, or that comes with a log. Brokers
    of the bucket are fenced, and nothing is missing: their logs wait for them."""

    async def main() -> None:
        up = await lost()
        claimed(up, NODE, 7, 1)
        new = node_settings(NODE + 10, "10.0.0.2")

        def of(settings: BrokerSettings, *, is_new_node: bool, found: WalIdentity | None = None) -> Restoring:
            async def identify() -> WalIdentity | None:
                return found

            words = "the bucket", identify, list, no_begin, HandClock()
            return Restoring(settings, up.bucket, *words, is_new_node=is_new_node)

        with pytest.raises(
            BindingRefused, match=f"node {NODE + 10} is no node of this .* knows {NODE}: .*new-node"
        ):
            await of(new, is_new_node=False).find(is_taking_over=True)
        with pytest.raises(
            BindingRefused, match=f"node {NODE} is a node of this cluster: leave --new-node out"
        ):
            await of(SETTINGS, is_new_node=True).find(is_taking_over=True)
        identity = WalIdentity(b"w" * 16, 3, NO_MARK)
        with pytest.raises(BindingRefused, match="a new node begins with one of its own"):
            await of(new, is_new_node=True, found=identity).find(is_taking_over=True)
        restored = await of(new, is_new_node=True).find(is_taking_over=True)
        assert not restored.is_short
        assert not restored.needs_word
        assert [(broker.broker_id, broker.is_fenced) for broker in restored.image.brokers] == [(NODE, True)]
        await up.stop()

    run(main())


def test_claims_of_nodes_that_the_bucket_does_not_know_are_known() -> None:
    """They registered after its newest metadata; without their claims they could not start again."""

    async def main() -> None:
        up = await lost()
        for node_id, number in ((2, 5), (12, 3), (100, 1)):
            claimed(up, node_id, number, 1)
        restored = await found_in(up)
        assert [text.partition(" is not known")[0] for text in restored.wals] == [
            "node 2",
            "node 12",
            "node 100",
        ]
        highest = {series: restored.image.claims.highest(series) for series in (2, 12, 100)}
        assert highest == {2: 5, 12: 3, 100: 1}
        assert await claimed_nodes(up.bucket, up.node.cluster_id) == [2, 12, 100]
        await up.stop()

    run(main())


def test_what_other_nodes_logs_hold_is_opened_again_or_named() -> None:
    """A stream that is closed in the bucket and goes on in node 2's log, and behind that in node 3's, is
    opened again at node 3, and node 2 owes its part; what node 3's log holds behind a hole, and a stream that
    nobody knows, are named. Why a log is not seen is told."""

    async def main() -> None:
        up = await lost()
        broker = Broker(up.node, up.node.publisher.image.brokers.by_id[NODE].epoch)
        topic_id = await broker.create("two", partitions=2)
        data = [(await broker.open(topic_id, index)).streams[1] for index in range(2)]
        first = await broker.prepare(1)
        assert await broker.commit(first, [(data[0].stream_id, 0, 10)]) == 0
        await up.node.channel.send(
            CloseStreamsRequest(NODE, broker.epoch, [StreamClose(data[0].stream_id, data[0].epoch)])
        )
        epochs = {}  # all register before there are logs, as a cluster's brokers: none goes on without others
        for node_id in (2, 3, 4):
            other = BrokerRegistrationRequest(node_id, up.node.cluster_id, bytes([node_id]) * 16)
            epochs[node_id] = (await up.node.channel.send(other)).broker_epoch
        for node_id, epoch in epochs.items():
            wal = RegisterNodeWalRequest(
                node_id, epoch, bytes([node_id]) * 16, "block", f"file:///{node_id}", 0
            )
            assert (await up.node.channel.send(wal)).error_code == 0
        await up.backup.reach_committed()
        next_id = up.node.publisher.image.streams.next_id
        stream_id = data[0].stream_id
        logs = {
            2: SeenLog(streams=(WalStream(stream_id, 7, 5, 15), WalStream(StreamId(next_id), 0, 0, 4))),
            3: SeenLog(streams=(WalStream(stream_id, 8, 15, 20), WalStream(stream_id, 8, 21, 22))),
            4: SeenLog("it is on another machine"),
        }

        async def look(wal: NodeWal) -> SeenLog:
            return logs[wal.node_id]

        own = "the bucket", no_wal, list, no_begin, HandClock(), lambda text: None, look
        restored = await Restoring(SETTINGS, up.bucket, *own).find(is_taking_over=True)
        stream = restored.image.streams.by_id[stream_id]
        assert (stream.is_open, stream.node_id, stream.epoch, stream.end) == (True, 3, 8, 15)
        assert list(restored.image.streams.owed) == [OwedRange(stream_id, 10, 15, 2, 7, b"\2" * 16)]
        assert restored.unknown_elsewhere == {
            2: [StreamRange(StreamId(next_id), 0, 4)],
            3: [StreamRange(stream_id, 21, 22)],
        }
        assert [wal.unknown_from for wal in restored.image.wals] == [next_id] * 3
        assert restored.is_short
        assert restored.wals[0].endswith(
            "at file:///2: no stream is open in it, and it owes some of 1 streams that others went on with; "
            "it is there, and is recovered by node 2, or by another that reaches it"
        )
        assert "not seen from here (it is on another machine)" in restored.wals[2]
        await up.stop()

    run(main())


@pytest.mark.parametrize("has_grown", [False, True])
def test_a_voter_of_several_claims_and_compares_before_it_speaks(has_grown: bool) -> None:
    """Once: the claim is its metadata's, so that whoever comes to lead knows it, and the old leader does not.
    A start that was killed in between goes on."""

    async def main() -> None:
        up = await lost()
        disk = sim_disk()
        await restoring(up).write(await found_in(up), disk, Rand(b"ids"))
        if has_grown:
            await up.create("later")
            await up.backup.reach_committed()
        node = await open_node(disk, log_dir=LOG_DIR)

        async def open_none(address: StoreAddress, clock: Clock) -> ObjectStore:
            raise AssertionError(address)

        runtime = Runtime(HandClock(), Rand(b"run"), disk, LoopNet(), open_none)

        async def compare() -> None:
            await compare_restored(node, SETTINGS, runtime, up.bucket, lambda *words: None)

        if has_grown:
            for _ in range(2):
                with pytest.raises(BindingRefused, match="still at work"):
                    await compare()
        else:
            await compare()
            await compare()
        newest = await read_newest_claim(up.bucket, node.cluster_id, METADATA_SERIES)
        assert newest is not None
        assert newest.number == (2 if has_grown else 1)
        image = node.publisher.image
        assert image.claims.has_incarnation(METADATA_SERIES, newest.incarnation)
        assert not up.node.publisher.image.claims.has_incarnation(METADATA_SERIES, newest.incarnation)
        assert await known_newest(up.bucket, "the bucket", node.cluster_id, image, METADATA_SERIES) == newest
        await node.close()
        await up.stop()

    run(main())


def test_a_directory_that_an_earlier_build_restored_is_compared_without_a_claim() -> None:
    """The newest claim in its metadata is the old leader's."""

    async def main() -> None:
        up = await lost()
        claimed(up, METADATA_SERIES, 7, 1)
        image = (await found_in(up)).image
        assert prepared_in(image, OWN[::-1]) is None
        prepared = with_prepared(image, OWN[::-1], b"d" * 16)
        assert prepared_in(prepared, OWN[::-1]) == b"d" * 8 + OWN[::-1][8:]
        assert prepared_in(prepared, b"z" * 16) is None
        assert prepared.claims.highest(METADATA_SERIES) == 8
        await up.stop()

    run(main())
