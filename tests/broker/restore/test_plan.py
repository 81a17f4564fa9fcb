"""What a restore makes of an older image: everything that may have been given since is left behind."""

from __future__ import annotations

from millrace.broker.restore.plan import (
    IDS_PER_RECORD,
    RECORDS_PER_MS,
    UNSEEN_MS_MIN,
    Seen,
    lifted,
    missing_objects,
    ranges_in_wal,
    ranges_without,
)
from millrace.kraft.commands.brokers import PRODUCER_ID_BLOCK
from millrace.kraft.commands.heirs import compactor_of
from millrace.kraft.commands.objects import PREPARED_COUNT_MAX
from millrace.kraft.commands.takers import CORDONED, is_drained, takers_of
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.log.claim_basis import ClaimBasis, read_claim_basis, write_claim_basis
from millrace.kraft.log.meta_properties import MetaProperties
from millrace.kraft.log.restored_from import RestoredFrom
from millrace.kraft.log.restored_log import UNFINISHED, holds_something, write_restored_log
from millrace.kraft.tables.configs import ResourceType
from millrace.kraft.tables.wals import NodeWal, WalState, wal_record
from millrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from millrace.protocol.metadata_records import ConfigRecord, RegisterBrokerRecord
from tests.kraft.build import NODE, Broker, open_node, run, sim_disk

FROM = RestoredFrom(40, 3, 7)
WAL = NodeWal(NODE, b"w" * 16, "object", "s3://wal", 40, b"i" * 16, 7, WalState.ACTIVE)


async def history() -> MetadataImage:
    """A topic with an open partition, an object of it, a prepared id and a log."""
    node = await open_node(sim_disk())
    broker = await Broker.register(node)
    topic_id = await broker.create("orders")
    opened = await broker.open(topic_id)
    data = opened.streams[1].stream_id
    first = await broker.prepare(2)
    assert await broker.commit(first, [(data, 0, 10)]) == 0
    image = node.publisher.image
    await node.close()
    delta = MetadataDelta(image)
    delta.apply(wal_record(WAL))
    return delta.done(image.offset, image.epoch)


def test_everything_that_grows_is_lifted_above_what_was_seen() -> None:
    """Offsets, epochs, ids: above the image's, and above what bucket and logs show. The logs are to be
    recovered."""

    async def main() -> None:
        image = await history()
        seen = Seen(offset=5_000_000, epoch=33, object_id=9_000_000, claims=[(NODE, 4, b"c" * 16)])
        new = lifted(image, seen)
        assert new.offset > 5_000_000
        assert new.epoch > 33
        assert new.objects.next_id > 9_000_000
        assert new.streams.next_id > image.streams.next_id + 1_000
        assert new.producer_ids > image.producer_ids + 1_000
        (topic,) = new.topics
        assert topic.partitions[0].leader_epoch > 100
        assert [wal.state for wal in new.wals] == [WalState.RECOVERING]
        assert [claim.number for claim in new.claims.of(NODE)] == [4]
        assert new.streams.by_id == image.streams.by_id
        assert new.objects.by_id == image.objects.by_id

    run(main())


def test_of_two_restores_of_one_copy_the_later_one_has_higher_leader_epochs() -> None:
    """Than the first one's log came to, in which a leader changes at most once a second. No clock lifts them
    out of their 31 bits."""

    async def main() -> None:
        image = await history()

        def leader_epoch(unseen_ms: int) -> int:
            (topic,) = lifted(image, Seen(unseen_ms=unseen_ms)).topics
            return topic.partitions[0].leader_epoch

        assert leader_epoch(86_400_000 + 60_000) >= leader_epoch(86_400_000) + 60
        assert leader_epoch(-1) == leader_epoch(0)
        assert leader_epoch(1 << 62) < 1 << 24

    run(main())


def test_what_is_missing_is_named_by_partition_and_offsets() -> None:
    """An object that is not there costs what it held; a log that is gone what was above the committed end."""

    async def main() -> None:
        image = await history()
        assert missing_objects(image, frozenset([0])) == []  # the prepared one may be missing
        assert [str(found) for found in ranges_without(image, missing_objects(image, frozenset()))] == [
            "orders-0: offsets [0, 10): object 0 is not in the bucket"
        ]
        assert [str(found) for found in ranges_in_wal(image, NODE, "gone")] == [
            "orders-0: offsets from 10 on: gone"
        ]

    run(main())


def test_a_restored_directory_is_started_like_any_other() -> None:
    """It begins at the lifted offset with the image as it was, leads in a higher epoch, and restarts."""

    async def main() -> None:
        image = lifted(await history(), Seen(epoch=50))
        disk = sim_disk()
        meta = MetaProperties("AAAAAAAAAAAAAAAAAAAAAQ", NODE, "AAAAAAAAAAAAAAAAAAAAAg")
        await write_restored_log(disk, "/data", meta, (NODE,), image, FROM, 0)
        assert await holds_something(disk, "/data") is not None
        for start in range(2):
            node = await open_node(disk)
            assert node.publisher.image.epoch > image.epoch > 50
            assert node.publisher.image.offset > image.offset
            assert node.publisher.image.topics == image.topics
            broker = await Broker.register(node, 7 + start)
            assert broker.epoch >= image.offset
            await node.close()

    run(main())


def test_a_restored_directory_knows_nothing_of_a_claim_of_before() -> None:
    """What a start of the log that was here noted, and its folder kept, would refuse the restored one for
    what the bucket holds."""

    async def main() -> None:
        disk = sim_disk()
        await disk.make_folder("/data")
        await write_claim_basis(disk, "/data", ClaimBasis(1, 10))
        assert await holds_something(disk, "/data") is None
        meta = MetaProperties("AAAAAAAAAAAAAAAAAAAAAQ", NODE, "AAAAAAAAAAAAAAAAAAAAAg")
        await write_restored_log(disk, "/data", meta, (NODE,), lifted(await history(), Seen()), FROM, 0)
        assert await read_claim_basis(disk, "/data") is None

    run(main())


def test_what_an_interrupted_restore_left_is_no_log() -> None:
    """Whatever of it is there, whole or torn: it is written anew, and starts."""

    async def main() -> None:
        image = lifted(await history(), Seen())
        meta = MetaProperties("AAAAAAAAAAAAAAAAAAAAAQ", NODE, "AAAAAAAAAAAAAAAAAAAAAg")
        disk = sim_disk()
        await write_restored_log(disk, "/data", meta, (NODE,), image, FROM, 0)
        written = {name: await disk.read_file(name) or b"" for name in sorted(disk.files)}
        for count in range(len(written) + 1):
            left = sim_disk()
            await left.make_folder("/data/__cluster_metadata-0")
            await left.write_file(f"/data/{UNFINISHED}", b"")
            for name in list(written)[:count]:
                await left.write_file(name, written[name][: len(written[name]) // 2])
            assert await holds_something(left, "/data") is None
            await write_restored_log(left, "/data", meta, (NODE,), image, FROM, 0)
            node = await open_node(left)
            assert node.publisher.image.topics == image.topics
            await node.close()

    run(main())


def test_an_empty_image_is_lifted_too() -> None:
    """A cluster without topics is a cluster."""
    assert lifted(EMPTY_IMAGE, Seen()).offset == RECORDS_PER_MS * UNSEEN_MS_MIN


def test_what_was_given_unseen_is_left_behind_however_long_it_was() -> None:
    """The node goes on after the image was taken, with the commands that give most for a record: nothing of
    it is given again. For each millisecond of an outage there is room for more than a controller decides in
    that time."""
    assert PREPARED_COUNT_MAX <= IDS_PER_RECORD
    assert PRODUCER_ID_BLOCK <= IDS_PER_RECORD

    async def main() -> None:
        node = await open_node(sim_disk())
        broker = await Broker.register(node)
        topic_id = await broker.create("orders", 50)
        image = node.publisher.image
        for partition in range(50):
            await broker.open(topic_id, partition)
        for _ in range(50):
            await broker.prepare(PREPARED_COUNT_MAX)
            await node.channel.send(AllocateProducerIdsRequest(NODE, broker.epoch))
        later = node.publisher.image
        seen = Seen()
        for new in (lifted(image, seen), lifted(image, Seen(unseen_ms=-5))):
            assert new.offset > later.offset
            assert new.streams.next_id > later.streams.next_id
            assert new.objects.next_id > later.objects.next_id
            assert new.producer_ids > later.producer_ids
        hour = lifted(image, Seen(unseen_ms=3_600_000, unseen_starts=70))
        assert hour.offset >= image.offset + 3_600_000 * RECORDS_PER_MS
        assert hour.producer_ids - image.producer_ids >= (hour.offset - image.offset) * PRODUCER_ID_BLOCK
        assert (
            hour.objects.next_id - image.objects.next_id >= (hour.offset - image.offset) * PREPARED_COUNT_MAX
        )
        (topic,) = hour.topics
        assert topic.partitions[0].leader_epoch >= 1_000 + 70
        far = lifted(image, Seen(unseen_ms=1 << 60))
        assert far.offset < 1 << 47
        assert far.producer_ids < 1 << 53
        assert lifted(far, Seen(unseen_ms=1 << 60)).producer_ids < 1 << 63
        await node.close()

    run(main())


def test_what_is_said_of_brokers_that_do_not_come_back_goes_on() -> None:
    """They are fenced; a drained one stays drained, their stream sets are compacted by whoever is there, and
    by themselves while nobody is. A node that comes with another id is one of the takers."""
    delta = MetadataDelta(EMPTY_IMAGE)
    for broker_id in (1, 2, 3):
        delta.apply(RegisterBrokerRecord(broker_id, bytes(16), broker_epoch=broker_id, fenced=False))
    delta.apply(ConfigRecord(ResourceType.BROKER, "3", CORDONED, "*"))
    image = lifted(delta.done(10, 1), Seen())
    assert all(broker.is_fenced for broker in image.brokers)
    assert is_drained(image, 3)
    assert [compactor_of(image, broker_id) for broker_id in (1, 2, 3)] == [1, 2, 3]
    after = MetadataDelta(image)
    for broker_id in (3, 11):
        after.apply(RegisterBrokerRecord(broker_id, bytes(16), broker_epoch=image.offset, fenced=False))
    image = after.done(image.offset + 2, image.epoch)
    assert [broker.broker_id for broker in takers_of(image)] == [11]
    assert {compactor_of(image, broker_id) for broker_id in (1, 2)} <= {3, 11}
