"""Sessions of brokers, at the controller that leads: who has not been heard for too long is to be fenced.
Pure.

Times are seconds of the loop's clock. Not here: heartbeats' meaning (commands/brokers.py), fencing
(controller.py). Kept true: nobody is found gone by a controller that was itself late. A look finds who was
gone when it was due, for what came since may not have been read; after one that came too late, and after each
change of leader, everybody has a whole session from then on. But for the node that led before, where it went
silent: as a voter this controller followed it, and so knows since when. What is left of its session is
shortened by that, and is never less than it takes to hear from a broker that lives.

A broker may say with its heartbeat that it does not reach the store (*in trouble*). It has its session all
the same, until it is taken for cut off: then it has none before it says that it is well.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

LOOKS: Final = 4  # in a session
# Of a session: within it a voter that lives has been told who leads now, twice, and its broker has said
# that it is there, which it does as soon as it knows.
HEARD_PART: Final = 1 / 3
BEHIND_S: Final = 0.002  # a look comes so much after the end of a session, so that it is over by then
LATE_PART: Final = 0.5  # of a session: a look that comes so much later than it was due says nothing of others


class Sessions:
    def __init__(self, session_s: float) -> None:
        assert session_s > 0, session_s
        self._session_s = session_s
        self.look_every_s = session_s / LOOKS
        self._heard: dict[int, float] = {}  # by broker, the longest ago first
        self._silent: set[int] = set()  # found gone by a look, and not forgotten or heard since
        self._due_s = 0.0  # the next look
        self._troubled: dict[int, float] = {}  # who says that it is in trouble, since when
        self._cut_off: set[int] = set()  # of these, who has no session for it
        self._well_since: dict[int, float] = {}  # of those that were in trouble, and are no more

    def begin(
        self, broker_ids: Iterable[int], now_s: float, silent_id: int = -1, silent_s: float = 0.0
    ) -> None:
        """This node leads from now on; these are registered. `silent_id` led before, and has said nothing for
        so long."""
        heard = dict.fromkeys(broker_ids, now_s)
        if heard.pop(silent_id, None) is not None:
            spent_s = min(silent_s, self._session_s * (1 - HEARD_PART))
            heard = {silent_id: now_s - spent_s, **heard}
        self._heard = heard
        self._silent.clear()
        self._troubled.clear()
        self._well_since.clear()
        self._cut_off.clear()
        self._due_s = now_s + self.look_every_s

    def alive(self) -> frozenset[int]:
        """Brokers that have one, as of the last look."""
        return frozenset(self._heard) - self._silent

    def hear(self, broker_id: int, now_s: float, *, is_well: bool = True) -> bool:
        """A registration of the broker, or a heartbeat of its newest incarnation. Whether it has a session
        then."""
        if is_well:
            if self._troubled.pop(broker_id, None) is not None:
                self._well_since[broker_id] = now_s
            self._cut_off.discard(broker_id)
        else:
            self._troubled.setdefault(broker_id, now_s)
            if broker_id in self._cut_off:
                return False
        self._heard.pop(broker_id, None)
        self._heard[broker_id] = now_s
        self._silent.discard(broker_id)
        return True

    def prolong(self, broker_id: int, now_s: float) -> None:
        """A heartbeat of the broker's newest incarnation has come, and is decided later: who has a session
        has it for as long again."""
        if broker_id in self._heard and broker_id not in self._cut_off:
            self._heard.pop(broker_id)
            self._heard[broker_id] = now_s
            self._silent.discard(broker_id)

    def still_gone(self, broker_ids: Iterable[int]) -> list[int]:
        """Of those that a look found gone: who was not heard since."""
        return [broker_id for broker_id in broker_ids if broker_id in self._silent]

    def in_trouble(self, since_s: float) -> list[int]:
        """Who has said so from then on without a break, and is not taken for cut off."""
        return [
            broker_id
            for broker_id, began_s in self._troubled.items()
            if began_s <= since_s and broker_id not in self._cut_off
        ]

    def well(self, since_s: float) -> frozenset[int]:
        """Who has a session, and was not in trouble from then on."""
        late = [broker_id for broker_id, began_s in self._well_since.items() if began_s > since_s]
        return self.alive() - self._troubled.keys() - frozenset(late)

    def cut_off(self, broker_id: int, now_s: float) -> None:
        """The broker's session is over: a look finds it gone."""
        self._cut_off.add(broker_id)
        self._heard.pop(broker_id, None)
        self._heard = {broker_id: now_s - self._session_s, **self._heard}

    def is_cut_off(self, broker_id: int) -> bool:
        return broker_id in self._cut_off

    def wait_s(self, now_s: float) -> float:
        """Until the next look is due: a moment behind the end of the session that ends first, where that is
        sooner than looks are made anyway."""
        return self._due_s - now_s if self._due_s > now_s else self.look_every_s

    def look(self, now_s: float) -> list[int]:
        """Whose session is over; told at each look until it is forgotten, or heard again."""
        late_s = max(0.0, now_s - self._due_s)
        gone = self._look(now_s, late_s)
        first_s = next(islice(self._heard.values(), len(gone), None), now_s) + self._session_s + BEHIND_S
        self._due_s = min(max(first_s, now_s + late_s), now_s + self.look_every_s)
        return gone

    def _look(self, now_s: float, late_s: float) -> list[int]:
        if late_s > LATE_PART * self._session_s:
            self._heard = dict.fromkeys(self._heard, now_s)
            self._silent.clear()
            return []
        gone = []
        for broker_id, heard_s in self._heard.items():
            if now_s - late_s - heard_s < self._session_s:
                break
            gone.append(broker_id)
        self._silent.update(gone)
        return gone

    def forget(self, broker_id: int) -> None:
        """It is fenced: its next heartbeat begins a session. One that was heard since the look has one."""
        if broker_id in self._silent:
            self._silent.remove(broker_id)
            del self._heard[broker_id]
