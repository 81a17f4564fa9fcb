"""The object store over a directory, for one machine: each key a file. Blocking work runs in a few threads of
its own.

Not here: how a file becomes durable, what a full disk keeps (folder.py), retries. Several processes may
share a directory. What it keeps true: `put` returns when the object survives a power cut; a reader sees an
object whole or not at all; after an error other than StoreFull at the first byte the outcome is unknown. A
cancelled call goes on in its thread, and its outcome is unknown too.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Closed
from millrace.runtime.objectstore import Keys, Lend, ObjectEntry, PreconditionFailed, UnfinishedUpload
from millrace.runtime.objectstore.folder import KEPT_FREE_BYTES, ObjectFolder, kept_by, store_error
from millrace.runtime.objectstore.folder_write import NewFile, SystemCalls
from millrace.runtime.scheduling.yield_queue import DurableWrites

_T = TypeVar("_T")

# The calls wait on the disk and release the interpreter; more threads than this would only queue at the
# device.
_THREADS = 4
# A device serves in order: a durable write waits for all that was asked of it before. Beside the WAL's, reads
# ask for no more than 128 KiB in all.
_GENTLE_THREADS = 2
_GENTLE_CALL_BYTES = 64 << 10
_PAGE_ENTRIES = 1000


class LocalObjectStore:
    def __init__(
        self,
        root: str,
        calls: SystemCalls = os,
        mode: int | None = None,
        writes: DurableWrites | None = None,
    ) -> None:
        """`calls`: where a test lets the system fail. `mode`: see ObjectFolder. `writes`: those of a log that
        may be on the same device."""
        self._folder = ObjectFolder(root, calls, mode)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="object-folder")
        self._gentle = ThreadPoolExecutor(_GENTLE_THREADS, thread_name_prefix="object-reader")
        self._writes = writes or DurableWrites()
        self._closed = threading.Event()  # shared with `for_data`
        self._is_for_data = False

    @staticmethod
    async def open(
        root: str,
        calls: SystemCalls = os,
        mode: int | None = None,
        writes: DurableWrites | None = None,
    ) -> LocalObjectStore:
        """Makes the directory if need be, and removes what a crash left unfinished in it."""
        store = LocalObjectStore(root, calls, mode, writes)
        try:
            await store._run(root, store._folder.prepare)
        except BaseException:
            await store.close()
            raise
        return store

    def for_data(self) -> LocalObjectStore:
        other = copy.copy(self)
        other._is_for_data = True
        return other

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        kept_bytes = self._kept_by(parts)
        await self._run(key, lambda: self._folder.write(key, parts, kept_bytes=kept_bytes))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        kept_bytes = self._kept_by(parts)
        await self._run(key, lambda: self._folder.write(key, parts, is_first=True, kept_bytes=kept_bytes))

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        content = b"".join(parts)
        await self._run(key, lambda: self._folder.replace(key, content, before))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        assert 0 <= start < end, (start, end)
        return await self._run(key, lambda: self._folder.read(key, start, end))

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        assert 0 <= start < end, (start, end)
        views = lend()  # the thread holds them, also when nobody waits for it any more
        if self._writes.is_writing:
            bound = _GENTLE_CALL_BYTES
            return views, await self._run(
                key, lambda: self._folder.read_into(key, start, views, bound), self._gentle
            )
        return views, await self._run(key, lambda: self._folder.read_into(key, start, views))

    async def get(self, key: str) -> bytes:
        return await self._run(key, lambda: self._folder.read(key, 0, None))

    async def head(self, key: str) -> ObjectEntry | None:
        return await self._run(key, lambda: self._folder.head(key))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        """Pages are read as the caller goes on; what changes meanwhile may or may not show."""
        scan = self._folder.scan(prefix, after)
        while page := await self._run(prefix, lambda: [*itertools.islice(scan, _PAGE_ENTRIES)]):
            for entry in page:
                yield entry

    async def delete(self, keys: Sequence[str]) -> Keys:
        return await self._run(keys[0], lambda: self._folder.delete(keys)) if keys else []

    async def start_multipart(self, key: str) -> LocalMultipart:
        new = await self._run(key, lambda: self._folder.create(key))
        return LocalMultipart(self._folder, new, self._run)

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        """None: those of a process that died are swept when the store is opened."""
        none: tuple[UnfinishedUpload, ...] = ()
        for upload in none:
            yield upload

    async def close(self) -> None:
        """Waits for the calls under way."""
        self._closed.set()
        for threads in (self._gentle, self._threads):
            await asyncio.to_thread(threads.shutdown)

    def _kept_by(self, parts: Sequence[Buffer]) -> int:
        return KEPT_FREE_BYTES if self._is_for_data else kept_by(sum(map(len, parts)))

    async def _run(self, key: str, call: Callable[[], _T], threads: ThreadPoolExecutor | None = None) -> _T:
        if self._closed.is_set():
            raise Closed("object store")
        try:
            return await asyncio.get_running_loop().run_in_executor(threads or self._threads, call)
        except OSError as error:
            raise store_error(error, key) from error


class LocalMultipart:
    """One file, its parts written where they belong as they come. Abandoned without `abort`, it is swept at
    the next start."""

    def __init__(
        self,
        folder: ObjectFolder,
        new: NewFile,
        run: Callable[[str, Callable[[], Any]], Coroutine[Any, Any, Any]],
    ) -> None:
        self._folder = folder
        self._new = new
        self._run = run
        self._ends = [0]  # where each part begins, and the last one ends
        self._written: set[int] = set()  # numbers; asked for its size alone

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        if number is None:
            number = len(self._ends) - 1
            self._ends.append(self._ends[-1] + sum(map(len, parts)))
        assert self._ends[number + 1] - self._ends[number] == sum(map(len, parts)), (
            "a part is repeated in its own length"
        )
        return self._write(number, parts)

    async def complete(self, *, if_absent: bool = False) -> None:
        assert len(self._written) == len(self._ends) - 1, "complete before every part was written"
        key = self._new.key
        try:
            await self._run(key, lambda: self._publish(is_first=if_absent))
        except PreconditionFailed:
            await self.abort()
            raise
        await self.abort()

    def _publish(self, *, is_first: bool) -> None:
        try:
            self._folder.publish(self._new, is_first=is_first)
        except FileExistsError:
            raise PreconditionFailed(self._new.key) from None

    async def abort(self) -> None:
        await self._run(self._new.key, lambda: self._folder.discard(self._new))

    async def _write(self, number: int, parts: Sequence[Buffer]) -> None:
        await self._run(self._new.key, lambda: self._folder.write_at(self._new, parts, self._ends[number]))
        self._written.add(number)
