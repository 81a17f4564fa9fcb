"""What a store really does, asked with throw-away objects: can its conditional puts be relied on, do its
verbs keep what they promise, how fast is it. For the doctor, and for a start that relies on conditions.

Works on any ObjectStore through its verbs alone; what only S3 has is asked in s3_probe.py. Every
probe keeps below the prefix it is given and leaves nothing there when it succeeds; `sweep` removes the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from millrace.runtime.objectstore import (
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
)

RACERS = 12
PART_BYTES = 5 << 20  # the smallest part that S3 takes
SMALL_BYTES, LARGE_BYTES = 4 << 10, 4 << 20
# How a store says that it does not know a condition.
_NOT_KNOWN = ("NotImplemented", "501", "InvalidArgument", "InvalidRequest", "400")
STORE_ERRORS = (StoreUnavailable, StoreDenied, StoreFull, ObjectMissing, PreconditionFailed)


class Verdict(StrEnum):
    YES = "yes"
    NO = "no"  # refused: the store says that it cannot
    WRONG = "wrong"  # taken, and not done
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """`instead` is what the broker does without the property; empty when it cannot do without. `advice`: what
    can be done about it here."""

    name: str
    verdict: Verdict
    seen: str
    instead: str = ""
    advice: str = ""

    @property
    def is_fatal(self) -> bool:
        return self.verdict is not Verdict.YES and not self.instead


class Unmet(Exception):
    """A probe saw something else than was promised. The argument says what."""


Probe = Callable[[ObjectStore, str], Awaitable[str]]


async def find_out(name: str, instead: str, asked: Awaitable[str]) -> Finding:
    """Turns what a probe returns or raises into a finding."""
    try:
        return Finding(name, Verdict.YES, await asked)
    except Unmet as error:
        return Finding(name, Verdict.WRONG, str(error), instead)
    except StoreDenied as error:
        return Finding(name, Verdict.NO, str(error), instead)
    except STORE_ERRORS as error:
        return Finding(name, Verdict.UNKNOWN, f"{type(error).__name__}: {error}", instead)


async def conditional_put_fault(store: ObjectStore, prefix: str) -> str | None:
    """Why put_if_absent cannot be relied on here, in words that follow "the store"; None when it can. Raises
    what the store raises when it does not answer at all."""
    try:
        await probe_put_if_absent(store, prefix)
    except Unmet as error:
        await store.delete([f"{prefix}condition"])
        return str(error)
    except StoreDenied as error:
        if len(error.args) > 1 and error.args[1] in _NOT_KNOWN:
            return f"refuses conditional puts ({error.args[1]})"
        raise
    return None


async def brief_condition_fault(store: ObjectStore, prefix: str) -> str | None:
    """As conditional_put_fault, by two puts and a deletion: whether the condition is kept at all, which every
    start wants to know. That of many at once one wins is asked once in the life of a bucket."""
    key = f"{prefix}condition"
    try:
        await store.put_if_absent(key, [b"first"])
        await store.put_if_absent(key, [b"second"])
    except PreconditionFailed:
        return None
    except StoreDenied as error:
        if len(error.args) > 1 and error.args[1] in _NOT_KNOWN:
            return f"refuses conditional puts ({error.args[1]})"
        raise
    finally:
        await store.delete([key])
    return "takes a conditional put of a key that exists: If-None-Match is ignored"


async def probe_put_if_absent(store: ObjectStore, prefix: str) -> str:
    """A second creator loses and changes nothing; of many at once one wins. Else raises Unmet."""
    key = f"{prefix}condition"
    await store.delete([key])
    await store.put_if_absent(key, [b"first"])
    try:
        await store.put_if_absent(key, [b"second"])
        raise Unmet("takes a conditional put of a key that exists: If-None-Match is ignored")
    except PreconditionFailed:
        pass
    if await store.get(key) != b"first":
        raise Unmet("refuses a conditional put and does it all the same")
    await store.delete([key])
    winners = [
        won
        for won in await asyncio.gather(*(_create(store, key, n) for n in range(RACERS)))
        if won is not None
    ]
    content = await store.get(key)
    await store.delete([key])
    if len(winners) != 1 or content != b"racer %d" % winners[0]:
        raise Unmet(f"lets {len(winners)} of {RACERS} creators of one key win at the same time")
    return f"the second creator is told; of {RACERS} at once one wins"


async def _create(store: ObjectStore, key: str, number: int) -> int | None:
    try:
        await store.put_if_absent(key, [b"racer %d" % number])
    except PreconditionFailed:
        return None
    return number


async def probe_put_and_get(store: ObjectStore, prefix: str) -> str:
    """What was put is there at once, whole, and a second put replaces it. Else raises Unmet."""
    key = f"{prefix}a b+c~(1)/\u00e9"  # as hard on signatures as keys get
    for content in (b"one", b"the other", b""):
        await store.put(key, [content])
        if await store.get(key) != content:
            raise Unmet("gives another content than was put last")
    found = await store.head(key)
    if found is None or found.size_bytes != 0:
        raise Unmet(f"gives {found} for the head of an empty object")
    await store.delete([key])
    if await store.head(key) is not None:
        raise Unmet("still shows what was deleted")
    return "at once, whole, replaced, deleted"


async def probe_ranges(store: ObjectStore, prefix: str) -> str:
    """A range has exactly its bytes, cut where the object ends. Else raises Unmet."""
    key = f"{prefix}range"
    content = bytes(range(256)) * 16
    await store.put(key, [content])
    for start, end in ((0, 1), (100, 4000), (4090, 9999), (4096, 4097), (10_000, 10_001)):
        if await store.get_range(key, start, end) != content[start:end]:
            raise Unmet(f"gives other bytes than [{start}, {end}) of {len(content)}")
    await store.delete([key])
    return "inside, across and beyond the end"


async def probe_list(store: ObjectStore, prefix: str) -> str:
    """In the order of bytes, by prefix, beyond a key; what was just put is in it, what was just deleted is
    not. Else raises Unmet."""
    keys = [f"{prefix}l/{name}" for name in ("1", "10", "2", "a-b", "a/b", "a/c", "b", "\u00e9")]
    for key in reversed(keys):
        await store.put(key, [b"x"])
        if key not in [entry.key async for entry in store.list(f"{prefix}l/")]:
            raise Unmet("does not list what was just put")
    expected = sorted(keys, key=str.encode)
    if [entry.key async for entry in store.list(f"{prefix}l/")] != expected:
        raise Unmet("does not list in the order of the keys' bytes")
    after = expected[3]
    if [entry.key async for entry in store.list(f"{prefix}l/", after)] != expected[4:]:
        raise Unmet("does not list from beyond a key on")
    await store.delete(keys)
    if [entry.key async for entry in store.list(f"{prefix}l/")]:
        raise Unmet("still lists what was deleted")
    return "in order, by prefix, from a key on, and at once"


async def probe_multipart(store: ObjectStore, prefix: str) -> str:
    """Parts are joined in order and appear when complete; an abort leaves nothing. Else raises Unmet."""
    key, rest = f"{prefix}parts", b"the rest"
    first = bytes([1]) * PART_BYTES
    upload = await store.start_multipart(key)
    try:
        await asyncio.gather(upload.put_part([first]), upload.put_part([rest]))
        if await store.head(key) is not None:
            raise Unmet("shows an upload before it is completed")
        await upload.complete()
    except BaseException:
        await upload.abort()
        raise
    if await store.get_range(key, PART_BYTES - 1, PART_BYTES + 99) != b"\x01" + rest:
        raise Unmet("joins the parts of an upload wrongly")
    await store.delete([key])
    given_up = await store.start_multipart(key)
    try:
        await given_up.put_part([rest])
    finally:
        await given_up.abort()
    if await store.head(key) is not None:
        raise Unmet("shows an upload that was aborted")
    return "two parts joined; an aborted one leaves nothing"


async def probe_conditional_completion(store: ObjectStore, prefix: str) -> str:
    """An upload that ends where an object is changes nothing; one that ends where none is makes it. Else
    raises Unmet."""
    key = f"{prefix}first"
    for content, is_late in ((b"first", False), (b"second", True)):
        upload = await store.start_multipart(key)
        try:
            await upload.put_part([content])
            await upload.complete(if_absent=True)
            if is_late:
                raise Unmet("ends a multipart upload over an object that is there: If-None-Match is ignored")
        except PreconditionFailed:
            if not is_late:
                raise Unmet("refuses to end a multipart upload where no object is") from None
        finally:
            await upload.abort()
    if await store.get(key) != b"first":
        raise Unmet("refuses the end of a multipart upload and does it all the same")
    await store.delete([key])
    return "what is there stays"


async def probe_list_uploads(store: ObjectStore, prefix: str) -> str:
    """What began and did not end is found by prefix, and can be aborted from the list. Else raises Unmet."""
    key = f"{prefix}unfinished/1"
    began = await store.start_multipart(key)
    try:
        if [upload.key async for upload in store.list_uploads(f"{prefix}unfinished/")] != [key]:
            raise Unmet("does not list an upload that is not finished")
        if [upload async for upload in store.list_uploads(f"{prefix}none/")]:
            raise Unmet("lists uploads of other keys than it was asked for")
        for upload in [upload async for upload in store.list_uploads(key)]:
            await upload.abort()
        if [upload async for upload in store.list_uploads(key)]:
            raise Unmet("still lists an upload that was aborted")
    finally:
        await began.abort()
    return "by prefix, and none that was aborted"


async def probe_delete(store: ObjectStore, prefix: str) -> str:
    """Keys that are named are gone, and a missing one counts as deleted. Else raises Unmet."""
    keys = [f"{prefix}d/{number}" for number in range(3)]
    for key in keys:
        await store.put(key, [b"x"])
    left = await store.delete([*keys, f"{prefix}d/none"])
    if left:
        raise Unmet(f"does not delete {len(left)} of 4 keys")
    if [entry.key async for entry in store.list(f"{prefix}d/")]:
        raise Unmet("says it deleted what it still lists")
    return "what is named, and what was not there"


@dataclass(frozen=True, slots=True)
class Latency:
    verb: str
    size_bytes: int
    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    mb_per_s: float  # one request at a time


async def measure_latency(store: ObjectStore, prefix: str, rounds: int) -> list[Latency]:
    """Puts and gets one after another; large ones a quarter as often."""
    found = []
    for size_bytes, count in ((SMALL_BYTES, rounds), (LARGE_BYTES, max(1, rounds // 4))):
        content = bytes(size_bytes)
        puts, gets = [], []
        for number in range(count):
            key = f"{prefix}speed/{number}"
            puts.append(await _timed(store.put(key, [content])))
            gets.append(await _timed(store.get_range(key, 0, size_bytes)))
        found += [_summed("put", size_bytes, puts), _summed("get", size_bytes, gets)]
        await store.delete([f"{prefix}speed/{number}" for number in range(count)])
    return found


async def _timed(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return (time.perf_counter() - began) * 1000


def _summed(verb: str, size_bytes: int, times_ms: list[float]) -> Latency:
    ordered = sorted(times_ms)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    rate = size_bytes * len(ordered) / 1e6 / (sum(ordered) / 1000)
    return Latency(verb, size_bytes, len(ordered), at(0.5), at(0.9), at(0.99), rate)


async def sweep(store: ObjectStore, prefix: str) -> int:
    """Removes whatever is below the prefix; how many objects would not go."""
    keys = [entry.key async for entry in store.list(prefix)]
    return len(await store.delete(keys)) if keys else 0
