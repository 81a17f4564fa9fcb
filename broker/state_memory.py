"""Memory that clients' states keep taking after their requests are answered: groups, committed offsets,
idempotent producers. One bound for all of it, and who is refused at the bound. Pure: it counts.

Every state is charged to a *holder*: the address of the client that made it, or `restored` for what was read
back from a log. A holder may make more while

    held_bytes + needed_bytes <= HOLDER_FACTOR * free bytes, where free = limit - used - needed

so that one holder alone fills three quarters of the bound, two fill six sevenths together, and whoever holds
least is refused last: a share stays free however many come. A group that exists may grow twice as far
(GROWTH_FACTOR). What is loaded at a start is charged and never refused, even beyond the limit.

Not here: what a state costs (the owners know), which answer a refusal becomes (the handlers), what goes from
memory to a log (partitions/producers.py). Keeps true: `used_bytes` is the sum of all holders' bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from millrace.broker.client_network import network_of

HOLDER_FACTOR = 3
GROWTH_FACTOR = 6
# Producers' states that stay in memory take at most this part; beyond it those that wrote longest ago go to
# the log.
HOT_PART = 4
# What a client is asked to wait before it tries again.
THROTTLE_MS = 1000
UNBOUNDED_BYTES = 1 << 62
RESTORED = ""


class Holder:
    """Who holds states: clients at an address, or a site of IPv6 (client_network.py)."""

    __slots__ = ("__weakref__", "held_bytes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"{self.name or 'restored'}: {self.held_bytes} bytes"


class StateMemory:
    """`on_crowded` is called when producers' states take more than their part of memory, and at refusals
    while they do; `on_refused` with who was refused and what it wanted to make, each time."""

    def __init__(self, limit_bytes: int = UNBOUNDED_BYTES, producer_expiration_ms: int = 1 << 62) -> None:
        assert limit_bytes > 0, limit_bytes
        self.producer_expiration_ms = producer_expiration_ms
        self.limit_bytes = limit_bytes
        self.hot_bytes_max = limit_bytes // HOT_PART
        # Producers of one partition that stay in memory, however crowded it is: none do where the log may
        # have them.
        self.hot_count_min = 0
        self.used_bytes = 0
        self.hot_bytes = 0  # of it, producers' states that are in memory
        self.refused_count = 0
        self.on_crowded: Callable[[], object] = lambda: None
        self.on_refused: Callable[[Holder, str], object] = lambda holder, what: None
        self.restored = Holder(RESTORED)
        # Weak, so that an address is forgotten with its last state; order and size of it are shown to nobody.
        self._holders: WeakValueDictionary[str, Holder] = WeakValueDictionary({RESTORED: self.restored})

    def __repr__(self) -> str:
        return f"{self.used_bytes} of {self.limit_bytes} bytes"

    def holder(self, address: str) -> Holder:
        """Whom a client at that address is."""
        name = network_of(address)
        found = self._holders.get(name)
        if found is None:
            found = self._holders[name] = Holder(name)
        return found

    def has_place(self, holder: Holder, needed_bytes: int, factor: int = HOLDER_FACTOR) -> bool:
        """Whether the holder may make a state of that size now."""
        free_bytes = self.limit_bytes - self.used_bytes - needed_bytes
        return holder.held_bytes + needed_bytes <= factor * free_bytes

    def refuse(self, holder: Holder, what: str) -> None:
        """Counts and tells a refusal. States that could not go to the log when there were too many of them
        are tried again: nothing else may ask for it, since those that have memory go on without more."""
        self.refused_count += 1
        self.on_refused(holder, what)
        if self.hot_bytes > self.hot_bytes_max:
            self.on_crowded()

    def charge(self, holder: Holder, size_bytes: int) -> None:
        """Charges the holder; a negative size gives back. Never refuses."""
        self.used_bytes += size_bytes
        holder.held_bytes += size_bytes
        assert holder.held_bytes >= 0, (holder, size_bytes)

    def charge_hot(self, holder: Holder, size_bytes: int) -> None:
        """As `charge`, for a producer's state in memory."""
        self.charge(holder, size_bytes)
        self.hot_bytes += size_bytes
        if size_bytes > 0 and self.hot_bytes > self.hot_bytes_max:
            self.on_crowded()


class Charges:
    """What one owner (a shard, a block of states) charges to whom, so that all of it can be given back at
    once."""

    __slots__ = ("_by_holder", "_memory")

    def __init__(self, memory: StateMemory) -> None:
        self._memory = memory
        self._by_holder: dict[Holder, int] = {}

    @property
    def size_bytes(self) -> int:
        return sum(self._by_holder.values())

    def main_holder(self) -> Holder | None:
        """Who is charged most."""
        by_holder = self._by_holder
        return max(by_holder, key=lambda holder: by_holder[holder]) if by_holder else None

    def add(self, holder: Holder, size_bytes: int) -> None:
        """A negative size gives back: from whoever else is charged, as far as this holder is not charged so
        much."""
        by_holder = self._by_holder
        left_bytes = by_holder.get(holder, 0) + size_bytes
        if left_bytes > 0:
            by_holder[holder] = left_bytes
            self._memory.charge(holder, size_bytes)
            return
        taken_bytes = by_holder.pop(holder, 0)
        if taken_bytes:
            self._memory.charge(holder, -taken_bytes)
        if left_bytes and by_holder:
            self.add(next(iter(by_holder)), left_bytes)

    def release(self) -> None:
        """Gives everything back."""
        by_holder, self._by_holder = self._by_holder, {}
        for holder, size_bytes in by_holder.items():
            self._memory.charge(holder, -size_bytes)
