"""Wrapper: repeats what the store did not answer, with exponential backoff and full jitter, a given number of
times or for ever.

Only Unavailable is repeated, and a timeout is Unavailable: the outcome of what it cut off is unknown, so
every verb must bear being done twice. They do: a put puts the same bytes, a delete of what is gone succeeds,
and `put_if_absent` knows by content an object that an earlier attempt of ours had put (each store compares
when it loses), so a writer that must be told from others puts something of its own into the bytes. Buffers
must not change before the call returns, for they may be sent again: their sum is known before the first
attempt, every attempt goes out under it, and one that would send other bytes ends in BytesChanged instead
(body.py). A part of a multipart upload is repeated under its own number; of a delete, only the
keys that were refused. A gate, where there is one, is passed before each attempt. Not here: what a store's
errors mean (each store maps its own).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore import (
    Keys,
    Lend,
    MultipartUpload,
    ObjectEntry,
    ObjectStore,
    StoreDate,
    StoreUnavailable,
    UnfinishedUpload,
    last_date_of,
)
from millrace.runtime.objectstore.body import Body, body_of
from millrace.runtime.rand import Rand

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts_max` None is for ever. The wait before attempt n+1 is drawn from [0, min(first * 2**(n-1),
    longest)). `attempt_timeout_ms` bounds one attempt whatever its size, so it must leave time for the
    largest put."""

    attempts_max: int | None = 8
    first_wait_ms: int = 100
    longest_wait_ms: int = 10_000
    attempt_timeout_ms: int = 120_000


FOR_EVER = RetryPolicy(attempts_max=None)
# A key that a store refuses to delete may be refused for good, so this is not the policy's number.
REFUSED_KEY_REPEATS = 3


class StoreGate(Protocol):
    """Stands before every attempt: for who bounds traffic, or slows down when the store wants it."""

    async def enter(self, sent_bytes: int, received_bytes: int) -> None:
        """Waits until so much may be sent and received; the time is not charged to the attempt. Unavailable
        counts as a failed attempt."""
        ...

    def on_end(self, sent_bytes: int, error: Unavailable | None) -> None:
        """An attempt that was let in was answered, or not."""
        ...

    def on_received(self, size_bytes: int) -> None:
        """So much came that nobody could know of before."""
        ...


OnRetry = Callable[[str, int, Unavailable], None]


class Retries:
    """What is asked for again, of a store or of its opening."""

    def __init__(
        self,
        rand: Rand,
        policy: RetryPolicy = FOR_EVER,
        on_retry: OnRetry | None = None,
        gate: StoreGate | None = None,
    ) -> None:
        """`on_retry(operation, attempts so far, error)` is called before each wait, for logs and counters."""
        self._rand = rand
        self._policy = policy
        self._on_retry = on_retry
        self._gate = gate

    async def attempt(
        self, operation: str, call: Callable[[], Awaitable[_T]], sent_bytes: int = 0, received_bytes: int = 0
    ) -> _T:
        """Runs `call` until it answers; raises the last Unavailable when the attempts are used up."""
        failures = 0
        while True:
            try:
                if self._gate is None:
                    return await self._once(call)
                await self._gate.enter(sent_bytes, received_bytes)
                return await self._gated(call, self._gate, sent_bytes)
            except Unavailable as error:
                failures += 1
                await self._wait(operation, failures, error)

    async def _gated(self, call: Callable[[], Awaitable[_T]], gate: StoreGate, sent_bytes: int) -> _T:
        try:
            answer = await self._once(call)
        except Unavailable as error:
            gate.on_end(sent_bytes, error)
            raise
        gate.on_end(sent_bytes, None)
        return answer

    async def _once(self, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            async with asyncio.timeout(self._policy.attempt_timeout_ms / 1000):
                return await call()
        except TimeoutError:
            raise StoreUnavailable("no answer", self._policy.attempt_timeout_ms) from None

    async def _wait(self, operation: str, failures: int, error: Unavailable) -> None:
        if not await self._may_repeat(operation, failures, error):
            raise error

    async def _may_repeat(self, operation: str, failures: int, error: Unavailable) -> bool:
        """After a pause, or no: the attempts are used up."""
        policy = self._policy
        if policy.attempts_max is not None and failures >= policy.attempts_max:
            return False
        if self._on_retry is not None:
            self._on_retry(operation, failures, error)
        # The exponent is bounded so that an outage of days does not compute ever larger powers.
        bound_ms = min(policy.first_wait_ms << min(failures - 1, 30), policy.longest_wait_ms)
        await asyncio.sleep(self._rand.fraction() * bound_ms / 1000)
        return True


class RetryingObjectStore(Retries):
    def __init__(
        self,
        store: ObjectStore,
        rand: Rand,
        policy: RetryPolicy = FOR_EVER,
        on_retry: OnRetry | None = None,
        gate: StoreGate | None = None,
    ) -> None:
        """As Retries."""
        super().__init__(rand, policy, on_retry, gate)
        self._store = store

    @property
    def last_date(self) -> StoreDate | None:
        """The wrapped store's, where it has one."""
        return last_date_of(self._store)

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        body = body_of(parts)
        await self.attempt_put("put", key, body, lambda: self._store.put(key, body))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        body = body_of(parts)
        await self.attempt_put("put_if_absent", key, body, lambda: self._store.put_if_absent(key, body))

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        body = body_of(parts)
        await self.attempt_put("replace", key, body, lambda: self._store.replace(key, body, before))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self.attempt("get", lambda: self._store.get_range(key, start, end), 0, end - start)

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        return await self.attempt("get", lambda: self._store.get_into(key, start, end, lend), 0, end - start)

    async def get(self, key: str) -> bytes:
        data = await self.attempt("get", lambda: self._store.get(key))
        if self._gate is not None:
            self._gate.on_received(len(data))
        return data

    async def head(self, key: str) -> ObjectEntry | None:
        return await self.attempt("head", lambda: self._store.head(key))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        """After a failure the listing goes on beyond the last key it gave. Progress starts the count afresh.
        A page that does not come within an attempt's time is a failure like any other."""
        failures = 0
        while True:
            entries = aiter(self._store.list(prefix, after))
            following = partial(anext, entries, None)
            try:
                while (entry := await self._once(following)) is not None:
                    after, failures = entry.key, 0
                    yield entry
                return
            except Unavailable as error:
                failures += 1
                await self._wait("list", failures, error)

    async def delete(self, keys: Sequence[str]) -> Keys:
        """Keys that the store refuses one by one are asked for again, alone, a few times at most: those it
        still refuses are given back."""
        left = await self._delete_once(keys)
        for failures in range(1, REFUSED_KEY_REPEATS + 1):
            if not left or not await self._may_repeat(
                "delete", failures, StoreUnavailable(left[0], "not deleted")
            ):
                break
            left = await self._delete_once(left)
        return left

    async def _delete_once(self, keys: Sequence[str]) -> Keys:
        return await self.attempt("delete", lambda: self._store.delete(keys))

    async def start_multipart(self, key: str) -> RetryingMultipart:
        """An attempt that was cut off may leave an upload without parts behind: `list_uploads` shows
        those."""
        upload = await self.attempt("multipart_start", lambda: self._store.start_multipart(key))
        return RetryingMultipart(upload, self, key)

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        """Whole in one attempt, for there are few."""
        for upload in await self.attempt("list_uploads", partial(self._all_uploads, prefix)):
            yield replace(upload, abort=partial(self.attempt, "multipart_abort", upload.abort))

    async def _all_uploads(self, prefix: str) -> Sequence[UnfinishedUpload]:
        return [upload async for upload in self._store.list_uploads(prefix)]

    async def close(self) -> None:
        await self._store.close()

    async def attempt_put(
        self, operation: str, key: str, body: Body, call: Callable[[], Awaitable[None]]
    ) -> None:
        """The same for what sends bytes: their sum is known before they wait for the gate, and they are never
        others."""

        async def call_with_sum() -> None:
            await body.begin(key)
            await call()

        await body.crc()
        await self.attempt(operation, call_with_sum, body.size_bytes)


class RetryingMultipart:
    def __init__(self, upload: MultipartUpload, store: RetryingObjectStore, key: str) -> None:
        self._upload = upload
        self._store = store
        self._key = key
        self._count = 0

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        """The wrapped upload is called now, so that it numbers the part now; repeats carry that number."""
        body = body_of(parts)
        first = self._upload.put_part(body, number)
        if number is None:
            number, self._count = self._count, self._count + 1
        return self._repeat(first, body, number)

    async def complete(self, *, if_absent: bool = False) -> None:
        await self._store.attempt("multipart_complete", partial(self._upload.complete, if_absent=if_absent))

    async def abort(self) -> None:
        await self._store.attempt("multipart_abort", self._upload.abort)

    async def _repeat(self, first: Coroutine[Any, Any, None], body: Body, number: int) -> None:
        attempts = itertools.chain(
            [first], (self._upload.put_part(body, number) for _ in itertools.repeat(None))
        )
        try:
            await self._store.attempt_put("multipart_part", self._key, body, lambda: next(attempts))
        finally:
            first.close()  # cancelled before the gate let it in, it never began
