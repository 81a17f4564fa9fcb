"""The object store as the broker sees it: whole-object puts, ranged gets, conditional puts, multipart, list,
delete.

Interfaces and errors. A `put` returns when the object survives a power cut. Names are '/'-separated keys
without a leading slash. Errors by remedy: StoreUnavailable (5xx, 503, timeouts, connection loss: outcome
unknown), StoreFull, ObjectMissing, PreconditionFailed (another writer was first), StoreDenied, BytesChanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Corrupt, Exhausted, Fenced, MillraceError, Unavailable


class SaidByStore(Exception):
    """What a store said. `store` is its name, "" where nobody gave it one (watched.py does)."""

    store = ""

    def __str__(self) -> str:
        return ": ".join(str(part) for part in self.args if part != "")


class StoreUnavailable(SaidByStore, Unavailable):
    """The store did not answer, or answered 5xx. The operation may have happened. Arguments: key, reason."""


class StoreConflict(StoreUnavailable):
    """Another request for the same key was under way. The operation may have happened."""


class StoreContradicts(SaidByStore, Unavailable):
    """The store says one thing to a conditional put and another to a read, time after time. Arguments: key,
    what it says."""


class StoreFull(SaidByStore, Exhausted):
    """No room in the store (a directory on a full disk). Arguments: key, reason."""


class ObjectMissing(SaidByStore, Corrupt):
    """No object has that key."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"{self.key}: no such object"


class BytesChanged(Corrupt):
    """What was to be put is no longer what was handed over: it changed in memory. What is stored, if
    anything, is as it was before."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return (
            f"{self.key}: its bytes changed in memory while they were put, and none of the changed ones were "
            "stored: start again, for the log has "
            "what was acknowledged; if it happens again, have this machine's memory tested"
        )


class PreconditionFailed(Fenced):
    """A conditional put lost: the object exists, or has another token."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"{self.key}: another was there first"


class StoreDenied(SaidByStore, MillraceError):
    """Credentials or rights are missing. Not retried. Arguments: key, reason."""


class BucketMissing(StoreDenied):
    """There is no such bucket. Arguments: key, what the store said."""


class FolderDenied(StoreDenied):
    """The system does not let this process at the store's folder. Arguments: key, reason."""


Keys = list[str]  # inside a store class, `list` is its own verb
# Writable views of bytes, end - start in all: memory for one attempt at a read. One that was given up (late,
# cancelled) may still write into its own, and holds them until it no longer does; so each attempt is given
# others.
Lend = Callable[[], Sequence[memoryview]]


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    key: str
    size_bytes: int
    modified_ms: int


class MultipartUpload(Protocol):
    """Parts of at least 5 MiB but for the last; nothing is visible before `complete`."""

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        """A plain def: parts are numbered from 0 in the order of the calls; several may be in flight.
        `number` sends a part again whose outcome is unknown, in the same length."""
        ...

    async def complete(self, *, if_absent: bool = False) -> None:
        """The object is visible and durable on return. ObjectMissing when the upload is gone and must be made
        anew. `if_absent`: PreconditionFailed when the key exists, and nothing is changed then; it may be an
        earlier call's own, which nobody tells here. A store that has no such condition for uploads completes
        without."""
        ...

    async def abort(self) -> None:
        """Forgets the upload; after `complete`, or a second time, it changes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload that was neither completed nor aborted. `began_ms` is by the store's clock; `abort`
    is as MultipartUpload's."""

    key: str
    began_ms: int
    abort: Callable[[], Coroutine[Any, Any, None]]


class ObjectStore(Protocol):
    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Writes the concatenation of `parts`, replacing what was there. Durable on return."""
        ...

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        """As put; PreconditionFailed when the key exists. Recognises its own earlier attempt by content:
        equal bytes under the key count as put by this writer, so a writer puts something of its own (epoch,
        incarnation) into them."""
        ...

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        """As put, in place of an object that is exactly `before`; PreconditionFailed when it is another, or
        none. Equal bytes that are there already count as put by this writer. For small objects. A store that
        knows no If-Match, and a directory that another process writes to, compare and put in two steps."""
        ...

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end), start < end; what lies beyond the object is cut. ObjectMissing when there is
        none."""
        ...

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        """As get_range, into memory of the caller's: the views that `lend` gave the attempt that was
        answered, filled one after the other, and how many bytes there were; fewer than asked for where the
        object ends."""
        ...

    async def get(self, key: str) -> bytes: ...

    async def head(self, key: str) -> ObjectEntry | None: ...

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        """In key order (of their bytes), only keys beyond `after`."""
        ...

    async def delete(self, keys: Sequence[str]) -> Keys:
        """Deletes; a missing key counts as deleted. Returns the keys that could not be deleted now."""
        ...

    async def start_multipart(self, key: str) -> MultipartUpload: ...

    def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        """Of keys that begin so, whoever began them; a key may have several. None where the store sweeps them
        itself. StoreDenied where it cannot list them, or lets nobody."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class KeepsRoom(Protocol):
    """A bare store that keeps the last of its room for small objects without which no deletion can make more:
    a directory."""

    def for_data(self) -> ObjectStore:
        """The same store for puts of data, which leave that room alone whatever their size. Closing either
        closes both."""
        ...


def data_store_of(store: ObjectStore) -> ObjectStore:
    return store.for_data() if isinstance(store, KeepsRoom) else store


@dataclass(frozen=True, slots=True)
class StoreDate:
    """What a store's own clock said, in an answer that came at `came_s` of the event loop's time."""

    wall_ms: int
    came_s: float


@runtime_checkable
class TellsDate(Protocol):
    """A bare store whose answers carry the time of a clock that is not this machine's."""

    @property
    def last_date(self) -> StoreDate | None:
        """The newest; None before the first answer, and where answers have none."""
        ...


def last_date_of(store: object) -> StoreDate | None:
    """None also for stores that have no clock of their own, such as a directory."""
    return store.last_date if isinstance(store, TellsDate) else None


def fill(views: Sequence[memoryview], content: Buffer) -> tuple[Sequence[memoryview], int]:
    """What get_into gives, of bytes that are there already."""
    left = memoryview(content)
    for view in views:
        part = left[: len(view)]
        view[: len(part)] = part
        left = left[len(part) :]
    return views, len(content)
