"""A bucket is taken by one cluster, also where the store does not keep what conditional puts promise."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millrace.broker.identity.binding import MARKER_KEY, BindingRefused, bind_bucket, read_bound_cluster
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import ObjectStore, StoreContradicts
from millrace.runtime.objectstore.address import StoreAddress, open_store, parse_address
from millrace.runtime.rand import Rand
from millrace.wal.config import ObjectWalSettings
from millrace.wal.errors import WalStoreUnfit
from millrace.wal.kind import WalPlace
from millrace.wal.log import WalOwner
from millrace.wal.opening import open_wal
from tests.contradicting import Contradicting
from tests.live.bad_s3 import BadS3
from tests.sim.disk import SimDisk

ONE, OTHER = "hGTiLit3SO-4Px19ZkbPNA", "zzTiLit3SO-4Px19ZkbPNA"


@pytest.mark.parametrize("fault", ["ignores-if-none-match", "refuses-if-none-match", "no-bulk-delete"])
def test_a_bucket_is_bound_once(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """The first cluster gets it, the second is refused; where conditional puts are not kept, one sentence
    says what that leaves open."""

    async def main() -> None:
        async with BadS3(fault) as bad:
            store = await open_store(parse_address(bad.address), SystemClock())
            await bind_bucket(store, "the bucket", None, ONE, EMPTY_IMAGE, is_remote=True)
            assert await read_bound_cluster(store, "the bucket") == ONE
            with pytest.raises(BindingRefused, match=ONE):
                await bind_bucket(store, "the bucket", None, OTHER, EMPTY_IMAGE, is_remote=True)
            assert list(bad.objects) == [MARKER_KEY]
            await store.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    said = [record.getMessage() for record in caplog.records if "not guarded" in record.getMessage()]
    assert bool(said) == (fault != "no-bulk-delete"), caplog.text


def test_a_marker_that_is_refused_and_cannot_be_read() -> None:
    """The store's contradiction is named, and no other cluster that nobody has seen."""

    async def main() -> None:
        store = Contradicting(SystemClock())
        store.is_refused = store.is_hidden = lambda key: key == MARKER_KEY
        with pytest.raises(
            StoreContradicts, match=f"{MARKER_KEY}: a put is told that it exists, a read that there is no"
        ):
            await bind_bucket(store, "the bucket", None, ONE, EMPTY_IMAGE)

    asyncio.run(main())


def test_an_object_wal_is_refused_where_its_fence_would_not_hold() -> None:
    """Conditional puts that the store ignores are found before the log is opened, and the sentence names two
    ways out; one of them works."""

    async def main(wanted: str) -> None:
        async with BadS3("ignores-if-none-match") as bad:

            async def opened(address: StoreAddress) -> ObjectStore:
                return await open_store(parse_address(bad.address), SystemClock())

            place = WalPlace(
                parse_address(bad.address),
                SimDisk(),
                opened,
                Rand(b"place"),
                ObjectWalSettings(fence=wanted),
            )
            wal = await open_wal(place, WalOwner(ONE, 1, 5))
            await wal.close()

    with pytest.raises(WalStoreUnfit, match=r"If-None-Match is ignored.*fence=reservation.*on a disk"):
        asyncio.run(main("conditional"))
    asyncio.run(main("reservation"))
