"""Wrapper: repeats what the store did not answer, with exponential backoff and full jitter, a given number of times or for ever.

Only Unavailable is repeated, and a timeout is Unavailable: the outcome of what it cut off is unknown, so every verb
must bear being done twice. They do: a put puts the same bytes, a delete of what is gone succeeds, and `put_if_absent`
knows by content an object that an earlier attempt of ours had put (each store compares when it loses), so a writer
that must be told from others puts something of its own into the bytes. Buffers must not change before the call
returns: they may be sent again. A part of a multipart upload is repeated under its own number. Not here: what a
store's errors mean (each store maps its own).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore import Keys, MultipartUpload, ObjectEntry, ObjectStore, StoreUnavailable
from millrace.runtime.rand import Rand

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts_max` None is for ever. The wait before attempt n+1 is drawn from [0, min(first * 2**(n-1), longest)).
    `attempt_timeout_ms` bounds one attempt whatever its size, so it must leave time for the largest put."""

    attempts_max: int | None = 8
    first_wait_ms: int = 100
    longest_wait_ms: int = 10_000
    attempt_timeout_ms: int = 120_000


FOR_EVER = RetryPolicy(attempts_max=None)

OnRetry = Callable[[str, int, Unavailable], None]


class RetryingObjectStore:
    def __init__(
        self,
        store: ObjectStore,
        rand: Rand,
        policy: RetryPolicy = FOR_EVER,
        on_retry: OnRetry | None = None,
    ) -> None:
        """`on_retry(operation, attempts so far, error)` is called before each wait, for logs and counters."""
        self._store = store
        self._rand = rand
        self._policy = policy
        self._on_retry = on_retry

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self.attempt("put", lambda: self._store.put(key, parts))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        await self.attempt("put_if_absent", lambda: self._store.put_if_absent(key, parts))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self.attempt("get", lambda: self._store.get_range(key, start, end))

    async def get(self, key: str) -> bytes:
        return await self.attempt("get", lambda: self._store.get(key))

    async def head(self, key: str) -> ObjectEntry | None:
        return await self.attempt("head", lambda: self._store.head(key))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        """After a failure the listing goes on beyond the last key it gave. Progress starts the count afresh."""
        failures = 0
        while True:
            try:
                async for entry in self._store.list(prefix, after):
                    after, failures = entry.key, 0
                    yield entry
                return
            except Unavailable as error:
                failures += 1
                await self._wait("list", failures, error)

    async def delete(self, keys: Sequence[str]) -> Keys:
        """Keys the store refuses one by one are given back, not repeated."""
        return await self.attempt("delete", lambda: self._store.delete(keys))

    async def start_multipart(self, key: str) -> RetryingMultipart:
        """An attempt that was cut off may leave an upload without parts behind; stores expire those."""
        upload = await self.attempt("multipart_start", lambda: self._store.start_multipart(key))
        return RetryingMultipart(upload, self)

    async def close(self) -> None:
        await self._store.close()

    async def attempt(self, operation: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """Runs `call` until it answers; raises the last Unavailable when the attempts are used up."""
        failures = 0
        while True:
            try:
                return await self._once(call)
            except Unavailable as error:
                failures += 1
                await self._wait(operation, failures, error)

    async def _once(self, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            async with asyncio.timeout(self._policy.attempt_timeout_ms / 1000):
                return await call()
        except TimeoutError:
            raise StoreUnavailable("no answer", self._policy.attempt_timeout_ms) from None

    async def _wait(self, operation: str, failures: int, error: Unavailable) -> None:
        policy = self._policy
        if policy.attempts_max is not None and failures >= policy.attempts_max:
            raise error
        if self._on_retry is not None:
            self._on_retry(operation, failures, error)
        # The exponent is bounded so that an outage of days does not compute ever larger powers.
        bound_ms = min(policy.first_wait_ms << min(failures - 1, 30), policy.longest_wait_ms)
        await asyncio.sleep(self._rand.fraction() * bound_ms / 1000)


class RetryingMultipart:
    def __init__(self, upload: MultipartUpload, store: RetryingObjectStore) -> None:
        self._upload = upload
        self._store = store
        self._count = 0

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        """The wrapped upload is called now, so that it numbers the part now; repeats carry that number."""
        first = self._upload.put_part(parts, number)
        if number is None:
            number, self._count = self._count, self._count + 1
        return self._repeat(first, parts, number)

    async def complete(self) -> None:
        await self._store.attempt("multipart_complete", self._upload.complete)

    async def abort(self) -> None:
        await self._store.attempt("multipart_abort", self._upload.abort)

    async def _repeat(self, first: Coroutine[Any, Any, None], parts: Sequence[Buffer], number: int) -> None:
        attempts = itertools.chain([first], (self._upload.put_part(parts, number) for _ in itertools.repeat(None)))
        await self._store.attempt("multipart_part", lambda: next(attempts))
