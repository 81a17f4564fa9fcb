"""What every object store must do, as one class of tests. Each implementation's test file subclasses it and
opens a store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest

from millrace.runtime.errors import Closed
from millrace.runtime.objectstore import (
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    UnfinishedUpload,
)

PART_BYTES = 5 << 20  # the smallest part that S3 takes


async def keys_of(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [entry.key async for entry in store.list(prefix, after)]


async def uploads_of(store: ObjectStore, prefix: str = "") -> list[UnfinishedUpload]:
    return [upload async for upload in store.list_uploads(prefix)]


class ObjectStoreContract:
    def open(self) -> AbstractAsyncContextManager[ObjectStore]:
        """An empty store."""
        raise NotImplementedError

    async def fill(self, store: ObjectStore, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), 50):
            await asyncio.gather(*(store.put(key, [b"x"]) for key in keys[first : first + 50]))

    def run(self, test: Callable[[ObjectStore], Awaitable[None]]) -> None:
        async def main() -> None:
            async with self.open() as store:
                await test(store)

        asyncio.run(main())

    def test_put_joins_its_parts_and_replaces(self) -> None:
        """What was put comes back whole, from parts of every kind, and a second put replaces it."""

        async def test(store: ObjectStore) -> None:
            await store.put("c/a", [b"one", memoryview(b"-two-"), bytearray(b"three"), b""])
            assert await store.get("c/a") == b"one-two-three"
            await store.put("c/a", [b"new"])
            assert await store.get("c/a") == b"new"
            await store.put("c/empty", [])
            assert await store.get("c/empty") == b""

        self.run(test)

    def test_many_and_large_parts(self) -> None:
        """Thousands of small parts and parts above any buffer's size arrive in order."""
        parts: list[bytes] = [b"%05d" % number for number in range(3000)] + [
            bytes([7]) * 700_000,
            b"x",
            bytes([9]) * 300_001,
        ]

        async def test(store: ObjectStore) -> None:
            await store.put("c/large", parts)
            assert await store.get("c/large") == b"".join(parts)

        self.run(test)

    def test_ranges(self) -> None:
        """A range ends before `end`, is cut at the object's end, and is empty beyond it."""

        async def test(store: ObjectStore) -> None:
            await store.put("c/a", [b"0123456789"])
            assert await store.get_range("c/a", 0, 1) == b"0"
            assert await store.get_range("c/a", 3, 7) == b"3456"
            assert await store.get_range("c/a", 8, 100) == b"89"
            assert await store.get_range("c/a", 10, 11) == b""
            assert await store.get_range("c/a", 50, 60) == b""

        self.run(test)

    def test_ranges_into_memory(self) -> None:
        """A range fills the views it is lent, one after the other, and nothing beside them; what lies beyond
        the object is cut and told."""

        async def test(store: ObjectStore) -> None:
            content = bytes(range(256)) * 2000
            await store.put("c/a", [content])
            for start, sizes in (
                (0, (1,)),
                (7, (100, 1, 300_000, 5)),
                (len(content) - 10, (4, 6)),
                (len(content) - 10, (4, 60, 2)),
            ):
                memory = bytearray(b"-" * (sum(sizes) + 3))
                views, place = [], 0
                for size in sizes:
                    views.append(memoryview(memory)[place : place + size])
                    place += size
                expected = content[start : start + sum(sizes)]
                found, count = await store.get_into("c/a", start, start + sum(sizes), partial(list, views))
                assert [len(view) for view in found] == list(sizes)
                assert count == len(expected)
                assert memory == expected + b"-" * (len(memory) - len(expected))
            for key, start in (("c/a", len(content)), ("c/a", len(content) + 1)):
                assert (await store.get_into(key, start, start + 5, lambda: [memoryview(bytearray(5))]))[
                    1
                ] == 0
            with pytest.raises(ObjectMissing):
                await store.get_into("c/none", 0, 5, lambda: [memoryview(bytearray(5))])

        self.run(test)

    def test_missing_objects(self) -> None:
        """Reading what is not there raises ObjectMissing with the key; head gives None; deleting it
        succeeds."""

        async def test(store: ObjectStore) -> None:
            await store.put("c/folder/a", [b"x"])
            for key in ("c/none", "none/none", "c/folder", "c/folder/a/b"):
                with pytest.raises(ObjectMissing) as caught:
                    await store.get(key)
                assert caught.value.key == key
                with pytest.raises(ObjectMissing):
                    await store.get_range(key, 0, 10)
                assert await store.head(key) is None
                assert await store.delete([key]) == []
            assert await keys_of(store) == ["c/folder/a"]

        self.run(test)

    def test_head_and_list_agree(self) -> None:
        """Size and time of an object are the same in head and in a listing, and plausible."""

        async def test(store: ObjectStore) -> None:
            await store.put("c/a", [b"12345"])
            head = await store.head("c/a")
            [listed] = [entry async for entry in store.list("c/")]
            assert head is not None
            assert (head.key, head.size_bytes) == (listed.key, listed.size_bytes) == ("c/a", 5)
            # Stores round to a second, and a listing may round another way than a head.
            assert abs(head.modified_ms - listed.modified_ms) <= 1000

        self.run(test)

    def test_put_if_absent_has_one_winner(self) -> None:
        """Of many creators with different bytes one wins, the others are told so and change nothing."""

        async def attempt(store: ObjectStore, number: int) -> int | None:
            try:
                await store.put_if_absent("c/lease", [b"owner ", b"%d" % number])
            except PreconditionFailed:
                return None
            return number

        async def test(store: ObjectStore) -> None:
            winners = [
                won
                for won in await asyncio.gather(*(attempt(store, n) for n in range(12)))
                if won is not None
            ]
            assert len(winners) == 1
            assert await store.get("c/lease") == b"owner %d" % winners[0]

        self.run(test)

    def test_replace_has_one_winner(self) -> None:
        """Of many who replace the same content one wins; the others are told so. What is not there is not
        replaced."""

        async def attempt(store: ObjectStore, number: int) -> int | None:
            try:
                await store.replace("c/newest", [b"one ", b"%d" % number], b"nought")
            except PreconditionFailed:
                return None
            return number

        async def test(store: ObjectStore) -> None:
            with pytest.raises(PreconditionFailed):
                await store.replace("c/newest", [b"one"], b"nought")
            assert await store.head("c/newest") is None
            await store.put("c/newest", [b"nought"])
            winners = [
                won for won in await asyncio.gather(*(attempt(store, n) for n in range(8))) if won is not None
            ]
            assert len(winners) == 1
            assert await store.get("c/newest") == b"one %d" % winners[0]

        self.run(test)

    def test_replace_knows_its_own(self) -> None:
        """Repeated with the same bytes it succeeds, as after a lost answer; another's content stays."""

        async def test(store: ObjectStore) -> None:
            await store.put("c/newest", [b"1"])
            await store.replace("c/newest", [b"2"], b"1")
            await store.replace("c/newest", [b"2"], b"1")
            for before in (b"1", b"", b"22"):
                with pytest.raises(PreconditionFailed):
                    await store.replace("c/newest", [b"3"], before)
            assert await store.get("c/newest") == b"2"

        self.run(test)

    def test_put_if_absent_knows_its_own(self) -> None:
        """Repeated with the same bytes it succeeds, as after a lost answer; with others, longer or shorter,
        it fails."""

        async def test(store: ObjectStore) -> None:
            await store.put_if_absent("c/lease", [b"mine"])
            await store.put_if_absent("c/lease", [b"mi", b"ne"])
            for other in (b"min", b"mine!", b"yours", b""):
                with pytest.raises(PreconditionFailed):
                    await store.put_if_absent("c/lease", [other])
            assert await store.get("c/lease") == b"mine"

        self.run(test)

    def test_list_is_in_key_order_and_by_prefix(self) -> None:
        """Keys come in the order of their bytes across folders, by a prefix that need not end at a slash,
        beyond any key."""
        keys = [
            "c/a",
            "c/b-1",
            "c/b/1",
            "c/b/10",
            "c/b/2",
            "c/b0",
            "c/objects/00/3",
            "d/a",
            "c2/a",
            "c/b.x/1",
            "c/é/1",
        ]

        async def test(store: ObjectStore) -> None:
            for key in keys:
                await store.put(key, [key.encode()])
            for prefix in ("", "c", "c/", "c/b", "c/b/", "c/b/1", "c/b/10", "nothing", "c/objects/0", "c/a/"):
                expected = sorted(key for key in keys if key.startswith(prefix))
                assert await keys_of(store, prefix) == expected, prefix
                for after in self.afters:
                    beyond = [key for key in expected if key > after]
                    assert await keys_of(store, prefix, after) == beyond, (prefix, after)

        self.run(test)

    afters = ("c/a", "c/b/1", "c/b/10", "c/b0", "c/b/", "c/b/1/", "c/b/100", "a", "z", "c/objects")

    def test_list_goes_beyond_a_page(self) -> None:
        """More objects than stores give at once are all listed, once each; and they are deleted in one
        call."""
        keys = [f"c/{number % 10}/{number:04d}" for number in range(1010)]

        async def test(store: ObjectStore) -> None:
            await self.fill(store, keys)
            assert await keys_of(store) == sorted(keys)
            assert await store.delete(keys) == []
            assert await keys_of(store) == []

        self.run(test)

    def test_delete_takes_only_what_it_names(self) -> None:
        """Named objects go, missing ones count as gone, neighbours stay, and a deleted key can be put
        again."""

        async def test(store: ObjectStore) -> None:
            for key in ("c/x/1", "c/x/2", "c/y/3"):
                await store.put(key, [b"x"])
            assert await store.delete([]) == []
            assert await store.delete(["c/x/1", "c/none", "c/y/3"]) == []
            assert await keys_of(store) == ["c/x/2"]
            await store.put("c/y/3", [b"again"])
            assert await store.get("c/y/3") == b"again"

        self.run(test)

    def test_multipart_shows_at_complete(self) -> None:
        """Parts sent out of order stand in the order of the calls, and nothing is visible before
        `complete`."""
        one, two, three = bytes([1]) * PART_BYTES, bytes([2]) * PART_BYTES, b"the rest"

        async def test(store: ObjectStore) -> None:
            upload = await store.start_multipart("c/big")
            sends = [upload.put_part(part) for part in ([one], [two[:100], two[100:]], [three])]
            for send in reversed(sends):
                await send
            assert await store.head("c/big") is None
            assert await keys_of(store) == []
            await upload.complete()
            await upload.abort()
            assert await store.get("c/big") == one + two + three

        self.run(test)

    def test_multipart_completed_if_absent(self) -> None:
        """Under the condition an upload never replaces what is there, be it its own; where nothing is, it
        ends as without."""

        async def test(store: ObjectStore) -> None:
            upload, late = [await store.start_multipart("c/big") for _ in range(2)]
            await upload.put_part([b"mine"])
            await late.put_part([b"theirs"])
            await upload.complete(if_absent=True)
            with pytest.raises(PreconditionFailed):
                await late.complete(if_absent=True)
            await late.abort()
            assert await store.get("c/big") == b"mine"
            assert await keys_of(store) == ["c/big"]
            assert await uploads_of(store, "") == []

        self.run(test)

    def test_multipart_part_again(self) -> None:
        """A part whose outcome is unknown is sent again under its number; it stands once."""

        async def test(store: ObjectStore) -> None:
            upload = await store.start_multipart("c/big")
            first, last = bytes([1]) * PART_BYTES, b"last"
            await upload.put_part([first])
            await upload.put_part([last])
            await upload.put_part([first], 0)
            await upload.complete()
            assert await store.get("c/big") == first + last

        self.run(test)

    def test_multipart_aborted_leaves_nothing(self) -> None:
        """After `abort`, called twice, there is no object."""

        async def test(store: ObjectStore) -> None:
            upload = await store.start_multipart("c/big")
            await upload.put_part([b"x"])
            await upload.abort()
            await upload.abort()
            assert await keys_of(store) == []

        self.run(test)

    has_upload_list = True
    """Whether unfinished uploads show; where they do not, the store sweeps them itself."""
    upload_gone: type[Exception] = ObjectMissing

    def test_unfinished_uploads_are_listed_and_aborted(self) -> None:
        """Those that began and did not end, by prefix, each of a key's; one that was aborted from the list
        can be neither added to nor completed, and aborting what has ended changes nothing."""

        async def test(store: ObjectStore) -> None:
            done, given_up, *left = [
                await store.start_multipart(f"c/{name}") for name in ("done", "up", "x/1", "x/1", "x/2")
            ]
            other = await store.start_multipart("d/1")
            await done.put_part([b"done"])
            await left[0].put_part([b"lost"])
            [of_done] = await uploads_of(store, "c/d") or [None]
            await done.complete()
            await given_up.abort()
            found = await uploads_of(store, "c/")
            assert await keys_of(store) == ["c/done"]
            if not self.has_upload_list:
                assert found == []
                for upload in (*left, other):
                    await upload.abort()
                return
            assert [upload.key for upload in found] == ["c/x/1", "c/x/1", "c/x/2"]
            assert [upload.key for upload in await uploads_of(store, "c/x/2")] == ["c/x/2"]
            assert await uploads_of(store, "c/y") == []
            assert of_done is not None
            for ended in (of_done, *found, found[0]):
                await ended.abort()
            assert [upload.key for upload in await uploads_of(store, "")] == ["d/1"]
            with pytest.raises(self.upload_gone):
                await left[0].complete()
            with pytest.raises(self.upload_gone):
                await left[1].put_part([b"late"])
            assert await keys_of(store) == ["c/done"]
            await other.abort()

        self.run(test)

    def test_closed_store_refuses(self) -> None:
        """After `close` every verb raises Closed."""

        async def test(store: ObjectStore) -> None:
            await store.close()
            calls: Sequence[Awaitable[object]] = (
                store.put("c/a", [b"x"]),
                store.get("c/a"),
                store.get_range("c/a", 0, 1),
                store.head("c/a"),
                keys_of(store),
                store.delete(["c/a"]),
                store.start_multipart("c/a"),
                *([uploads_of(store)] if self.has_upload_list else []),
            )
            for call in calls:
                with pytest.raises(Closed):
                    await call

        self.run(test)
