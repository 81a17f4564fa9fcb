"""What a cache bounded by bytes keeps: the most recently used. Pure.

Used for blocks of objects and for the indexes of objects. What is on its way has its room in the bound as
well, and so has what was dropped and is not gone yet (`beside_bytes`, its owner's to set). The value that is
being added is always kept, even when it alone exceeds the bound: a reader needs it now, and refusing it would
read it again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BlockLru(Generic[K, V]):
    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size_bytes = 0
        self.reserved_bytes = 0
        self.beside_bytes = 0
        self.evicted_count = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: K) -> bool:
        """Does not count as a use."""
        return key in self._kept

    def __repr__(self) -> str:
        kept = " ".join(f"{key}:{charge}B" for key, (_, charge) in self._kept.items())
        return f"lru {self.size_bytes}B of {self._capacity_bytes}B: {kept}".rstrip(": ")

    def get(self, key: K) -> V | None:
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, charge_bytes: int) -> list[V]:
        """Keeps a value, which replaces the one under the same key; gives back what had to go for it."""
        self.drop(key)
        self._kept[key] = (value, charge_bytes)
        self.size_bytes += charge_bytes
        return self._evict(1)

    def reserve(self, size_bytes: int) -> list[V]:
        """Holds room for what is about to come, until `release`; gives back what had to go for it."""
        self.reserved_bytes += size_bytes
        return self._evict(0)

    def release(self, size_bytes: int) -> None:
        self.reserved_bytes -= size_bytes

    def _evict(self, kept_count_min: int) -> list[V]:
        evicted: list[V] = []
        capacity_bytes = self._capacity_bytes - self.beside_bytes
        while self.size_bytes + self.reserved_bytes > capacity_bytes and len(self._kept) > kept_count_min:
            _, (old, charge) = self._kept.popitem(last=False)
            self.size_bytes -= charge
            evicted.append(old)
        self.evicted_count += len(evicted)
        return evicted

    def demote(self, key: K) -> None:
        """Makes it the next to go: it has served its purpose."""
        if key in self._kept:
            self._kept.move_to_end(key, last=False)

    def drop(self, key: K) -> V | None:
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self.size_bytes -= found[1]
        return found[0]

    def drop_all(self) -> list[V]:
        dropped = [value for value, _ in self._kept.values()]
        self._kept.clear()
        self.size_bytes = 0
        return dropped
