"""What is done while requests wait for memory, so that those who hold it let go of it.

  * Requests that wait for news are answered with what there is, and answers that wait behind another give
    back what their requests are charged: at most every FORCE_COMPLETE_S while somebody waits.
  * From WATCHED of a part on, the pace of those is looked at who hold parts of frames or leave replies
    unsent, every LOOK_S. When all is used up, those who go on too slowly are ended (pace.py).
  * Reads are wide again (receiver.py) when nobody waits for memory for parts of frames, and there is some.

Not here: what is charged (memory.py, arrival.py). While there is enough for all, nothing runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice

from millrace.broker.network.connection import Connection
from millrace.broker.network.memory import RequestBudget, RequestMemory
from millrace.broker.network.pace import (
    QUICK_BYTES_S,
    READ_REST_S,
    SEND_REST_S,
    Holding,
    Pace,
    plan_endings,
    plan_slow_endings,
)

FORCE_COMPLETE_S = 0.2
COMPLETED_AT_ONCE = 1_000  # connections that are looked at for delayed operations
LOOK_S = 0.1
# Connections in one iteration of the loop; who holds something takes as long as so many others, 50 us.
LOOKED_AT, HOLDER_WEIGHT = 5_000, 100
WATCHED = 0.5


class Relief:
    """`end(connection, reason)` closes it now. `on_enough`: frames that are on their way have room."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        budget: RequestBudget,
        connections: Mapping[int, Connection],
        end: Callable[[Connection, str], None],
        on_enough: Callable[[], object] = lambda: None,
    ) -> None:
        self._loop = loop
        self._budget = budget
        self._connections = connections
        self._end = end
        self._on_enough = on_enough
        self._completions: dict[int, asyncio.TimerHandle] = {}
        self._look_timer: asyncio.TimerHandle | None = None
        self._paces: dict[tuple[str, int], Pace] = {}
        self.ended_counts: Counter[str] = Counter()  # by the part whose memory they held
        self.looked_at = {
            name: budget.parts[name] for name in ("small_arrivals", "large_arrivals", "replies")
        }
        for part, memory in enumerate(budget.of_frames):
            memory.on_short = partial(self._on_short, part)
        self._watch()

    def stop(self) -> None:
        """Nothing is done any more."""
        for timer in self._completions.values():
            timer.cancel()
        if self._look_timer is not None:
            self._look_timer.cancel()
        for part in self.looked_at.values():
            part.watch(1 << 62, lambda: None)
        for memory in self._budget.of_frames:
            memory.on_short = lambda: None

    # Requests that wait

    def _on_short(self, part: int) -> None:
        if part not in self._completions:
            self._completions[part] = self._loop.call_later(0, self._force_complete, part)

    def _force_complete(self, part: int, rest: Iterator[Connection] | None = None) -> None:
        """Some connections an iteration of the loop. Again after a while, as long as somebody waits: what was
        answered is asked for anew."""
        if not self._budget.of_frames[part].is_short:
            del self._completions[part]
            return
        rest = iter(list(self._connections.values())) if rest is None else rest
        some = list(islice(rest, COMPLETED_AT_ONCE))
        for connection in some:
            connection.force_complete_charged(part)
        if len(some) == COMPLETED_AT_ONCE:
            again = self._loop.call_later(0, self._force_complete, part, rest)
        else:
            again = self._loop.call_later(FORCE_COMPLETE_S, self._force_complete, part)
        self._completions[part] = again

    # Peers that are slow

    def _watch(self) -> None:
        for part in self.looked_at.values():
            part.watch(max(1, int(part.limit_bytes * WATCHED)), self._on_filling)

    def _on_filling(self) -> None:
        if self._look_timer is None:
            self._begin_look(0)

    def _begin_look(self, pause_s: float) -> None:
        self._look_timer = self._loop.call_later(pause_s, self._go_on, self._look())

    def _go_on(self, look: Iterator[None]) -> None:
        """The look's next part, and the others in iterations of the loop to come."""
        for _ in look:
            self._look_timer = self._loop.call_later(0, self._go_on, look)
            return
        is_filled = any(
            part.used_bytes >= part.limit_bytes * WATCHED or part.is_short for part in self.looked_at.values()
        )
        if is_filled:
            self._begin_look(LOOK_S)
        else:
            self._look_timer = None
            self._watch()

    def _look(self) -> Iterator[None]:
        """One look at all parts, with stops on the way; the next one after LOOK_S, until there is enough of
        each."""
        paces: dict[tuple[str, int], Pace] = {}
        for name, part in self.looked_at.items():
            holdings: list[Holding[Connection]] = []
            looked = 0
            for connection in list(self._connections.values()):
                if name == "replies":
                    holding = self._of_replies(connection, paces)
                else:
                    holding = self._of_arrivals(connection, name, part, paces)
                looked += 1 if holding is None else HOLDER_WEIGHT
                if holding is not None:
                    holdings.append(holding)
                if looked >= LOOKED_AT:
                    looked = 0
                    yield
            self._decide(name, part, [one for one in holdings if self._holds(one.who, name)])
            yield
        self._paces = paces
        if not any(self._is_used_up(self.looked_at[name]) for name in ("small_arrivals", "large_arrivals")):
            self._on_enough()

    def _decide(self, name: str, part: RequestMemory, holdings: list[Holding[Connection]]) -> None:
        """Who is ended."""
        largest_bytes = max((holding.held_bytes for holding in holdings), default=0)
        if part.used_bytes < part.limit_bytes or not (
            part.is_short or part.used_bytes - largest_bytes >= part.limit_bytes
        ):
            return  # nobody waits, and one alone may hold more than the limit
        rest_s = READ_REST_S if name == "replies" else SEND_REST_S
        endings = plan_endings(holdings, part.used_bytes, part.limit_bytes, rest_s)
        if name != "replies":
            self._pass_on(part, holdings)
            ended = {holding.who for holding in endings}
            endings += plan_slow_endings([one for one in holdings if one.who not in ended], part.limit_bytes)
        for holding in endings:
            self._end_slow(name, holding)

    def _pass_on(self, part: RequestMemory, holdings: list[Holding[Connection]]) -> None:
        """Who may overrun the part and is slow makes way for the next in line."""
        for holding in holdings:
            if holding.bytes_s is not None and holding.bytes_s < QUICK_BYTES_S:
                part.end_overrun(holding.who)

    def _is_used_up(self, part: RequestMemory) -> bool:
        return part.is_short or part.used_bytes >= part.limit_bytes

    def _end_slow(self, name: str, holding: Holding[Connection]) -> None:
        self.ended_counts[name] += 1
        does = "read" if name == "replies" else "sent"
        self._end(
            holding.who,
            f"it {does} {(holding.bytes_s or 0) / 1024:.1f} KiB/s while it held {holding.held_bytes >> 10} "
            "KiB of the memory that other "
            f"connections wait for (queued.max.request.bytes); its client may connect again",
        )

    def _holding(
        self,
        paces: dict[tuple[str, int], Pace],
        name: str,
        connection: Connection,
        held_bytes: int,
        rest_bytes: int,
        done_bytes: int,
        *,
        is_ours: bool = False,
        task: int = 0,
    ) -> Holding[Connection]:
        now_s = self._loop.time()
        key = name, connection.info.id
        pace = self._paces.get(key)
        if pace is None:
            pace = Pace(now_s, done_bytes, task)
        paces[key] = pace
        bytes_s = pace.see_held_up(now_s, done_bytes) if is_ours else pace.see(now_s, done_bytes, task)
        return Holding(connection, connection.info.network, held_bytes, rest_bytes, bytes_s, pace.since_s)

    def _holds(self, connection: Connection, name: str) -> bool:
        """Still, where others came meanwhile."""
        if name == "replies":
            return connection.pinned_bytes > 0
        return connection.arrival.memory is self.looked_at[name] and connection.arrival.held_bytes > 0

    def _of_arrivals(
        self, connection: Connection, name: str, part: RequestMemory, paces: dict[tuple[str, int], Pace]
    ) -> Holding[Connection] | None:
        if connection.arrival.memory is part:
            connection.receive_rest()
        if not self._holds(connection, name):
            return None
        if part.used_bytes >= part.limit_bytes:
            connection.force_complete()  # what waits for news may hold up whole frames behind it
        rest_bytes, done_bytes, is_ours = connection.awaited()
        held_bytes, task = connection.arrival.held_bytes, connection.frame_began_at
        return self._holding(
            paces, name, connection, held_bytes, rest_bytes, done_bytes, is_ours=is_ours, task=task
        )

    def _of_replies(
        self, connection: Connection, paces: dict[tuple[str, int], Pace]
    ) -> Holding[Connection] | None:
        if not connection.pinned_bytes:
            return None
        connection.charge_unsent()
        held_bytes, done_bytes = connection.pinned_bytes, connection.acknowledged_bytes
        return self._holding(paces, "replies", connection, held_bytes, held_bytes, done_bytes)
