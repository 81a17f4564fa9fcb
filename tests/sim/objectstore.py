"""An object store in memory with the faults of a real one, drawn from a seed or planned one by one.

`SimBucket` is what the store holds: it outlives every node and is shared by them. `SimObjectStore` is one
node's way to it. A call is a request that travels there, takes effect in one instant, and an answer that
travels back; the effect does not depend on the caller any more once the request is under way:

    REFUSED, THROTTLED   503, SlowDown (also above `requests_per_s_max`): no effect
    LOST_REQUEST         a timeout, no effect
    LOST_ANSWER          a timeout, though it took effect
    LATE                 a timeout, and the effect comes after it: a write of the past, as from a node thought
                         dead
    LOST_RACE            a conditional put finds that a rival's came an instant before (`rival` makes its
                         bytes, or None: not there)

Of what was not finished when the caller is cancelled, or the node's power goes (`cut`), each request takes
effect or not, whole or not at all, by a coin, now or (LATE_OF_THE_DEAD) when the next process has long begun.
After `cut` nothing answers any more; a restarted node takes a new SimObjectStore on the same bucket.
`SimBucket.is_away` makes every node's requests time out without effect; `rot` damages what is stored,
`capacity_bytes` makes puts fail with StoreFull. `hits` counts each fault that struck, so that a hunt can tell
which it never reached. `on_event` is told of each request as it sets out and as it takes effect. Time is the
loop's, in whole milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar, cast

from millrace.runtime.clock import Clock
from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Closed
from millrace.runtime.objectstore import (
    Keys,
    Lend,
    ObjectEntry,
    ObjectMissing,
    PreconditionFailed,
    StoreDate,
    StoreFull,
    StoreUnavailable,
    UnfinishedUpload,
    fill,
)
from millrace.runtime.rand import Rand
from tests.sim.loop import own_context

T = TypeVar("T")
LIST_PAGE_KEYS = 1000
LATE_OF_THE_DEAD_MS = 3_000


class StoreFault(Enum):
    NONE = auto()
    REFUSED = auto()
    THROTTLED = auto()
    LOST_REQUEST = auto()
    LOST_ANSWER = auto()
    LATE = auto()
    LOST_RACE = auto()


@dataclass(frozen=True, slots=True)
class StoreFaults:
    """How often each fault strikes, in thousandths of the requests, and how long things take. LATE strikes
    writes alone, LOST_RACE conditional puts; a draw that does not apply is no fault."""

    refused: int = 0
    throttled: int = 0
    lost_request: int = 0
    lost_answer: int = 0
    late: int = 0
    lost_race: int = 0
    latency_ms: tuple[int, int] = (0, 0)  # of a whole request, both included
    timeout_ms: int = 10_000
    late_ms: tuple[int, int] = (0, 60_000)  # after the timeout
    requests_per_s_max: int | None = None
    list_ms: tuple[int, int] = (0, 0)  # that a LIST takes longer than others

    def weights(self) -> tuple[tuple[StoreFault, int], ...]:
        return (
            (StoreFault.REFUSED, self.refused),
            (StoreFault.THROTTLED, self.throttled),
            (StoreFault.LOST_REQUEST, self.lost_request),
            (StoreFault.LOST_ANSWER, self.lost_answer),
            (StoreFault.LATE, self.late),
            (StoreFault.LOST_RACE, self.lost_race),
        )


@dataclass(slots=True)
class SimUpload:
    key: str
    began_ms: int = 0
    parts: dict[int, bytes] = field(default_factory=dict)
    state: str = "open"  # open, complete, aborted
    # nobody can end it: its process died, or did not hear that it began, or could not say that it ends
    is_stray: bool = False


class SimBucket:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.objects: dict[str, tuple[bytes, int]] = {}  # key -> content, wall time of the put
        self.uploads: list[SimUpload] = []
        # what the dead sent and is still to come: when, and what
        self.late: dict[tuple[float, str], None] = {}
        self.is_away = False
        self.tells_date = False  # in its answers
        self.rotten: dict[str, bytes] = {}  # objects that are damaged for a while, and what they were
        self.rotted: set[str] = set()  # keys of objects that ever were
        self.capacity_bytes: int | None = None
        self.hits: Counter[str] = Counter()
        self.on_delete: Callable[[str], None] = lambda key: None  # told before a key goes
        self.on_put: Callable[[str, bytes], None] = lambda key, content: None

    def put(self, key: str, content: bytes) -> None:
        held_bytes = len(self.objects[key][0]) if key in self.objects else 0
        if (
            self.capacity_bytes is not None
            and self.used_bytes() - held_bytes + len(content) > self.capacity_bytes
        ):
            self.hits["FULL"] += 1
            raise StoreFull(key)
        self.objects[key] = (content, self._clock.wall_ms())
        self.on_put(key, content)

    def date(self) -> StoreDate | None:
        """As an answer of now has it, to the second."""
        if not self.tells_date:
            return None
        return StoreDate(self._clock.wall_ms() // 1000 * 1000, asyncio.get_running_loop().time())

    def used_bytes(self) -> int:
        return sum(len(content) for content, _ in self.objects.values())

    def put_if_absent(self, key: str, content: bytes) -> None:
        if key not in self.objects:
            self.put(key, content)
        elif self.objects[key][0] != content:
            self.hits["conditional put: another was first"] += 1
            raise PreconditionFailed(key)
        else:
            self.hits["conditional put: its own was there"] += 1

    def replace(self, key: str, content: bytes, before: bytes) -> None:
        if key not in self.objects or self.objects[key][0] not in (before, content):
            raise PreconditionFailed(key)
        self.put(key, content)

    def get(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(key)
        return self.objects[key][0]

    def head(self, key: str) -> ObjectEntry | None:
        found = self.objects.get(key)
        return None if found is None else ObjectEntry(key, len(found[0]), found[1])

    def page(self, prefix: str, after: str) -> list[ObjectEntry]:
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        return [entry for key in keys[:LIST_PAGE_KEYS] if (entry := self.head(key)) is not None]

    def delete(self, keys: Sequence[str]) -> Keys:
        for key in keys:
            if key in self.objects:
                self.on_delete(key)
                del self.objects[key]
        return []

    def complete(self, upload: SimUpload, *, if_absent: bool = False) -> None:
        self.hits[
            f"multipart: {'completed' if upload.state == 'open' else f'completed when {upload.state}'}"
        ] += 1
        if upload.state == "aborted":
            raise ObjectMissing(upload.key)
        if if_absent and upload.key in self.objects:
            self.hits["conditional completion: an object was there"] += 1
            raise PreconditionFailed(upload.key)
        if upload.state == "open":
            self.put(upload.key, b"".join(upload.parts[number] for number in sorted(upload.parts)))
            upload.state = "complete"

    def put_part(self, upload: SimUpload, number: int, content: bytes) -> None:
        """Whole, or not at all; a part that comes when the upload has ended changes nothing."""
        if upload.state != "open":
            self.hits["multipart: a part after the end"] += 1
            raise ObjectMissing(upload.key)
        self.hits["multipart: a part again"] += number in upload.parts
        upload.parts[number] = content

    def abort(self, upload: SimUpload) -> None:
        self.hits["multipart: aborted"] += upload.state == "open"
        if upload.state == "open":
            upload.state = "aborted"

    def begin(self, upload: SimUpload) -> None:
        upload.began_ms = self._clock.wall_ms()
        self.uploads.append(upload)

    def open_uploads(self, prefix: str) -> list[SimUpload]:
        found = [
            upload for upload in self.uploads if upload.state == "open" and upload.key.startswith(prefix)
        ]
        return sorted(found, key=lambda upload: (upload.key, upload.began_ms))

    def unfinished_uploads(self) -> list[str]:
        """Keys of uploads that were neither completed nor aborted: what a store would bill for ever."""
        return [upload.key for upload in self.uploads if upload.state == "open"]

    def neglected_uploads(self) -> list[str]:
        """... though whoever began them could have ended them."""
        return [upload.key for upload in self.uploads if upload.state == "open" and not upload.is_stray]

    def sound_contents(self) -> Iterator[tuple[str, bytes]]:
        """Of all objects, by key: those that are damaged for a while as they were before and will be."""
        for key, (content, _) in self.objects.items():
            yield key, self.rotten.get(key, content)

    def rot(self, key: str, position: int, mask: int = 1) -> None:
        """Flips bits of one stored byte."""
        self.rotted.add(key)
        content, modified_ms = self.objects[key]
        damaged = bytearray(content)
        damaged[position] ^= mask
        self.objects[key] = (bytes(damaged), modified_ms)
        self.hits["ROT"] += 1


class SimObjectStore:
    def __init__(
        self,
        bucket: SimBucket,
        rand: Rand,
        faults: StoreFaults | None = None,
        rival: Callable[[str, bytes], bytes | None] = lambda key, own: b"a rival's bytes",
    ) -> None:
        """`faults` may be replaced at any time; `requests` counts by operation."""
        self.bucket = bucket
        self.faults = faults or StoreFaults()
        self.requests: Counter[str] = Counter()
        self.was_cut = False
        self.last_date: StoreDate | None = None
        self._rand = rand
        self._rival = rival
        self._planned: dict[str, deque[StoreFault]] = {}
        self._under_way: dict[int, _Request] = {}
        self._number = 0
        self._is_closed = False
        self._uploads: list[SimUpload] = []
        self.on_event: Callable[..., None] = lambda *words: None
        self._second = -1  # of the throttle's count
        self._in_second = 0

    def plan(self, operation: str, *faults: StoreFault) -> None:
        """The next requests of this operation meet these faults, in order, whatever chance would have
        drawn."""
        self._planned.setdefault(operation, deque()).extend(faults)

    def cut(self, takes_effect: bool | None = None, *, is_death: bool = True) -> None:
        """The node's power goes, or it ends in order: requests under way arrive now or never (None: by a
        coin), and no answer comes to anyone."""
        self.was_cut = True
        for upload in self._uploads if is_death else ():
            upload.is_stray = upload.state == "open"
            self.bucket.hits["multipart: its process died"] += upload.is_stray
        for request in list(self._under_way.values()):
            if takes_effect is None and request.is_due and self._rand.below(3) == 0:
                self.bucket.hits["LATE_OF_THE_DEAD"] += 1
                due_s = request.arrive_late(self._rand.below(LATE_OF_THE_DEAD_MS) / 1000)
                self.bucket.late[due_s, request.what] = None
            else:
                request.abandon(bool(self._rand.below(2)) if takes_effect is None else takes_effect)

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)
        await self._call("put", key, lambda: self.bucket.put(key, content), is_write=True)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)

        def effect() -> None:
            if fault is StoreFault.LOST_RACE and key not in self.bucket.objects:
                first = self._rival(key, content)
                if first is not None:
                    self.bucket.put(key, first)
            self.bucket.put_if_absent(key, content)

        fault = self._draw("put_if_absent", is_write=True)
        await self._send(f"put_if_absent {key}", effect, fault)

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        content = b"".join(parts)
        await self._call("replace", key, lambda: self.bucket.replace(key, content, before), is_write=True)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        assert 0 <= start < end, (start, end)
        return await self._call("get", key, lambda: self.bucket.get(key)[start:end])

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        return fill(lend(), await self.get_range(key, start, end))

    async def get(self, key: str) -> bytes:
        return await self._call("get", key, lambda: self.bucket.get(key))

    async def head(self, key: str) -> ObjectEntry | None:
        return await self._call("head", key, lambda: self.bucket.head(key))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        while True:
            page = await self._call("list", prefix, partial(self.bucket.page, prefix, after))
            for entry in page:
                yield entry
            if len(page) < LIST_PAGE_KEYS:
                return
            after = page[-1].key

    async def delete(self, keys: Sequence[str]) -> Keys:
        named = tuple(keys)
        return await self._call("delete", " ".join(named), lambda: self.bucket.delete(named), is_write=True)

    async def start_multipart(self, key: str) -> SimMultipart:
        upload = SimUpload(key, is_stray=True)
        await self._call("multipart_start", key, lambda: self.bucket.begin(upload), is_write=True)
        upload.is_stray = False
        self._uploads.append(upload)
        return SimMultipart(self, upload)

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        for upload in await self._call("list_uploads", prefix, lambda: self.bucket.open_uploads(prefix)):
            yield UnfinishedUpload(upload.key, upload.began_ms, SimMultipart(self, upload).abort)

    async def close(self) -> None:
        self._is_closed = True

    async def _call(self, operation: str, key: str, effect: Callable[[], T], *, is_write: bool = False) -> T:
        return await self._send(f"{operation} {key}", effect, self._draw(operation, is_write=is_write))

    async def _send(self, what: str, effect: Callable[[], T], fault: StoreFault) -> T:
        loop = asyncio.get_running_loop()
        if self.was_cut:
            await loop.create_future()  # nothing answers any more
        number = self._number = self._number + 1

        def take_effect() -> T:
            self.on_event(number, "effect", what)
            self.last_date = self.bucket.date()
            return effect()

        request = _Request(what, take_effect, loop.create_future(), lambda: self._under_way.pop(number, None))
        self._under_way[number] = request
        total_ms = self._between(self.faults.latency_ms)
        if self.faults.list_ms[1] and what.startswith("list "):
            self.bucket.hits["SLOW_LIST"] += 1
            total_ms += self._between(self.faults.list_ms)
        there_ms = self._rand.below(total_ms + 1)
        timeout_ms = self.faults.timeout_ms
        if fault in (StoreFault.REFUSED, StoreFault.THROTTLED):
            request.fail_in(total_ms, fault)
        elif fault is StoreFault.LOST_REQUEST:
            request.fail_in(timeout_ms, fault)
        elif fault is StoreFault.LOST_ANSWER:
            request.arrive_in(there_ms, None)
            request.fail_in(timeout_ms, fault)
        elif fault is StoreFault.LATE:
            request.arrive_in(timeout_ms + self._between(self.faults.late_ms), None)
            request.fail_in(timeout_ms, fault)
        else:
            request.arrive_in(there_ms, total_ms - there_ms)
        self.on_event(number, "sent", what, fault.name)
        try:
            return cast(T, await request.answer)
        except asyncio.CancelledError:
            if not self.was_cut:
                request.abandon(bool(self._rand.below(2)))
            raise

    def _draw(self, operation: str, *, is_write: bool) -> StoreFault:
        """Counts the request and says what befalls it."""
        if self._is_closed:
            raise Closed("object store")
        self.requests[operation] += 1
        if self.was_cut:
            return StoreFault.NONE
        if self.bucket.is_away:
            self.bucket.hits["AWAY"] += 1
            return StoreFault.LOST_REQUEST
        fault = self._chosen(operation, is_write)
        if fault is not StoreFault.NONE:
            self.bucket.hits[fault.name] += 1
            if operation.startswith("multipart"):
                self.bucket.hits[f"{operation} {fault.name}"] += 1
        return fault

    def _chosen(self, operation: str, is_write: bool) -> StoreFault:
        planned = self._planned.get(operation)
        if planned:
            return planned.popleft()
        if self._is_over_rate():
            return StoreFault.THROTTLED
        drawn = self._rand.below(1000)
        for fault, weight in self.faults.weights():
            if drawn < weight:
                is_apt = {StoreFault.LATE: is_write, StoreFault.LOST_RACE: operation == "put_if_absent"}.get(
                    fault, True
                )
                return fault if is_apt else StoreFault.NONE
            drawn -= weight
        return StoreFault.NONE

    def _is_over_rate(self) -> bool:
        if self.faults.requests_per_s_max is None:
            return False
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        return self._in_second > self.faults.requests_per_s_max

    def _between(self, bounds: tuple[int, int]) -> int:
        return bounds[0] + self._rand.below(bounds[1] - bounds[0] + 1)


class SimMultipart:
    def __init__(self, store: SimObjectStore, upload: SimUpload) -> None:
        self._store = store
        self._upload = upload
        self._count = 0

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        if number is None:
            number, self._count = self._count, self._count + 1
        content = b"".join(parts)
        key, upload, bucket = f"{self._upload.key} {number}", self._upload, self._store.bucket
        return self._store._call(
            "multipart_part", key, lambda: bucket.put_part(upload, number, content), is_write=True
        )

    async def complete(self, *, if_absent: bool = False) -> None:
        assert len(self._upload.parts) == self._count, "complete before every part was written"
        upload, complete = (
            self._upload,
            partial(self._store.bucket.complete, self._upload, if_absent=if_absent),
        )
        await self._store._call("multipart_complete", upload.key, complete, is_write=True)

    async def abort(self) -> None:
        upload, bucket = self._upload, self._store.bucket
        was_stray, upload.is_stray = upload.is_stray, True
        await self._store._call("multipart_abort", upload.key, lambda: bucket.abort(upload), is_write=True)
        upload.is_stray = was_stray


class _Request:
    """One request under way: its effect happens once or never, and its answer is given once or never."""

    def __init__(
        self,
        what: str,
        effect: Callable[[], Any],
        answer: asyncio.Future[Any],
        on_settled: Callable[[], object],
    ) -> None:
        self.what = what
        self.answer = answer
        self._effect = effect
        self._on_settled = on_settled
        self._loop = answer.get_loop()
        self._timers: list[asyncio.TimerHandle] = []
        self.is_due = False  # the effect is still to come

    def arrive_in(self, there_ms: int, back_ms: int | None) -> None:
        """Takes effect then; answers so long after, or not."""
        self.is_due = True
        self._timers.append(self._loop.call_later(there_ms / 1000, self._arrive, back_ms))

    def fail_in(self, total_ms: int, fault: StoreFault) -> None:
        self._timers.append(
            self._loop.call_later(total_ms / 1000, self._answer, None, StoreUnavailable(fault.name))
        )

    def abandon(self, takes_effect: bool) -> None:
        """Nobody waits any more."""
        for timer in self._timers:
            timer.cancel()
        self._on_settled()
        if self.is_due and takes_effect:
            self._arrive(None)
        self.is_due = False

    def arrive_late(self, delay_s: float) -> float:
        """Nobody waits any more, and it takes effect all the same: the time at which."""
        for timer in self._timers:
            timer.cancel()
        self._on_settled()
        return self._loop.call_later(delay_s, self._arrive, None, context=own_context(None)).when()

    def _arrive(self, back_ms: int | None) -> None:
        self.is_due = False
        result, error = None, None
        try:
            result = self._effect()
        except (ObjectMissing, PreconditionFailed, StoreFull) as refusal:
            error = refusal
        if back_ms is None:
            self._on_settled()
        else:
            self._timers.append(self._loop.call_later(back_ms / 1000, self._answer, result, error))

    def _answer(self, result: Any, error: Exception | None) -> None:
        if not self.is_due:
            self._on_settled()
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(result)
