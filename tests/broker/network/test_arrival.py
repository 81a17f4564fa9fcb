"""What is charged for frames that are here in part, or wait."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.network.arrival import (
    AT_ONCE_FACTOR,
    CROWDED_FACTOR,
    FREE_BYTES,
    WAITING_BYTES,
    Arrival,
    step_of,
)
from millrace.broker.network.memory import SMALL_FRAME_BYTES, RequestBudget, RequestMemory
from millrace.broker.network.receiver import NARROW_BYTES, RECEIVE_BYTES

KIB, MIB = 1 << 10, 1 << 20


class Sender:
    """One connection's frames: it receives pieces of each while it may, and stands in line else."""

    def __init__(self, budget: RequestBudget, frames: list[int], piece: int) -> None:
        self.arrival = Arrival(budget, self)
        self.frames, self.piece = list(frames), piece
        self.here = self.position = 0
        self.is_waiting = False

    def receive(self) -> None:
        """One piece."""
        count = min(self.piece, self.frames[0] - self.here)
        self.here += count
        self.position += count
        if self.here == self.frames[0]:
            self.frames.pop(0)
            self.here = 0
        self.settle()

    def settle(self, is_turn: bool = False) -> None:
        frame = self.frames[0] if self.here else 0
        memory = self.arrival.settle(0, self.here, frame, self.position, is_turn=is_turn)
        if memory is not None:
            self.is_waiting = True
            memory.wait(self, self.on_room)

    def on_room(self) -> None:
        self.is_waiting = False
        self.settle(is_turn=True)


def budget_of(total_bytes: int) -> tuple[RequestBudget, list[Callable[[], None]]]:
    calls: list[Callable[[], None]] = []
    return RequestBudget(total_bytes, calls.append), calls


def run(calls: list[Callable[[], None]]) -> None:
    while calls:
        calls.pop(0)()


def test_what_is_charged() -> None:
    """Next to nothing is free; a small frame is charged whole, a large one at most twice what is here."""
    assert step_of(5000, SMALL_FRAME_BYTES) == SMALL_FRAME_BYTES
    assert step_of(70_000, 100 * MIB) == 128 * KIB
    assert step_of(99 * MIB, 100 * MIB) == 100 * MIB
    budget, _ = budget_of(16 * MIB)
    arrival = Arrival(budget, "one")
    assert arrival.settle(0, FREE_BYTES, 100 * MIB, FREE_BYTES, is_turn=False) is None
    assert budget.used_bytes == 0
    arrival.settle(0, FREE_BYTES + 1, 60_000, 5000, is_turn=False)
    assert budget.small_arrivals.used_bytes == 60_000
    arrival.settle(200_000, 0, 0, 200_000, is_turn=False)
    assert (budget.small_arrivals.used_bytes, budget.large_arrivals.used_bytes) == (0, 200_000)
    arrival.release()
    assert budget.used_bytes == 0


def test_one_alone_is_never_held_up() -> None:
    """A frame larger than all memory passes without standing in line."""
    budget, _ = budget_of(MIB)
    sender = Sender(budget, [100 * MIB], 256 * KIB)
    while sender.frames:
        sender.receive()
        assert not sender.is_waiting
    assert budget.used_bytes == 0


def held(memory: RequestMemory, senders: list[Sender]) -> int:
    return sum(one.arrival.held_bytes for one in senders if one.arrival.memory is memory)


@given(
    st.lists(st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=3), min_size=1, max_size=12),
    st.sampled_from((16 * KIB, 256 * KIB)),
    st.integers(0, 1 << 30),
)
def test_whoever_sends_gets_through(frames: list[list[int]], piece: int, seed: int) -> None:
    """Whatever the frames and their order: nobody waits for ever, all that is held is charged, and it is
    bounded by the limit, one frame and a piece of each."""
    budget, calls = budget_of(MIB)
    senders = [Sender(budget, wanted, piece) for wanted in frames]
    while any(sender.frames for sender in senders):
        ready = [sender for sender in senders if sender.frames and not sender.is_waiting]
        assert ready, "all wait for each other"
        ready[seed % len(ready)].receive()
        seed = seed * 1103515245 + 12345 & 0x7FFFFFFF
        for memory in (budget.small_arrivals, budget.large_arrivals):
            assert memory.used_bytes == held(memory, senders)
        bound = budget.large_arrivals.limit_bytes + 2 * 3 * MIB + len(senders) * (piece + SMALL_FRAME_BYTES)
        assert budget.large_arrivals.used_bytes <= bound
        run(calls)
    assert budget.used_bytes == 0


def test_a_crowd_holds_a_few_times_the_limit() -> None:
    """A thousand senders each have a quarter of a MiB ready of a frame that they do not end: those that come
    first are read widely, the others a little, which is charged to nobody."""
    budget, calls = budget_of(16 * MIB)
    memory, width = budget.large_arrivals, [RECEIVE_BYTES]

    def narrow() -> None:
        width[0] = NARROW_BYTES

    memory.on_crowded = narrow
    senders = [Sender(budget, [MIB], 0) for _ in range(1000)]
    for sender in senders:
        sender.piece = width[0]
        sender.receive()
        run(calls)
    assert memory.used_bytes <= CROWDED_FACTOR * memory.limit_bytes + 2 * RECEIVE_BYTES
    assert sum(sender.here for sender in senders if not sender.arrival.held_bytes) <= 1000 * WAITING_BYTES
    assert memory.waiting_count > 950
    assert memory.overrunning_count == 1, "all of one class"


def test_a_frame_that_is_all_here_is_not_refused() -> None:
    """As far as there is not several times as much as the limit already."""
    budget, _ = budget_of(16 * MIB)
    memory, unread = budget.large_arrivals, [0]
    memory.charge(memory.limit_bytes)
    memory.wait("other", lambda: None)
    arrival = Arrival(budget, "one", lambda: unread[0])
    assert arrival.settle(0, 5000, 200_000, 5000, is_turn=False) is memory
    unread[0] = 195_000
    memory.charge((AT_ONCE_FACTOR - 1) * memory.limit_bytes - 199_999)
    assert arrival.settle(0, 5000, 200_000, 5000, is_turn=False) is memory
    memory.release(1)
    assert arrival.settle(0, 5000, 200_000, 5000, is_turn=False) is None
    assert arrival.held_bytes == 200_000
