"""The retry wrapper: what it repeats, for how long, how it waits, and that a repeat changes nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from millrace.runtime.clock import SystemClock
from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore import (
    BytesChanged,
    Keys,
    Lend,
    MultipartUpload,
    ObjectEntry,
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
    UnfinishedUpload,
    fill,
)
from millrace.runtime.objectstore.body import body_of
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.objectstore.retry import FOR_EVER, RetryingObjectStore, RetryPolicy
from millrace.runtime.rand import Rand
from tests.runtime.objectstore.contract import ObjectStoreContract, keys_of, uploads_of
from tests.sim.loop import run_simulation

QUICK = RetryPolicy(attempts_max=4, first_wait_ms=1, longest_wait_ms=2)


class Flaky:
    """A store in memory whose next calls fail as the plan says: before they take effect, or after (the answer
    is lost)."""

    def __init__(self, *plan: str | Exception) -> None:
        self.store = MemoryObjectStore(SystemClock())
        self.plan = list(plan)  # "" passes, "before", "after", "silence", or an error raised before
        self.calls = 0
        self.deletes: list[list[str]] = []
        self.refusals: dict[str, int] = {}  # how often a key is refused to a delete

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self.run(lambda: self.store.put(key, parts))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        await self.run(lambda: self.store.put_if_absent(key, parts))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self.run(lambda: self.store.get_range(key, start, end))

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        return fill(lend(), await self.get_range(key, start, end))

    async def get(self, key: str) -> bytes:
        return await self.run(lambda: self.store.get(key))

    async def head(self, key: str) -> ObjectEntry | None:
        return await self.run(lambda: self.store.head(key))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        async for entry in self.store.list(prefix, after):
            await self.run(lambda: asyncio.sleep(0))
            yield entry

    async def delete(self, keys: Sequence[str]) -> Keys:
        self.deletes.append(list(keys))
        refused = [key for key in keys if self.refusals.get(key, 0) > 0]
        for key in refused:
            self.refusals[key] -= 1
        await self.run(lambda: self.store.delete([key for key in keys if key not in refused]))
        return refused

    async def start_multipart(self, key: str) -> MultipartUpload:
        return FlakyUpload(self, await self.run(lambda: self.store.start_multipart(key)))

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        async for upload in self.store.list_uploads(prefix):
            await self.run(lambda: asyncio.sleep(0))
            yield replace(upload, abort=partial(self.run, upload.abort))

    async def close(self) -> None:
        await self.store.close()

    async def run(self, call: Callable[[], Awaitable[Any]]) -> Any:
        self.calls += 1
        step = self.plan.pop(0) if self.plan else ""
        if isinstance(step, Exception):
            raise step
        if step == "before":
            raise StoreUnavailable("503")
        answer = await call()
        if step == "silence":
            await asyncio.sleep(3600)
        if step == "after":
            raise StoreUnavailable("timeout")
        return answer


class FlakyUpload:
    def __init__(self, flaky: Flaky, upload: MultipartUpload) -> None:
        self.flaky = flaky
        self.upload = upload

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        return self.send(self.upload.put_part(parts, number))

    async def send(self, part: Coroutine[Any, Any, None]) -> None:
        try:
            await self.flaky.run(lambda: part)
        finally:
            part.close()  # when the plan failed the call before it took effect

    async def complete(self, *, if_absent: bool = False) -> None:
        await self.flaky.run(partial(self.upload.complete, if_absent=if_absent))

    async def abort(self) -> None:
        await self.flaky.run(self.upload.abort)


def run(
    flaky: Flaky, test: Callable[[RetryingObjectStore], Awaitable[None]], policy: RetryPolicy = QUICK
) -> None:
    asyncio.run(_run(flaky, test, policy))


async def _run(
    flaky: Flaky, test: Callable[[RetryingObjectStore], Awaitable[None]], policy: RetryPolicy
) -> None:
    await test(RetryingObjectStore(flaky, Rand(b"retry"), policy))


class TestRetryingObjectStore(ObjectStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[ObjectStore]:
        store = RetryingObjectStore(MemoryObjectStore(SystemClock()), Rand(b"retry"), QUICK)
        yield store
        await store.close()


def test_unavailable_is_repeated_until_it_answers() -> None:
    """Every verb outlives failures before and after its effect."""

    async def test(store: RetryingObjectStore) -> None:
        flaky.plan = ["before", "after"]
        await store.put("a", [b"one"])
        flaky.plan = ["before", "after"]
        await store.put_if_absent("b", [b"two"])
        flaky.plan = ["before", "before", "before"]
        assert await store.get("b") == b"two"
        flaky.plan = ["before"]
        assert await store.get_range("b", 0, 1) == b"t"
        flaky.plan = ["after"]
        assert await store.head("b") is not None
        flaky.plan = ["after", "before"]
        assert await store.delete(["a", "b"]) == []
        assert await keys_of(store) == []

    flaky = Flaky()
    run(flaky, test)


def test_attempts_are_bounded() -> None:
    """The last failure surfaces when the attempts are used up."""

    async def test(store: RetryingObjectStore) -> None:
        with pytest.raises(StoreUnavailable):
            await store.put("a", [b"x"])
        assert flaky.calls == 4

    flaky = Flaky(*["before"] * 10)
    run(flaky, test)


def test_for_ever_means_for_ever() -> None:
    """Without a bound it goes on as long as the store is away."""

    async def test(store: RetryingObjectStore) -> None:
        await store.put("a", [b"x"])
        assert flaky.calls == 101

    flaky = Flaky(*["before"] * 100)
    run(flaky, test, RetryPolicy(attempts_max=None, first_wait_ms=0, longest_wait_ms=0))
    assert FOR_EVER.attempts_max is None


@pytest.mark.parametrize(
    "error", [ObjectMissing("a"), PreconditionFailed("a"), StoreDenied(), StoreFull(), ValueError()]
)
def test_nothing_else_is_repeated(error: Exception) -> None:
    """An answer is an answer: only Unavailable is asked again."""

    async def test(store: RetryingObjectStore) -> None:
        with pytest.raises(type(error)):
            await store.put("a", [b"x"])
        assert flaky.calls == 1

    flaky = Flaky(error)
    run(flaky, test)


def test_a_lost_answer_does_not_lose_the_race() -> None:
    """put_if_absent took effect, the answer was lost: the repeat knows its own bytes. Against a rival's it
    fails."""

    async def test(store: RetryingObjectStore) -> None:
        await store.put_if_absent("lease", [b"mine"])
        flaky.plan = ["before"]
        with pytest.raises(PreconditionFailed):
            await store.put_if_absent("lease", [b"rival"])

    flaky = Flaky("after")
    run(flaky, test)


def test_a_timeout_is_unavailable_and_repeated() -> None:
    """A call that does not return is given up after its time and done again; used up, it surfaces as
    Unavailable."""
    policy = RetryPolicy(attempts_max=2, first_wait_ms=1, longest_wait_ms=1, attempt_timeout_ms=300)

    async def test(store: RetryingObjectStore) -> None:
        await store.put("a", [b"x"])
        assert flaky.calls == 2
        flaky.plan = ["silence", "silence"]
        with pytest.raises(StoreUnavailable):
            await store.get("a")

    flaky = Flaky("silence")
    run(flaky, test, policy)


def test_a_broken_listing_goes_on_where_it_was() -> None:
    """Failures in the middle of a listing neither repeat nor drop a key, and progress renews the patience."""
    keys = [f"k{number:02d}" for number in range(30)]

    async def test(store: RetryingObjectStore) -> None:
        for key in keys:
            await flaky.store.put(key, [b"x"])
        flaky.plan = ["", "", "before"] * 12
        assert await keys_of(store) == keys
        flaky.plan = ["before"] * 4
        with pytest.raises(StoreUnavailable):
            await keys_of(store)

    flaky = Flaky()
    run(flaky, test)


def test_parts_are_repeated_under_their_numbers() -> None:
    """Parts that fail before or after they arrive, out of order, still stand once and in their places."""

    async def test(store: RetryingObjectStore) -> None:
        upload = await store.start_multipart("big")
        flaky.plan = ["before", "after", "", "before", "after"]
        await asyncio.gather(*[upload.put_part([b"%d" % number]) for number in range(4)])
        flaky.plan = ["before", "after"]
        await upload.complete()
        assert await store.get("big") == b"0123"

    flaky = Flaky()
    run(flaky, test)


def test_unfinished_uploads_are_listed_anew_and_aborted_in_the_end() -> None:
    """A listing of uploads that breaks off begins again and shows each once; an abort is repeated like any
    other verb."""

    async def test(store: RetryingObjectStore) -> None:
        for number in range(3):
            await store.start_multipart(f"k{number}")
        flaky.plan = ["", "before", "", "", "before"]
        found = await uploads_of(store)
        assert [upload.key for upload in found] == ["k0", "k1", "k2"]
        flaky.plan = ["before", "after"]
        await found[1].abort()
        assert [upload.key for upload in await uploads_of(flaky.store)] == ["k0", "k2"]

    flaky = Flaky()
    run(flaky, test)


def test_waits_grow_to_a_bound_and_are_drawn() -> None:
    """Full jitter: each wait lies between nothing and a bound that doubles up to the longest; each is told
    beforehand."""
    told: list[tuple[str, int]] = []

    def on_retry(operation: str, failures: int, error: Unavailable) -> None:
        told.append((operation, failures))

    async def waits(seed: bytes) -> list[float]:
        loop = asyncio.get_running_loop()
        policy = RetryPolicy(attempts_max=6, first_wait_ms=4, longest_wait_ms=16)
        times: list[float] = []
        flaky = Flaky(*["before"] * 5)
        store = RetryingObjectStore(
            flaky, Rand(seed), policy, lambda *told: (on_retry(*told), times.append(loop.time()))
        )
        await store.put("a", [b"x"])
        times.append(loop.time())
        return [after - before for before, after in pairwise(times)]

    drawn = [run_simulation(lambda _, seed=seed: waits(b"%d" % seed)) for seed in range(3)]  # type: ignore[misc]
    assert told[:5] == [("put", number) for number in range(1, 6)]
    for waited in drawn:
        for seconds, bound_ms in zip(waited, (4, 8, 16, 16, 16), strict=True):
            assert 0 <= seconds <= bound_ms / 1000 + 1e-6
    assert drawn[0] != drawn[1]


def test_a_listing_that_hangs_is_asked_again() -> None:
    """One page that never comes is a failure like any other: the listing goes on beyond the last key it
    gave."""
    policy = RetryPolicy(attempts_max=3, first_wait_ms=1, longest_wait_ms=1, attempt_timeout_ms=20)
    keys = ["a", "b", "c"]

    async def test(store: RetryingObjectStore) -> None:
        for key in keys:
            await flaky.store.put(key, [b"x"])
        flaky.plan = ["", "silence", "", "silence", "silence"]
        assert await keys_of(store) == keys
        flaky.plan = ["silence"] * 3
        with pytest.raises(StoreUnavailable):
            await keys_of(store)

    flaky = Flaky()
    run_simulation(lambda _: _run(flaky, test, policy))


def test_keys_that_a_delete_refused_are_asked_for_alone() -> None:
    """Of a bulk delete only what failed is repeated; what fails each time is given back after a few times,
    also by a store that is asked for ever."""

    async def test(store: RetryingObjectStore) -> None:
        flaky.refusals = {"b": 1, "d": 2, "e": 1_000_000}
        assert await store.delete(["a", "b", "c", "d", "e"]) == ["e"]
        assert flaky.deletes == [["a", "b", "c", "d", "e"], ["b", "d", "e"], ["d", "e"], ["e"]]

    flaky = Flaky()
    run(flaky, test, RetryPolicy(attempts_max=None, first_wait_ms=1, longest_wait_ms=2))


@pytest.mark.parametrize("verb", ["put", "put_if_absent", "part"])
@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_buffer_that_changes_between_two_attempts_is_not_put(verb: str, fault: str) -> None:
    """503 or a lost answer, then the buffer changes: the repeat is refused by key and not repeated, and
    nothing else is stored than was handed over."""
    buffer = bytearray(b"what was said")
    retries: list[str] = []

    def change(operation: str, failures: int, error: Unavailable) -> None:
        retries.append(operation)
        buffer[:4] = b"EVIL"

    async def test() -> None:
        flaky = Flaky()
        store = RetryingObjectStore(flaky, Rand(b"retry"), QUICK, change)
        upload = await store.start_multipart("k") if verb == "part" else None
        flaky.plan, flaky.calls = [fault], 0
        parts = [b"<", memoryview(buffer), b">"]
        call = upload.put_part(parts) if upload is not None else getattr(store, verb)("k", parts)
        with pytest.raises(BytesChanged, match="k: its bytes changed") as caught:
            await call
        assert caught.value.key == "k"
        assert (flaky.calls, len(retries)) == (1, 1)
        assert await keys_of(flaky.store) == (["k"] if fault == "after" and upload is None else [])
        if fault == "after" and upload is None:
            assert await flaky.store.get("k") == b"<what was said>"

    asyncio.run(test())


def test_a_body_keeps_its_sum_over_several_calls() -> None:
    """Who asks above the wrapper hands in the same body: its second call is a further attempt, also when its
    first one was used up."""

    async def test(store: RetryingObjectStore) -> None:
        buffer = bytearray(6 << 20)
        body = body_of([buffer, b"the end"])
        with pytest.raises(StoreUnavailable):
            await store.put("a", body)
        buffer[-1] = 1
        with pytest.raises(BytesChanged):
            await store.put("a", body)
        assert flaky.calls == 1
        buffer[-1] = 0
        await store.put("a", body)
        assert (await flaky.store.get("a"))[-8:] == b"\0the end"

    flaky = Flaky("before")
    run(flaky, test, RetryPolicy(attempts_max=1))


class SlowGate:
    """Lets each attempt in after a while, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    async def enter(self, sent_bytes: int, received_bytes: int) -> None:
        await asyncio.sleep(0.05)
        self.told.append((sent_bytes, received_bytes))

    def on_end(self, sent_bytes: int, error: Unavailable | None) -> None:
        self.told.append("ok" if error is None else "failed")

    def on_received(self, size_bytes: int) -> None:
        self.told.append(size_bytes)


def test_a_gate_stands_before_each_attempt() -> None:
    """It hears of the bytes and the end of every attempt, repeats included; the wait at it is not charged to
    an attempt's time."""

    async def test() -> None:
        gate, flaky = SlowGate(), Flaky("before")
        policy = RetryPolicy(attempts_max=2, first_wait_ms=1, longest_wait_ms=1, attempt_timeout_ms=20)
        store = RetryingObjectStore(flaky, Rand(b"gate"), policy, gate=gate)
        await store.put("a", [b"abc", b"de"])
        upload = await store.start_multipart("b")
        await upload.put_part([b"part"])
        assert await store.get_range("a", 1, 4) == b"bcd"
        assert await store.get("a") == b"abcde"
        assert gate.told == [
            *[(5, 0), "failed", (5, 0), "ok"],
            *[(0, 0), "ok", (4, 0), "ok", (0, 3), "ok", (0, 0), "ok", 5],
        ]

    run_simulation(lambda _: test())
