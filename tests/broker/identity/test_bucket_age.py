"""A start on a bucket that is older than its metadata is refused; one that lost an object, or that the
metadata came from, is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.bucket_age import NEWEST_ASKED, check_bucket_age, newest_committed
from millrace.broker.identity.claim_format import ClaimKind, OwnerClaim, encode_claim
from millrace.broker.restore.plan import Seen, lifted
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.kraft.tables.wals import NodeWal, WalState, wal_record
from millrace.protocol.stream_records import CommittedObjectRecord, NextIdsRecord, NodeClaimRecord
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.keys import object_key
from tests.kraft.build import NODE, Broker, HandClock, open_node, run, sim_disk

WAL = NodeWal(NODE, b"w" * 16, "block", "file:///wal", 40, b"i" * 16, 7, WalState.ACTIVE)
CLUSTER_ID = "hGTiLit3SO-4Px19ZkbPNA"
CLAIMED, MEANT = 5, 6  # the number of who opened the log last, and one of a start that ended before its claim


async def metadata(object_count: int) -> MetadataImage:
    """Of a registered broker with a partition and so many committed objects."""
    node = await open_node(sim_disk())
    broker = await Broker.register(node)
    data = (await broker.open(await broker.create("orders"))).streams[1].stream_id
    first = await broker.prepare(object_count + 1)
    for number in range(object_count):
        assert await broker.commit(first + number, [(data, 10 * number, 10 * number + 10)]) == 0
    image = node.publisher.image
    await node.close()
    delta = MetadataDelta(image)
    delta.apply(wal_record(WAL))
    for series in (METADATA_SERIES, NODE):
        delta.apply(NodeClaimRecord(series, CLAIMED - 1, b"before".ljust(16)))
        delta.apply(NodeClaimRecord(series, CLAIMED, WAL.incarnation))
        delta.apply(NodeClaimRecord(series, MEANT, b"killed".ljust(16)))
    return delta.done(image.offset, image.epoch)


async def bucket_of(image: MetadataImage, claims_end: int = MEANT) -> MemoryObjectStore:
    """With claims below that number, and the committed objects."""
    store = MemoryObjectStore(HandClock())
    for series in (METADATA_SERIES, NODE):
        for number in range(1, claims_end):
            claim = OwnerClaim(ClaimKind.CLAIMED, CLUSTER_ID, series, number, b"i" * 16, b"b" * 16, 1, 1, 1)
            await store.put(claim.key, [encode_claim(claim)])
    for object_id in newest_committed(image):
        await store.put(object_key(CLUSTER_ID, object_id), [b"object"])
    return store


async def check(
    store: MemoryObjectStore,
    image: MetadataImage,
    bound: str | None = CLUSTER_ID,
    *,
    is_restored: bool = False,
) -> None:
    await check_bucket_age(store, "the bucket", bound, CLUSTER_ID, image, NODE, is_restored=is_restored)


@pytest.mark.parametrize("claims_end", range(1, MEANT + 2))
def test_a_claim_that_was_put_has_to_be_there(claims_end: int) -> None:
    """That of the registered incarnation, or a later one; what a start only meant to claim need not be."""

    async def main() -> None:
        image = await metadata(1)
        store = await bucket_of(image, claims_end)
        if claims_end > CLAIMED:
            await check(store, image)
            return
        with pytest.raises(
            BindingRefused, match=f"older than the metadata log: claim {CLAIMED} of .* put the current bucket"
        ):
            await check(store, image)

    run(main())


@pytest.mark.parametrize("claims_end", [CLAIMED, MEANT])
def test_a_broker_of_a_cluster_registers_before_it_claims(claims_end: int) -> None:
    """One that was killed in between is no sign of an older bucket."""

    async def main() -> None:
        image = await metadata(1)
        registered = image.brokers.get(NODE)
        assert registered is not None
        delta = MetadataDelta(image)
        delta.apply(NodeClaimRecord(NODE, MEANT, registered.incarnation_id))
        store = await bucket_of(image, claims_end)
        if claims_end > CLAIMED:
            await check(store, delta.done(image.offset, image.epoch))
            return
        with pytest.raises(BindingRefused, match=f"claim {CLAIMED} of .* was put"):
            await check(store, delta.done(image.offset, image.epoch))

    run(main())


@pytest.mark.parametrize("series", [METADATA_SERIES, NODE])
def test_each_series_tells(series: int) -> None:
    """The claims of the other are there; without a marker the bucket is called another one."""

    async def main() -> None:
        image = await metadata(1)
        store = await bucket_of(image)
        for number in range(1, MEANT):
            await store.delete(
                [OwnerClaim(ClaimKind.CLAIMED, CLUSTER_ID, series, number, b"", b"", 1, 1, 1).key]
            )
        with pytest.raises(
            BindingRefused, match=r"the metadata log was put" if series < 0 else f"node {NODE} was put"
        ):
            await check(store, image)
        with pytest.raises(
            BindingRefused, match=f"holds nothing of cluster {CLUSTER_ID}.*give the bucket that belongs"
        ):
            await check(store, image, None)

    run(main())


@pytest.mark.parametrize("missing", range(NEWEST_ASKED + 1))
def test_the_newest_objects_have_to_be_there(missing: int) -> None:
    """All of the newest that are asked for are gone: the bucket is older. Some are: their readers are told,
    and all else goes on."""

    async def main() -> None:
        image = await metadata(NEWEST_ASKED + 2)
        store = await bucket_of(image)
        for object_id in newest_committed(image)[:missing]:
            await store.delete([object_key(CLUSTER_ID, object_id)])
        if missing < NEWEST_ASKED:
            await check(store, image)
            return
        with pytest.raises(BindingRefused, match="objects 2 to 5, the newest"):
            await check(store, image)

    run(main())


def test_a_gap_in_the_ids_hides_no_objects() -> None:
    """Ids that were given and never committed lie behind the newest objects: an emptied bucket is refused."""

    async def main() -> None:
        image = await metadata(NEWEST_ASKED)
        delta = MetadataDelta(image)
        delta.apply(NextIdsRecord(image.streams.next_id, image.objects.next_id + 1_000_000))
        later = delta.done(image.offset, image.epoch)
        assert newest_committed(later) == newest_committed(image) == [3, 2, 1, 0]
        store = await bucket_of(later)
        await check(store, later)
        for object_id in newest_committed(image):
            await store.delete([object_key(CLUSTER_ID, object_id)])
        with pytest.raises(BindingRefused, match="objects 0 to 3, the newest"):
            await check(store, later)

    run(main())


def test_what_lay_before_a_restore_is_not_asked() -> None:
    """The bucket lacked it then, which was told, and each leader of the restored cluster finds it so; what
    was made since tells."""

    async def main() -> None:
        image = await metadata(NEWEST_ASKED)
        known = lifted(image, Seen())
        assert newest_committed(known) == []
        store = await bucket_of(known)
        await check(store, known)
        delta = MetadataDelta(known)
        first, kind = known.objects.next_id, int(image.objects.by_id[ObjectId(0)].kind)
        for object_id in range(first, first + NEWEST_ASKED):
            delta.apply(CommittedObjectRecord(object_id, kind, 1, node_id=NODE, group_id=object_id))
        delta.apply(NextIdsRecord(known.streams.next_id, first + NEWEST_ASKED))
        later = delta.done(known.offset, known.epoch)
        assert newest_committed(later) == [first + 3, first + 2, first + 1, first]
        with pytest.raises(BindingRefused, match="the newest that metadata has committed"):
            await check(store, later)

    run(main())


def test_few_objects_tell_nothing() -> None:
    """A cluster's only object may be lost alone."""

    async def main() -> None:
        image = await metadata(NEWEST_ASKED - 1)
        store = await bucket_of(image)
        for object_id in newest_committed(image):
            await store.delete([object_key(CLUSTER_ID, object_id)])
        await check(store, image)

    run(main())


def test_who_is_not_asked() -> None:
    """A log directory that was restored comes from this bucket, whatever that lacks; another cluster's bucket
    is judged elsewhere."""

    async def main() -> None:
        image = await metadata(NEWEST_ASKED)
        empty = MemoryObjectStore(HandClock())
        with pytest.raises(BindingRefused):
            await check(empty, image)
        await check(empty, image, "another")
        await check(empty, image, is_restored=True)

    run(main())


def test_a_lost_wal_that_is_recovered_no_more_hides_nothing() -> None:
    """A node that was restored without its WAL keeps that in its list for good."""

    async def main() -> None:
        image = await metadata(NEWEST_ASKED)
        delta = MetadataDelta(image)
        delta.apply(wal_record(replace(WAL, state=WalState.RECOVERING)))
        with pytest.raises(BindingRefused, match="older than the metadata log"):
            await check(MemoryObjectStore(HandClock()), delta.done(image.offset, image.epoch))

    run(main())
