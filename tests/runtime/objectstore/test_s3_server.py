"""The S3 store keeps the contract on a real S3 server, one that checks signatures and checksums."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from aiobotocore.session import AioSession

from millrace.runtime.objectstore import (
    BytesChanged,
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    StoreDenied,
    StoreUnavailable,
)
from millrace.runtime.objectstore.body import body_of
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy
from millrace.runtime.objectstore.s3 import S3ObjectStore
from millrace.runtime.rand import Rand
from tests.live.s3_server import S3Server
from tests.patience import PATIENCE_S
from tests.runtime.objectstore.contract import ObjectStoreContract

QUICK = RetryPolicy(attempts_max=3, first_wait_ms=1, longest_wait_ms=2)
RACES, RACERS = 300, 24
bucket_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as made:
        yield made


@cache
def shared_session() -> AioSession:
    """Loads the client's model once for all."""
    return AioSession()


class TestS3ObjectStoreOnAServer(ObjectStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: S3Server) -> None:
        self.server = server

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ObjectStore]:
        store = await S3ObjectStore.open(
            self.server.settings(f"bucket{next(bucket_numbers)}"), shared_session()
        )
        assert (await store.http.ask("PUT", "")).status == 200
        yield store
        await store.close()

    def test_each_answer_tells_the_time(self) -> None:
        """By the server's clock, whichever way the request went: a get, a head, a listing, a refusal."""

        async def test(store: ObjectStore) -> None:
            assert isinstance(store, S3ObjectStore)
            await store.put("c/a", [b"x"])
            views = [memoryview(bytearray(1))]
            with suppress(ObjectMissing):
                for ask in (
                    store.head("c/a"),
                    store.get("c/a"),
                    store.get_into("c/a", 0, 1, lambda: views),
                    store.delete(["c/a"]),
                    store.get("c/none"),
                ):
                    store.http._date = ("", 0.0)
                    assert store.last_date is None
                    await ask
            date = store.last_date
            assert date is not None
            assert abs(date.wall_ms - time.time() * 1000) < PATIENCE_S * 1000
            assert 0 <= asyncio.get_running_loop().time() - date.came_s < PATIENCE_S

        self.run(test)

    def test_signatures_are_checked(self) -> None:
        """What our signer signs is taken, in keys of any characters; with another secret every verb is
        denied."""

        async def test(store: ObjectStore) -> None:
            for key in ("c/plain", "c/a b+c&d=e", "c/~tilde_é(1)"):
                await store.put(key, [b"x"])
                assert await store.get_range(key, 0, 1) == b"x"

        self.run(test)

        async def forged(_: ObjectStore) -> None:
            settings = self.server.settings("forged")
            settings = type(settings)("forged", settings.endpoint, "us-east-1", True, "test", "another")
            store = await S3ObjectStore.open(settings, shared_session())
            for call in (store.put("a", [b"x"]), store.get("a"), store.start_multipart("a")):
                with pytest.raises(StoreDenied, match="SignatureDoesNotMatch"):
                    await call
            await store.close()

        self.run(forged)

    def test_a_body_that_changed_on_its_way_is_refused(self) -> None:
        """A body under another's checksum is not stored: it is the store that finds it, and the put is to be
        repeated."""

        async def test(store: ObjectStore) -> None:
            assert isinstance(store, S3ObjectStore)
            with pytest.raises(StoreUnavailable):
                await store._put_summed("c/a", body_of([b"body"]), {"x-amz-checksum-crc32c": "AAAAAA=="})
            assert await store.head("c/a") is None

        self.run(test)

    @pytest.mark.parametrize("verb", ["put", "put_if_absent", "part"])
    def test_a_body_that_changed_in_memory_is_refused(self, verb: str) -> None:
        """What changed behind its sum is not stored, whatever sends it: the server finds it, and it is not
        sent again."""

        async def test(bare: ObjectStore) -> None:
            retries: list[str] = []
            store = RetryingObjectStore(
                bare, Rand(b"s3"), QUICK, lambda operation, *_: retries.append(operation)
            )
            upload = await store.start_multipart("c/a") if verb == "part" else None
            buffer = bytearray(5 << 20)
            body = body_of([buffer, b"end"])
            await body.crc()
            buffer[-1] = 1
            call = upload.put_part(body) if upload is not None else getattr(store, verb)("c/a", body)
            with pytest.raises(BytesChanged):
                await call
            assert len(retries) == 1
            assert await bare.head("c/a") is None
            if upload is not None:
                await upload.abort()

        self.run(test)


def test_who_loses_a_conditional_put_finds_what_won(tmp_path: Path) -> None:
    """As docker-compose.yml starts the server: an owner of a log of objects that is told "exists" and finds
    nothing waits until it is told one thing. The bucket is there from the start."""

    async def put(store: ObjectStore, key: str, body: bytes) -> bytes:
        try:
            await store.put_if_absent(key, [body])
        except PreconditionFailed:
            return await store.get(key)
        return body

    async def main(server: S3Server) -> None:
        store = await S3ObjectStore.open(server.settings("raced"), shared_session())
        for number in range(RACES):
            bodies = (b"%d" % racer for racer in range(RACERS))
            found = await asyncio.gather(*(put(store, f"log/{number}", body) for body in bodies))
            assert len(set(found)) == 1, found
        await store.close()

    with S3Server(tmp_path, is_xattr=True, made="raced") as server:
        asyncio.run(main(server))


@pytest.mark.parametrize(
    ("changed", "code"),
    [({"access_key": "nobody"}, "XAdminUserNotFound"), ({"bucket": "nowhere"}, "NoSuchBucket")],
)
def test_a_store_that_does_not_know_us_is_no_empty_store(
    server: S3Server, changed: dict[str, str], code: str
) -> None:
    """Keys that nobody has, and a bucket that is not there, are answered with 404, as an object that is not
    there is: each verb tells them apart."""

    bucket = f"bucket{next(bucket_numbers)}"

    async def main() -> None:
        store = await S3ObjectStore.open(replace(server.settings(bucket), **changed), shared_session())
        calls = store.head("a"), store.get("a"), store.put("a", [b"x"]), store.put_if_absent("a", [b"x"])
        for call in (*calls, anext(store.list(""))):
            with pytest.raises(StoreDenied, match=code):
                await call
        await store.close()

    server.make(bucket)
    asyncio.run(main())
