"""Live probes of what has a bound, and of those who wait where it is reached.

Bounds are those that the code states: settings, and constants beside their use. Parts of the broker that
nobody holds are found where they are: connections at their sockets, a compaction's memory in the frames of
its task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from millrace.broker.network.connection import IN_FLIGHT_MAX, Connection
from millrace.broker.network.memory import RequestBudget
from millrace.s3stream.compaction.copying import ENDING_COUNT_MAX, Copying
from millrace.s3stream.compaction.sources import GETS_IN_FLIGHT_MAX, Source
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.ghosts import BLOCKS_MAX, RANGES_MAX
from millrace.s3stream.limiter import WAITING_MAX
from millrace.s3stream.readahead import READERS_MAX
from millrace.s3stream.storage import Storage
from millrace.wal.block.log import BlockWal
from millrace.wal.object.log import ObjectWal
from tests.sim.history import History
from tests.sim.node import SimNode
from tests.sim.probe import Probe

Figure = tuple[str, int, int]  # name, value, bound


class BoundsHold(Probe):
    """Invariant 12: log, caches and queues keep to their bounds, and what is charged is what is held."""

    def tick(self, storage: Storage) -> None:
        self.count += 1
        for figures in (self._engine(storage), self._reading(storage), self._log(storage._wal)):
            for name, value, bound in figures:
                if not 0 <= value <= bound:
                    self.find("beyond-bound", f"{name}: {value} of {bound}")
        cache = storage.log_cache
        charged_bytes = sum(block.size_bytes for block in cache.blocks)
        if charged_bytes != cache.size_bytes:
            self.find("wrong-charge", f"log cache says {cache.size_bytes}, its blocks {charged_bytes}")

    def _engine(self, storage: Storage) -> Iterator[Figure]:
        settings, cache, uploader = self.node.settings.streams, storage.log_cache, storage.uploader
        slack_bytes = storage._wal.max_record_bytes
        yield "log cache", cache.held_bytes, settings.log_cache_bytes + slack_bytes
        yield "free in log cache", cache.free_bytes, settings.log_cache_bytes + slack_bytes
        yield "room granted", storage._granted_bytes, settings.log_cache_bytes
        yield "uploads", uploader.pending_count, len(cache.blocks)
        yield "uploads under way", len(uploader._running), max(3, settings.uploads_in_flight)
        yield "blocks forgotten", len(cache._ghosts._blocks), BLOCKS_MAX
        yield "ranges forgotten", cache._ghosts._ranges_count, RANGES_MAX

    def _reading(self, storage: Storage) -> Iterator[Figure]:
        settings, cache = self.node.settings.streams, storage.block_cache
        slack_bytes = storage._wal.max_record_bytes
        yield "block cache", cache.size_bytes, settings.block_cache_bytes + slack_bytes
        yield "indexes", cache.finder.size_bytes, settings.index_cache_bytes + slack_bytes
        yield "sequential readers", len(cache._sequential), READERS_MAX

    def _log(self, wal: Any) -> Iterator[Figure]:
        yield "WAL", wal.used_bytes, wal.capacity_bytes
        if isinstance(wal, BlockWal):
            yield "writes of the WAL", len(wal._writer._in_flight), wal._settings.writes_in_flight
        elif isinstance(wal, ObjectWal):
            writer, uploads_max = wal._writer, wal._settings.uploads_max
            yield "objects of the WAL under way", len(writer._under_way), uploads_max
            yield "puts of the WAL", writer._active_count + writer._duplicates, uploads_max


class RequestsHold(Probe):
    """Invariant 12: what clients have under way, and what holds it, keep to their bounds."""

    def tick(self, storage: Storage) -> None:
        net = self.node.world.net
        found = [
            end._protocol for end in net.ends.values() if end.own[0] == self.node.host and not end.is_lost
        ]
        connections = [one for one in found if isinstance(one, Connection)]
        self.count += sum(one.in_flight_count for one in connections)
        for one in connections:
            if one.in_flight_count > IN_FLIGHT_MAX:
                self.find(
                    "beyond-bound",
                    f"requests under way at {one.peer}: {one.in_flight_count} of {IN_FLIGHT_MAX}",
                )
        for budget in {
            id(one._budget): one._budget for one in connections
        }.values():  # a replaced process may live on beside the node's own
            self._budget_holds(budget, [one for one in connections if one._budget is budget])

    def _budget_holds(self, budget: RequestBudget, connections: list[Connection]) -> None:
        settings = self.node.settings
        for name, memory in (("bulk", budget.bulk), ("brief", budget.brief), ("large", budget.large)):
            bound = memory.limit_bytes + settings.server.request_bytes_max
            if not 0 <= memory.used_bytes <= bound:
                self.find("beyond-bound", f"{name} requests: {memory.used_bytes} of {bound}")
            if memory.waiting_count > len(connections):
                self.find(
                    "beyond-bound", f"{name} requests: {memory.waiting_count} wait, of {len(connections)}"
                )
        charged_bytes = sum(exchange.charged_bytes for one in connections for exchange in one._exchanges)
        if charged_bytes > budget.used_bytes:
            self.find("wrong-charge", f"requests say {budget.used_bytes}, their exchanges {charged_bytes}")


class CompactionHolds(Probe):
    """Invariant 12: what compaction reads, writes and remembers keeps to its memory, and its requests to
    theirs."""

    def tick(self, storage: Storage) -> None:
        parts = list(self._parts())
        self.count += bool(parts)
        self.node.world.hits["a compaction was watched"] += any(
            isinstance(part, (Source, Copying)) for part in parts
        )
        for part in parts:
            for name, value, bound in self._figures(part):
                if not 0 <= value <= bound:
                    self.find("beyond-bound", f"compaction, {name}: {value} of {bound}")

    def _figures(self, part: object) -> Iterator[Figure]:
        settings = self.node.settings.compaction
        if isinstance(part, Work):
            yield "rows known", part.known_rows.held_bytes, settings.known_rows_bytes_max
        elif isinstance(part, Source):
            # (One that is larger than all the room is read all the same, alone.)
            memory = part.memory
            yield (
                "read",
                memory.held_bytes,
                max(memory.limit_bytes, settings.read_bytes_max) + settings.block_bytes,
            )
            yield "reads under way", GETS_IN_FLIGHT_MAX - memory.requests._value, GETS_IN_FLIGHT_MAX
        elif isinstance(part, Copying):
            yield "put", part._memory._used_bytes, max(part._memory._limit_bytes, settings.object_bytes_max)
            yield "objects that end", len(part._ending), ENDING_COUNT_MAX

    def _parts(self) -> Iterator[object]:
        makers = getattr(self.node.broker, "_makers", None)  # there is one once there is an engine
        tasks = {} if makers is None else makers._tasks._running
        for task in [task for task, name in tasks.items() if name == "compaction"]:
            yield from _held_by(task)


def _held_by(task: asyncio.Task[None]) -> Iterator[object]:
    """What the suspended frames of a task have in their hands, the parts of compaction among it."""
    coroutine: Any = task.get_coro()
    seen: dict[int, object] = {}
    while coroutine is not None and (frame := getattr(coroutine, "cr_frame", None)) is not None:
        for value in frame.f_locals.values():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, (Work, Source, Copying)):
                    seen[id(one)] = one
        coroutine = coroutine.cr_await
    yield from seen.values()


class LinesHold(Probe):
    """Invariants 12 and 14: who waits for room is served in the order of asking, and no line is longer than
    it may be."""

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._before: dict[str, list[asyncio.Future[None]]] = {}

    def on_start(self) -> None:
        self._before.clear()

    def tick(self, storage: Storage) -> None:
        self.count += 1
        lines = (
            ("room", storage._room),
            ("room for coordinators", storage._coordinators),
            ("room for states", storage._states),
        )
        for name, line in lines:
            now = [future for _, future in line.waiting]
            before, self._before[name] = self._before.get(name, []), now
            self.node.world.hits[f"waits for {name}"] += len(now)
            self._check(name, before, now)
        stores = self.node.broker.stores if self.node.broker is not None else None
        if stores is not None:
            for one in (stores.traffic.inbound, stores.traffic.outbound, stores.traffic.pace):
                if len(one.tiers) > WAITING_MAX:
                    self.find("beyond-bound", f"{len(one.tiers)} wait for the store, of {WAITING_MAX}")

    def _check(self, name: str, before: list[asyncio.Future[None]], now: list[asyncio.Future[None]]) -> None:
        """Those who wait still are the last of those who waited, in their order; who gave up may leave from
        anywhere."""
        waiting = {id(future): None for future in now}
        left = [future for future in before if id(future) in waiting]
        if [id(future) for future in left] != [id(future) for future in now[: len(left)]]:
            self.find("out-of-turn", f"{name}: who came later stands before who came first")
        is_behind = False
        for future in before:
            is_behind |= id(future) in waiting
            if is_behind and id(future) not in waiting and not future.cancelled():
                self.find("out-of-turn", f"{name}: one was let through before {len(left)} who came first")
