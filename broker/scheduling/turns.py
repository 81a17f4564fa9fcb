"""Turns at keys: work that must wait keeps its place, so that what comes later for the same key cannot
overtake it. Pure.

One piece of work may need several keys (a Produce request its partitions). It is ready when it stands first
at all of them and what else it waits for has come; it keeps its place until it leaves. Places are taken at
all keys at once, in the order of arrival, so no two pieces of work can wait for each other.

Work that is done at once lets the next be ready, and so a long line would run within the one call that moved
it. It runs one piece after the other instead, none within another, and goes on `later` after some of them.

Invariant: at each key at most one piece of work is ready at a time, the one that came first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable

# Some milliseconds of small requests.
AT_ONCE = 100


class Turn:
    """One piece of work and its places. `holds`: how many things it still waits for."""

    __slots__ = ("holds", "keys", "on_ready")

    def __init__(self, keys: tuple[Hashable, ...], holds: int, on_ready: Callable[[], None]) -> None:
        self.keys = keys
        self.holds = holds
        self.on_ready = on_ready


class Turns:
    """Truthy while anybody has a place. `later` has its argument called soon, when others had the loop."""

    __slots__ = ("_is_running", "_later", "_lines", "_ready")

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self._lines: dict[Hashable, deque[Turn]] = {}
        self._ready: deque[Turn] = deque()
        self._is_running = False  # or is going to

    def __bool__(self) -> bool:
        return bool(self._lines)

    def is_held(self, key: Hashable) -> bool:
        """Somebody has a place at this key."""
        return key in self._lines

    def take(self, keys: Iterable[Hashable], holds: int, on_ready: Callable[[], None]) -> Turn:
        """Takes a place at each key. `on_ready` is called once, maybe before this returns, when the turn has
        come at all of them and `holds` things were lifted; never within that of another."""
        turn = Turn(tuple(dict.fromkeys(keys)), holds + 1, on_ready)
        for key in turn.keys:
            line = self._lines.setdefault(key, deque())
            if line:
                turn.holds += 1
            line.append(turn)
        self.lift(turn)
        return turn

    def lift(self, turn: Turn) -> None:
        """One of the things that a turn waits for has come."""
        self._lift(turn)
        self._go_on()

    def _lift(self, turn: Turn) -> None:
        turn.holds -= 1
        assert turn.holds >= 0, turn.holds
        if turn.holds == 0:
            self._ready.append(turn)

    def _go_on(self) -> None:
        if self._ready and not self._is_running:
            self._run_ready()

    def _run_ready(self) -> None:
        """What one of them raises is the caller's; it stops none behind it."""
        self._is_running = True
        try:
            for _ in range(AT_ONCE):
                self._ready.popleft().on_ready()
                if not self._ready:
                    break
        finally:
            self._is_running = bool(self._ready)
            if self._is_running:
                self._later(self._run_ready)

    def leave(self, turn: Turn) -> None:
        """The work is done: who stands behind it moves up. Only for a turn that is ready."""
        moved_up = []
        for key in turn.keys:
            line = self._lines[key]
            first = line.popleft()
            assert first is turn
            if line:
                moved_up.append(line[0])
            else:
                del self._lines[key]
        for behind in moved_up:
            self._lift(behind)
        self._go_on()
