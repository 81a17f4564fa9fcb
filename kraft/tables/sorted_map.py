"""SortedMap: an immutable map in key order whose versions share what did not change.

Keys and values lie in chunks of at most CHUNK_MAX; a version is a list of chunks and a list of their first
keys. `edit()` gives a mutable map over the same lists that copies a list, or a chunk, the first time it
changes, so that a change of one entry among 100,000 copies one chunk and one list of a thousand pointers:
microseconds. `done()` freezes what is there. An edit of the empty map gathers in a dict, which is sorted once
it is frozen or read in order: so a restart makes a table of 300,000 entries without finding a place for each.

Not here: what the keys mean (tables/). Kept true: keys within and between chunks ascend, no chunk is empty,
and nothing that a frozen map can see is ever written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

CHUNK_MAX = 128


class Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=Ordered)
V = TypeVar("V")
D = TypeVar("D")


class _Chunk(Generic[K, V]):
    __slots__ = ("keys", "owner", "values")

    def __init__(self, keys: list[K], values: list[V], owner: object) -> None:
        self.keys = keys
        self.values = values
        self.owner = owner  # the turn of the edit that may write it


class _Chunks(Generic[K, V]):
    """What a frozen map and an edit read alike."""

    __slots__ = ("_chunks", "_count", "_firsts")

    def __init__(self, firsts: list[K], chunks: list[_Chunk[K, V]], count: int) -> None:
        self._firsts = firsts
        self._chunks = chunks
        self._count = count

    def _find(self, key: K) -> tuple[_Chunk[K, V], int] | None:
        index = bisect_right(self._firsts, key) - 1
        if index < 0:
            return None
        chunk = self._chunks[index]
        keys = chunk.keys
        place = bisect_left(keys, key)
        return (chunk, place) if place < len(keys) and keys[place] == key else None

    def get(self, key: K, default: D | None = None) -> V | D | None:
        found = self._find(key)
        return default if found is None else found[0].values[found[1]]

    def __getitem__(self, key: K) -> V:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return found[0].values[found[1]]

    def __contains__(self, key: K) -> bool:
        return self._find(key) is not None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        for chunk in self._chunks:
            yield from chunk.keys

    def values(self) -> Iterator[V]:
        for chunk in self._chunks:
            yield from chunk.values

    def items(self, start: K | None = None) -> Iterator[tuple[K, V]]:
        """Entries in key order, from the first key not below `start`."""
        index = 0 if start is None else max(bisect_right(self._firsts, start) - 1, 0)
        for chunk in self._chunks[index:]:
            place = 0 if start is None else bisect_left(chunk.keys, start)
            yield from zip(chunk.keys[place:], chunk.values[place:], strict=True)
            start = None

    def __reversed__(self) -> Iterator[K]:
        for chunk in reversed(self._chunks):
            yield from reversed(chunk.keys)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Chunks):
            return NotImplemented
        return self._count == other._count and list(self.items()) == list(other.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.items())!r})"


class SortedMap(_Chunks[K, V]):
    """A frozen version. `SortedMap()` is the empty one."""

    __slots__ = ()

    def __init__(
        self, firsts: list[K] | None = None, chunks: list[_Chunk[K, V]] | None = None, count: int = 0
    ) -> None:
        super().__init__(firsts or [], chunks or [], count)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SortedMap) or self._firsts != other._firsts:
            return super().__eq__(other)  # the same entries may lie in other chunks
        return all(
            a is b or (a.keys == b.keys and a.values == b.values)
            for a, b in zip(self._chunks, other._chunks, strict=True)
        )

    __hash__ = None

    @classmethod
    def of(cls, entries: dict[K, V]) -> SortedMap[K, V]:
        edit: SortedMapEdit[K, V] = SortedMap[K, V]().edit()
        for key, value in entries.items():
            edit[key] = value
        return edit.done()

    def edit(self) -> SortedMapEdit[K, V]:
        return SortedMapEdit(self)


class SortedMapEdit(_Chunks[K, V]):
    """A version in the making; reads see its own writes. One writer; it may go on after `done`."""

    __slots__ = ("_frozen", "_gathered", "_is_firsts_shared", "_turn")

    def __init__(self, origin: SortedMap[K, V]) -> None:
        super().__init__(origin._firsts, origin._chunks, origin._count)
        self._frozen: SortedMap[K, V] | None = origin  # equal to this edit; None once something was written
        self._is_firsts_shared = True
        self._turn = object()
        # Of the empty map, until it is frozen or read in order: then there are no chunks.
        self._gathered: dict[K, V] | None = None if origin._count else {}

    def get(self, key: K, default: D | None = None) -> V | D | None:
        return super().get(key, default) if self._gathered is None else self._gathered.get(key, default)

    def __getitem__(self, key: K) -> V:
        return super().__getitem__(key) if self._gathered is None else self._gathered[key]

    def __contains__(self, key: K) -> bool:
        return super().__contains__(key) if self._gathered is None else key in self._gathered

    def __len__(self) -> int:
        return self._count if self._gathered is None else len(self._gathered)

    def __iter__(self) -> Iterator[K]:
        self._order()
        return super().__iter__()

    def values(self) -> Iterator[V]:
        self._order()
        return super().values()

    def items(self, start: K | None = None) -> Iterator[tuple[K, V]]:
        self._order()
        return super().items(start)

    def __reversed__(self) -> Iterator[K]:
        self._order()
        return super().__reversed__()

    def _order(self) -> None:
        """What was gathered becomes chunks, filled to the end."""
        gathered, self._gathered = self._gathered, None
        if not gathered:
            return
        self._unfreeze()
        keys = sorted(gathered)
        for start in range(0, len(keys), CHUNK_MAX):
            part = keys[start : start + CHUNK_MAX]
            self._insert_chunk(len(self._chunks), part, [gathered[key] for key in part])

    def done(self) -> SortedMap[K, V]:
        """What is written so far, frozen. Nothing written since the last time: the same map."""
        self._order()
        if self._frozen is None:
            self._frozen = SortedMap(self._firsts, self._chunks, self._count)
            self._is_firsts_shared = True
            self._turn = object()
        return self._frozen

    def __setitem__(self, key: K, value: V) -> None:
        if self._gathered is not None:
            self._gathered[key] = value
            return None
        self._unfreeze()
        last = len(self._chunks) - 1
        if last < 0:
            return self._insert_chunk(0, [key], [value])
        keys = self._chunks[last].keys
        if keys[-1] < key:  # growing ids fill chunks to the end
            if len(keys) >= CHUNK_MAX:
                return self._insert_chunk(last + 1, [key], [value])
            index, place = last, len(keys)
        else:
            index = max(bisect_right(self._firsts, key) - 1, 0)
            keys = self._chunks[index].keys
            place = bisect_left(keys, key)
        chunk = self._owned(index)
        if place < len(keys) and keys[place] == key:
            chunk.values[place] = value
        else:
            self._insert(chunk, index, place, key, value)
        return None

    def gather(self, entries: dict[K, V]) -> bool:
        """Takes them all at once. False, and nothing taken, where this is no edit that gathers (any more), or
        one of the keys is there."""
        gathered = self._gathered
        if gathered is None or not gathered.keys().isdisjoint(entries):
            return False
        gathered.update(entries)
        return True

    def put_all(self, entries: dict[K, V]) -> None:
        if self._gathered is not None:
            self._gathered.update(entries)
            return
        for key, value in entries.items():
            self[key] = value

    def pop(self, key: K, default: D | None = None) -> V | D | None:
        if self._gathered is not None:
            return self._gathered.pop(key, default)
        if self._find(key) is None:
            return default
        self._unfreeze()
        index = bisect_right(self._firsts, key) - 1
        chunk = self._owned(index)
        place = bisect_left(chunk.keys, key)
        value = chunk.values.pop(place)
        del chunk.keys[place]
        self._count -= 1
        if not chunk.keys:
            self._own_firsts()
            del self._firsts[index], self._chunks[index]
        elif place == 0:
            self._own_firsts()
            self._firsts[index] = chunk.keys[0]
        return value

    def _insert(self, chunk: _Chunk[K, V], index: int, place: int, key: K, value: V) -> None:
        keys, values = chunk.keys, chunk.values
        keys.insert(place, key)
        values.insert(place, value)
        self._count += 1
        if place == 0:
            self._own_firsts()
            self._firsts[index] = key
        if len(keys) > CHUNK_MAX:
            half = len(keys) // 2
            tail = keys[half:], values[half:]
            del keys[half:], values[half:]
            self._count -= len(tail[0])
            self._insert_chunk(index + 1, *tail)

    def _insert_chunk(self, index: int, keys: list[K], values: list[V]) -> None:
        self._own_firsts()
        self._firsts.insert(index, keys[0])
        self._chunks.insert(index, _Chunk(keys, values, self._turn))
        self._count += len(keys)

    def _unfreeze(self) -> None:
        """The list of chunks becomes this edit's own."""
        if self._frozen is not None:
            self._frozen = None
            self._chunks = self._chunks[:]

    def _own_firsts(self) -> None:
        if self._is_firsts_shared:
            self._is_firsts_shared = False
            self._firsts = self._firsts[:]

    def _owned(self, index: int) -> _Chunk[K, V]:
        chunk = self._chunks[index]
        if chunk.owner is not self._turn:
            chunk = self._chunks[index] = _Chunk(chunk.keys[:], chunk.values[:], self._turn)
        return chunk
