"""Between memory and a partition's log: producers' states that leave memory, and those that come back.

Not here: which producers are cold (producers.py), how a block looks (cold_producers.py). Keeps true: a state
that left memory is in the meta stream's hands in the same iteration of the loop; one that comes back is
judged only when it is whole.
"""

from __future__ import annotations

import asyncio
import logging

from millrace.broker.partitions.cold_producers import BLOCK_ROWS, SMALL_BLOCKS
from millrace.broker.partitions.meta_stream import MetaStream
from millrace.broker.partitions.producers import Producers
from millrace.broker.partitions.state import COLD_BLOCK, PartitionState
from millrace.broker.state_memory import RESTORED
from millrace.runtime.errors import Closed, Corrupt, Fenced, MillraceError, in_words

log = logging.getLogger(__name__)

# Of one partition, and of one client address in it; further ones wait. So one address never fills the line.
LOOKUPS_AT_ONCE = 8
LOOKUPS_OF_ADDRESS = 4


async def bring_back(meta: MetaStream, producers: Producers, producer_id: int, who: str = RESTORED) -> None:
    """On return the producer is hot, or not known. Raises Corrupt, and what the stream's reads raise."""
    looked_at = -1
    while producers.is_cold(producer_id) and not producers.is_released:
        assert producers.cold is not None
        number = producers.cold.block_of(producer_id)
        assert number is not None
        value = await meta.read_far((COLD_BLOCK, number))
        if value is not None:
            producers.revive(producer_id, number, value, _tick_ms(), who)
        elif looked_at == number:
            raise Corrupt(f"block {number} of cold producers is not in {meta!r}")
        looked_at = number


async def cool(meta: MetaStream, state: PartitionState, keep_count: int, durable_end: int) -> None:
    """Writes states of producers to the log until so many are left in memory; durable on return. Those stay
    whose last batch is not below `durable_end`. Small blocks are written again with the first. Nothing is
    raised: what does not get into the log stays in memory."""
    producers = state.producers
    try:
        older = await _read_small_blocks(meta, producers)
        while (count := producers.hot_count - keep_count) > 0 and not meta.stream.is_closed:
            taken = producers.take_cold(min(BLOCK_ROWS, count), durable_end, _tick_ms())
            if not taken:
                return
            for number, value in older:
                taken += producers.rows_of(number, value)
            older = []
            await meta.put_durably(state.put_cold(taken, _tick_ms()))
    except (Closed, Fenced):
        return
    except MillraceError as error:
        log.warning("%r: producers stay in memory: %s", meta, in_words(error))


async def _read_small_blocks(meta: MetaStream, producers: Producers) -> list[tuple[int, bytes]]:
    """Blocks with few producers left, up to a full one of them together."""
    found: list[tuple[int, bytes]] = []
    cold = producers.cold
    rows_count = 0
    for number in [] if cold is None else cold.small_blocks()[: 4 * SMALL_BLOCKS]:
        value = await meta.read_far((COLD_BLOCK, number))
        block = None if cold is None else cold.blocks.get(number)
        if value is not None and block is not None:
            found.append((number, value))
            rows_count += block.count
        if rows_count >= BLOCK_ROWS:
            break
    return found


class _Line:
    """Of one address: its places, and how many refer to it."""

    __slots__ = ("places", "users")

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(LOOKUPS_OF_ADDRESS)
        self.users = 0


class Lookups:
    """Producers of one partition that are on their way back into memory: one read for all who wait for
    one."""

    def __init__(self, meta: MetaStream, producers: Producers) -> None:
        self._meta = meta
        self._producers = producers
        self._running: dict[int, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._lines: dict[str, _Line] = {}

    def find(self, producer_id: int, who: str) -> asyncio.Future[None]:
        """Done when the producer is hot, or when that failed: `judge` tells. Never raises; not to be
        cancelled."""
        found = self._running.get(producer_id)
        if found is None:
            found = asyncio.get_running_loop().create_task(
                self._find(producer_id, who), name="find a producer"
            )
            self._running[producer_id] = found
            found.add_done_callback(lambda _: self._running.pop(producer_id, None))
        return found

    async def _find(self, producer_id: int, who: str) -> None:
        line = self._lines.setdefault(who, _Line())
        line.users += 1
        try:
            async with line.places, self._places:
                await bring_back(self._meta, self._producers, producer_id, who)
        except (Closed, Fenced) as error:
            log.info("%r: producer %d was not read: %s", self._meta, producer_id, in_words(error))
        except MillraceError as error:
            log.error(
                "%r: the state of producer %d cannot be read (%s): its batches are refused until it can be",
                self._meta,
                producer_id,
                in_words(error),
            )
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[who]


def _tick_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
