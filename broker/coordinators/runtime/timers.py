"""Timers of many keys, most of which only ever move away, over one timer of the loop. Pure.

A heartbeat moves a deadline further; nothing is done about that until the old time has come, and then whoever
keeps the deadline is asked for the new one. So a heartbeat costs nothing here. A shard has one of these over
its groups, and each group one over its members.

Keeps true: a key's timer is never later than the earliest time that was set since it last fired or was moved;
a set leaves at most about twice as many entries in the heap as there are keys; a look at the earliest one
takes out void entries one by one while they are few beside the keys, and makes the heap anew where they are
many.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

VOID_MIN = 64  # entries that are taken out one by one whatever the number of keys


class Timers:
    """By key; times in milliseconds of any one clock."""

    __slots__ = ("_due_ms", "_heap")

    def __init__(self) -> None:
        self._due_ms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # an entry that is not its key's due time is void

    def __len__(self) -> int:
        return len(self._due_ms)

    def set(self, key: str, due_ms: int) -> bool:
        """The key's timer fires at `due_ms` or before; whether that is earlier than it would have."""
        current = self._due_ms.get(key)
        if current is not None and current <= due_ms:
            return False
        self._due_ms[key] = due_ms
        if len(self._heap) > 2 * len(self._due_ms) + 64:
            self._rebuild()
        else:
            heappush(self._heap, (due_ms, key))
        return True

    def move(self, key: str, due_ms: int) -> None:
        """The key's timer fires at `due_ms`, be that later than it would have or earlier."""
        self.forget(key)
        self.set(key, due_ms)

    def forget(self, key: str) -> None:
        """The key has no timer, if it had one."""
        self._due_ms.pop(key, None)

    def next_due_ms(self) -> int | None:
        first = self.first()
        return None if first is None else first[0]

    def first(self) -> tuple[int, str] | None:
        """The earliest timer: when it fires, and its key."""
        due_ms = self._due_ms
        while self._heap and due_ms.get(self._heap[0][1]) != self._heap[0][0]:
            if len(self._heap) - len(due_ms) > VOID_MIN + len(due_ms) // 8:
                self._rebuild()
            else:
                heappop(self._heap)
        return self._heap[0] if self._heap else None

    def take_due(self, now_ms: int, count_max: int) -> list[str]:
        """Keys whose timer is due, each once, the earliest first; they have none afterwards."""
        due: list[str] = []
        while len(due) < count_max and (next_ms := self.next_due_ms()) is not None and next_ms <= now_ms:
            _, key = heappop(self._heap)
            del self._due_ms[key]
            due.append(key)
        return due

    def _rebuild(self) -> None:
        self._heap = [(due_ms, key) for key, due_ms in self._due_ms.items()]
        heapify(self._heap)
