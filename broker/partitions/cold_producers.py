"""Producers whose states were put into the partition's log: where each one's state is. Pure.

States go there in blocks of up to `BLOCK_ROWS`, each a value of the meta stream (kind COLD_BLOCK) that stays
in the log and not in memory. What stays in memory is 12 bytes a producer: its id and the number of its block,
ascending by id, in chunks, so that looking up, adding and removing cost a step in a chunk. An index (kind
COLD_INDEX) says which blocks count, how old each is, and of which checkpoint: blocks of another checkpoint
are void, since a broker that knows nothing of them may have written since.

    block      0  u8     version 1
               1  3 B    0
               4  u32    count of rows
               8  i64    age of the youngest row: ms since its last append when this was written
              16         each producer id, i64, ascending
                         each row's end, u32, counted from where the rows begin
                         rows, as producers.py writes a producer; ages are those when this was written

    index      0  u8     version 1
               1  7 B    0
               8  i64    the log's end at the checkpoint that the blocks go with
              16         each block: i64 number, i64 age of its youngest row when this was written

Not here: what a row means and when one goes to the log (producers.py), reading a block (partition.py).

Invariants
  * A producer is in one block at most: the one that was written last.
  * A block that holds nobody any more is `retired`: it leaves the log with the next checkpoint, which has in
    memory's snapshot what came back from it; until then a crash needs it. One that is `void` leaves with it
    too, and counts no more.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from millrace.broker.state_memory import Charges, Holder, StateMemory
from millrace.runtime.errors import Corrupt

BLOCK_ROWS = 256
# A block with fewer is written again together with others like it, once there are so many.
SMALL_ROWS = BLOCK_ROWS // 4
SMALL_BLOCKS = 8
CHUNK_ROWS = 1024
OFFSET_MAX = (1 << 63) - 1
# What a producer in the log takes in memory, with what chunks leave unused; and a block beside its producers.
COLD_BYTES = 28
COLD_BLOCK_BYTES = 600

_VERSION = 1
_BLOCK = struct.Struct(">BxxxIq")
_INDEX = struct.Struct(">B7xq")
_INDEX_ROW = struct.Struct(">qq")


class BlockHead:
    """What is kept of a block's value while a partition opens: its producers and the age of the youngest."""

    __slots__ = ("age_ms", "ids")

    def __init__(self, ids: array[int], age_ms: int) -> None:
        self.ids = ids
        self.age_ms = age_ms


def encode_block(rows: Sequence[tuple[int, bytes]], age_ms: int) -> bytes:
    """`rows`: producer id and packed state, ascending by id."""
    ids = array("q", [producer_id for producer_id, _ in rows])
    ends = array("I")
    end = 0
    for _, row in rows:
        end += len(row)
        ends.append(end)
    if sys.byteorder == "little":
        ids.byteswap()
        ends.byteswap()
    head = _BLOCK.pack(_VERSION, len(rows), age_ms)
    return b"".join((head, ids.tobytes(), ends.tobytes(), *(row for _, row in rows)))


def decode_block_head(value: bytes | memoryview) -> BlockHead:
    """Raises Corrupt for bytes that are no block."""
    count, age_ms = _count_of(value)
    ids = _numbers("q", value, _BLOCK.size, count)
    if any(ids[place] >= ids[place + 1] for place in range(count - 1)):
        raise Corrupt("producers of a cold block are not in order")
    return BlockHead(ids, age_ms)


def iter_rows(value: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
    """Producer id and packed state of each row. Raises Corrupt for bytes that are no block."""
    count, _ = _count_of(value)
    ids = _numbers("q", value, _BLOCK.size, count)
    ends = _numbers("I", value, _BLOCK.size + 8 * count, count)
    start = rows_start = _BLOCK.size + 12 * count
    view = memoryview(value)
    for producer_id, end in zip(ids, ends, strict=True):
        if not start <= rows_start + end <= len(view):
            raise Corrupt(f"a row of a cold block ends at {end}")
        yield producer_id, view[start : rows_start + end]
        start = rows_start + end
    if start != len(view):
        raise Corrupt(f"cold block has {len(view) - start} bytes too many")


def find_row(value: bytes | memoryview, producer_id: int) -> memoryview | None:
    """The packed state of one producer, None where the block has none. Raises Corrupt for bytes that are no
    block."""
    count, _ = _count_of(value)
    ids = _numbers("q", value, _BLOCK.size, count)
    place = bisect_left(ids, producer_id)
    if place == count or ids[place] != producer_id:
        return None
    ends = _numbers("I", value, _BLOCK.size + 8 * count, count)
    rows_start = _BLOCK.size + 12 * count
    start, end = rows_start + (ends[place - 1] if place else 0), rows_start + ends[place]
    if not rows_start <= start <= end <= len(value):
        raise Corrupt(f"a row of a cold block is [{start}, {end}) of {len(value)} bytes")
    return memoryview(value)[start:end]


def _count_of(value: bytes | memoryview) -> tuple[int, int]:
    if len(value) < _BLOCK.size:
        raise Corrupt(f"a cold block of {len(value)} bytes")
    version, count, age_ms = _BLOCK.unpack_from(value)
    if version != _VERSION or len(value) < _BLOCK.size + 12 * count:
        raise Corrupt(f"cold block: version {version}, {count} rows in {len(value)} bytes")
    return int(count), int(age_ms)


def _numbers(code: str, value: bytes | memoryview, start: int, count: int) -> array[int]:
    numbers: array[int] = array(code)
    numbers.frombytes(bytes(memoryview(value)[start : start + count * numbers.itemsize]))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def encode_index(log_end: int, ages_ms: Mapping[int, int]) -> bytes:
    return _INDEX.pack(_VERSION, log_end) + b"".join(_INDEX_ROW.pack(*row) for row in ages_ms.items())


def decode_index(value: bytes) -> tuple[int, dict[int, int]]:
    """The log's end at its checkpoint, and each block's age by number. Raises Corrupt for bytes that are
    none."""
    if len(value) < _INDEX.size or (len(value) - _INDEX.size) % _INDEX_ROW.size or value[0] != _VERSION:
        raise Corrupt(f"an index of cold producers of {len(value)} bytes")
    log_end = int(_INDEX.unpack_from(value)[1])
    return log_end, dict(_INDEX_ROW.iter_unpack(memoryview(value)[_INDEX.size :]))


class ColdBlock:
    """One block in the log. `count`: producers whose state is here and nowhere else. `newest_ms`: the
    monotonic time at which its youngest row was written last, `age_ms` the age of that row in the block.
    `log_end`: of the log when the partition opened, for a block that was there; what a row tells of offsets
    from there on was lost."""

    __slots__ = ("age_ms", "charges", "count", "log_end", "newest_ms")

    def __init__(self, memory: StateMemory, newest_ms: int, age_ms: int) -> None:
        self.log_end = OFFSET_MAX
        self.count = 0
        self.newest_ms = newest_ms
        self.age_ms = age_ms
        self.charges = Charges(memory)


class ColdProducers:
    """Ids of producers in the log, each with the number of its block."""

    __slots__ = (
        "_blocks",
        "_chunks",
        "_dead_count",
        "_heads",
        "_memory",
        "_next_number",
        "_numbers",
        "retired",
        "void",
    )

    def __init__(self, memory: StateMemory) -> None:
        self._memory = memory
        self._heads: list[int] = []  # the first id of each chunk
        self._chunks: list[array[int]] = []
        self._numbers: list[array[int]] = []  # beside `_chunks`
        self._blocks: dict[int, ColdBlock] = {}
        self._next_number = 0
        self._dead_count = 0  # ids in chunks whose block is gone
        self.retired: list[int] = []
        self.void: list[int] = []

    def __len__(self) -> int:
        return sum(block.count for block in self._blocks.values())

    def __bool__(self) -> bool:
        return bool(self._blocks)

    @property
    def blocks(self) -> Mapping[int, ColdBlock]:
        return self._blocks

    @property
    def index_bytes(self) -> int:
        """What the index takes, at most, and the removal of blocks."""
        gone_count = len(self.retired) + len(self.void)
        return _INDEX.size + _INDEX_ROW.size * (len(self._blocks) + gone_count) + 13 * gone_count

    def block_of(self, producer_id: int) -> int | None:
        """The number of the block that has this producer's state; None for a producer that is not in the
        log."""
        place = self._find(producer_id)
        if place is None:
            return None
        number = self._numbers[place[0]][place[1]]
        return number if number in self._blocks else None

    def small_blocks(self) -> list[int]:
        """Blocks that should be written again together, in the order of their age; none where they are
        few."""
        small = [number for number, block in self._blocks.items() if block.count < SMALL_ROWS]
        return small if len(small) >= SMALL_BLOCKS else []

    def begin_block(self, newest_ms: int, age_ms: int) -> int:
        """A new block without producers; its number."""
        number = self._next_number
        self._next_number += 1
        self._blocks[number] = ColdBlock(self._memory, newest_ms, age_ms)
        self._blocks[number].charges.add(self._memory.restored, COLD_BLOCK_BYTES)
        return number

    def adopt_block(self, number: int, newest_ms: int, age_ms: int, log_end: int) -> None:
        """A block that is in the log; ascending by number."""
        self._next_number = number
        assert self.begin_block(newest_ms, age_ms) == number
        self._blocks[number].log_end = log_end

    def skip_block(self, number: int) -> None:
        """A block that is in the log and void."""
        self._next_number = number + 1
        self.void.append(number)

    def add(self, producer_id: int, number: int, holder: Holder) -> None:
        """The producer's state is in that block from now on."""
        block = self._blocks[number]
        block.count += 1
        block.charges.add(holder, COLD_BYTES)
        place = self._find(producer_id)
        if place is None:
            self._insert(producer_id, number)
            return
        self._leave(self._numbers[place[0]][place[1]], holder)
        self._numbers[place[0]][place[1]] = number

    def remove(self, producer_id: int, holder: Holder) -> None:
        """The producer's state is in memory again, or wanted by nobody."""
        place = self._find(producer_id)
        if place is None:
            return
        chunk, row = place
        self._leave(self._numbers[chunk][row], holder)
        del self._chunks[chunk][row]
        del self._numbers[chunk][row]
        if not self._chunks[chunk]:
            del self._chunks[chunk], self._numbers[chunk], self._heads[chunk]

    def expire(self, number: int) -> None:
        """Nobody in the block is wanted any more."""
        block = self._blocks.pop(number)
        self._dead_count += block.count
        block.charges.release()
        self.void.append(number)

    def sweep_yielding(self) -> Iterator[None]:
        """Forgets the ids of blocks that are gone, a chunk a step; others may run between two steps."""
        place = len(self._chunks)
        while place > 0 and self._dead_count:
            place = min(place, len(self._chunks)) - 1
            if place < 0:
                return
            pairs = zip(self._chunks[place], self._numbers[place], strict=True)
            kept = [(one, number) for one, number in pairs if number in self._blocks]
            self._dead_count -= len(self._chunks[place]) - len(kept)
            if kept:
                self._chunks[place] = array("q", [one for one, _ in kept])
                self._numbers[place] = array("I", [number for _, number in kept])
            else:
                del self._chunks[place], self._numbers[place], self._heads[place]
            yield

    def release(self) -> None:
        """The partition closes: nothing of it is held here any more."""
        for block in self._blocks.values():
            block.charges.release()

    def _leave(self, number: int, holder: Holder) -> None:
        block = self._blocks.get(number)
        if block is None:
            self._dead_count -= 1
            return
        block.count -= 1
        block.charges.add(holder, -COLD_BYTES)
        if not block.count:
            del self._blocks[number]
            block.charges.release()
            self.retired.append(number)

    def _find(self, producer_id: int) -> tuple[int, int] | None:
        chunk = bisect_right(self._heads, producer_id) - 1
        if chunk < 0:
            return None
        ids = self._chunks[chunk]
        row = bisect_left(ids, producer_id)
        return (chunk, row) if row < len(ids) and ids[row] == producer_id else None

    def _insert(self, producer_id: int, number: int) -> None:
        chunk = max(0, bisect_right(self._heads, producer_id) - 1)
        is_new = not self._chunks
        if not is_new and len(self._chunks[chunk]) >= CHUNK_ROWS:
            is_new = chunk == len(self._chunks) - 1 and producer_id > self._chunks[chunk][-1]
            if is_new:
                chunk += 1
            else:
                self._split(chunk)
                chunk = max(0, bisect_right(self._heads, producer_id) - 1)
        if is_new:
            self._chunks.insert(chunk, array("q"))
            self._numbers.insert(chunk, array("I"))
            self._heads.insert(chunk, producer_id)
        row = bisect_left(self._chunks[chunk], producer_id)
        self._chunks[chunk].insert(row, producer_id)
        self._numbers[chunk].insert(row, number)
        self._heads[chunk] = self._chunks[chunk][0]

    def _split(self, chunk: int) -> None:
        half = CHUNK_ROWS // 2
        self._chunks.insert(chunk + 1, self._chunks[chunk][half:])
        self._numbers.insert(chunk + 1, self._numbers[chunk][half:])
        del self._chunks[chunk][half:], self._numbers[chunk][half:]
        self._heads.insert(chunk + 1, self._chunks[chunk + 1][0])
