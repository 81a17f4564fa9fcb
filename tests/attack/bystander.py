"""A well-behaved client beside an attack: it does one small thing again and again, and remembers how long
each took.

Runs in a thread with a connection of its own. `with Bystander(broker, step) as bystander: attack()`;
afterwards `bystander.slowest_s` is the longest wait for an answer, an answer still awaited at the end
included. Time in which the broker was ready to run and the machine ran others does not count: no attack takes
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.attack.background import Background
from tests.cpu import delayed_seconds
from tests.live import LiveBroker
from tests.live.client import Client
from tests.patience import PATIENCE_S, until

PAUSE_S = 0.005
SERVED_MIN = 10


class Bystander(Background):
    """`step(client)`: one request and its answer; raises AssertionError when the answer is wrong."""

    def __init__(
        self, broker: LiveBroker, step: Callable[[Client], object], timeout_s: float = PATIENCE_S
    ) -> None:
        super().__init__()
        self._broker = broker
        self._step = step
        self._timeout_s = timeout_s
        self.latencies_s: list[float] = []
        self.peak_memory_bytes = broker.memory_bytes()
        self._asked_at: float | None = None
        self._delayed_s = 0.0  # of the broker, when it was asked

    @property
    def slowest_s(self) -> float:
        """The longest wait so far, in seconds; that of the request under way counts too."""
        asked_at = self._asked_at
        waiting = 0.0 if asked_at is None else self._waited_s(asked_at)
        return max([waiting, *self.latencies_s])

    def sees_answers(self, count: int = 10) -> None:
        """Waits until so many more have come."""
        before = len(self.latencies_s)
        until(lambda: self.error is not None or len(self.latencies_s) >= before + count, "it is held up")

    def check_served(self) -> None:
        """In the midst of an attack that is over soon: a short one that stops others all the while shows by
        how few answers they had."""
        assert len(self.latencies_s) > SERVED_MIN, f"{len(self.latencies_s)} answers beside the attack"

    def _waited_s(self, asked_at: float) -> float:
        return max(0.0, time.monotonic() - asked_at - (delayed_seconds(self._broker.pid) - self._delayed_s))

    def _run(self) -> None:
        self._has_begun.set()
        with Client(self._broker.address, self._timeout_s) as client:
            while not self._is_over.wait(PAUSE_S):
                self._delayed_s = delayed_seconds(self._broker.pid)
                self._asked_at = time.monotonic()
                self._step(client)
                self.latencies_s.append(self._waited_s(self._asked_at))
                self._asked_at = None
                self.peak_memory_bytes = max(self.peak_memory_bytes, self._broker.memory_bytes())


def produce_one(topic: str) -> Callable[[Client], object]:
    """A step: one record of 100 bytes, acknowledged."""
    return lambda client: client.produce(topic, [b"x" * 100])
