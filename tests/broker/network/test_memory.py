"""The memory budget of requests in flight: admission, the line, fairness."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.network.memory import BRIEF, BULK, RequestBudget, RequestMemory


class Soon:
    """What a loop's call_soon does, by hand."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()


class Peer:
    """One that wants to send frames of given sizes and waits in line for each that is not admitted; notes
    when it got each."""

    def __init__(self, name: str, memory: RequestMemory, sizes: list[int], story: list[str]) -> None:
        self.name, self.memory, self.sizes, self.story = name, memory, sizes, story
        self.held: list[int] = []

    def go(self, *, is_turn: bool = False) -> None:
        while self.sizes:
            if not self.memory.take(self.sizes[0], is_turn=is_turn):
                self.memory.wait(self, lambda: self.go(is_turn=True))
                return
            is_turn = False
            self.held.append(self.sizes.pop(0))
            self.story.append(f"{self.name}{self.held[-1]}")

    def finish(self) -> None:
        self.memory.release(self.held.pop(0))


def test_the_limit_is_overrun_by_one_frame_at_most() -> None:
    """While anything is free the next frame is admitted whole, however large; then nobody is."""
    memory = RequestMemory(100, Soon())
    assert memory.take(99)
    assert memory.take(500)
    assert not memory.take(1)
    assert memory.used_bytes == 599


def test_nobody_overtakes_the_line() -> None:
    """A newcomer is refused while another waits, even when there is room for the newcomer."""
    soon = Soon()
    memory = RequestMemory(100, soon)
    assert memory.take(100)
    memory.wait("first", lambda: None)
    memory.release(100)
    assert memory.is_short
    assert not memory.take(1)
    soon.run()
    assert memory.take(1)


def test_the_common_case_is_admitted_in_one_step_and_nothing_else_is() -> None:
    """Where nothing is used up and nobody waits, a frame is charged to its part at once; else nothing is
    changed, and it has to ask in order."""
    soon = Soon()
    budget = RequestBudget(400, soon)  # 125 of it bulk, 75 brief and replies
    assert budget.take_at_once(124, BULK)
    assert budget.take_at_once(500, BULK), "one frame may overrun"
    assert not budget.take_at_once(1, BULK)
    assert budget.take_at_once(74, BRIEF)
    assert (budget.bulk.used_bytes, budget.brief.used_bytes) == (624, 74)
    budget.brief.wait("somebody", lambda: None)
    assert not budget.take_at_once(1, BRIEF), "there is room, but also a line"
    budget.brief.forget("somebody")
    budget.replies.charge(100)
    assert not budget.take_at_once(1, BRIEF), "readers hold it up"
    assert (budget.bulk.used_bytes, budget.brief.used_bytes) == (624, 74)


def test_turns_go_round() -> None:
    """Peers with many frames get one per turn: A, first in line for its second, then stands behind B and C
    for its third."""
    soon, story = Soon(), []
    memory = RequestMemory(1, soon)
    peers = [Peer(name, memory, [1, 2, 3], story) for name in "ABC"]
    for peer in peers:
        peer.go()
    while any(peer.held for peer in peers):
        next(peer for peer in peers if peer.held).finish()
        soon.run()
    assert " ".join(story) == "A1 A2 B1 C1 A3 B2 C2 B3 C3"
    assert memory.used_bytes == 0


def test_one_who_leaves_the_line_is_not_called() -> None:
    """A connection that is lost while it waits is forgotten, and the next one gets its turn."""
    soon, called = Soon(), []
    memory = RequestMemory(10, soon)
    memory.take(10)
    memory.wait("lost", lambda: called.append("lost"))
    memory.wait("next", lambda: called.append("next"))
    memory.forget("lost")
    memory.forget("never there")
    memory.release(10)
    soon.run()
    assert called == ["next"]


def test_a_release_runs_nobody_inside_itself() -> None:
    """Waiters run from the loop, not from within the release, so that replies of one connection never nest in
    another's."""
    soon, called = Soon(), []
    memory = RequestMemory(10, soon)
    memory.take(10)
    memory.wait("waiter", lambda: called.append("waiter"))
    memory.release(10)
    assert called == []
    soon.run()
    assert called == ["waiter"]


def test_what_cannot_be_refused_keeps_others_out() -> None:
    """Bytes that a slow reader leaves unsent count, and hold new frames back until they are gone."""
    memory = RequestMemory(10, Soon())
    memory.charge(50)
    assert not memory.take(1)
    memory.release(45)
    assert memory.take(1)


@given(
    st.lists(st.lists(st.integers(1, 30), max_size=6), min_size=1, max_size=6),
    st.integers(1, 40),
    st.randoms(),
)
def test_everybody_is_served_and_use_stays_bounded(
    sizes: list[list[int]], limit: int, chance: object
) -> None:
    """Whatever the sizes and the order of finishing: all frames get in, and use never exceeds the limit and
    one frame."""
    soon, story = Soon(), []
    memory = RequestMemory(limit, soon)
    peers = [Peer(str(number), memory, list(wanted), story) for number, wanted in enumerate(sizes)]
    for peer in peers:
        peer.go()
    while holders := [peer for peer in peers if peer.held]:
        assert memory.used_bytes < limit + 30
        chance.choice(holders).finish()  # type: ignore[attr-defined]
        soon.run()
    assert len(story) == sum(map(len, sizes))
    assert memory.used_bytes == 0
    assert not memory.is_short


def test_addresses_take_turns() -> None:
    """A hundred who wait from one address hold up one from another by a single turn."""
    soon, called = Soon(), []
    memory = RequestMemory(10, soon)
    memory.take(10)
    for number in range(100):
        memory.wait(f"a{number}", lambda number=number: called.append(f"a{number}"), "a")  # type: ignore[misc]
    memory.wait("b", lambda: called.append("b"), "b")
    memory.release(10)
    soon.run()
    assert called[:3] == ["a0", "b", "a1"]
    assert len(called) == 101


def test_one_at_a_time_may_overrun_where_that_is_allowed() -> None:
    """It is the line's first; the next one follows when it ends, or is gone."""
    soon, called = Soon(), []
    memory = RequestMemory(10, soon, has_overrun=True)
    memory.charge(50)
    for name in ("first", "second", "third"):
        memory.wait(name, lambda name=name: called.append(name))  # type: ignore[misc]
    soon.run()
    assert called == ["first"]
    assert memory.is_overrun_by("first")
    memory.end_overrun("second")
    soon.run()
    assert called == ["first"]
    memory.end_overrun("first")
    soon.run()
    assert called == ["first", "second"]
    assert memory.is_overrun_by("second")
    memory.forget("second")
    soon.run()
    assert memory.is_overrun_by("third")


def test_answers_shrink_as_readers_leave_more_unsent() -> None:
    """A quarter of what is free, and never nothing."""
    budget = RequestBudget(64 << 20, Soon())
    assert budget.reply_share() == 3 << 20
    budget.replies.charge(8 << 20)
    assert budget.reply_share() == 1 << 20
    budget.replies.charge(80 << 20)
    assert budget.reply_share() == 64 << 10


def test_a_part_of_replies_is_for_those_who_read() -> None:
    """A Fetch of a reader that nothing is known of waits earlier than that of one that took all it was sent;
    small answers never do."""
    budget = RequestBudget(1600, Soon())
    budget.replies.charge(300)
    assert budget.is_held_by_readers(1, lambda: False, is_turn=False)
    assert not budget.is_held_by_readers(1, lambda: True, is_turn=False)
    assert not budget.is_held_by_readers(12, lambda: False, is_turn=False)
    budget.replies.charge(1100)
    assert not budget.is_held_by_readers(1, lambda: True, is_turn=False)
    assert not budget.is_held_by_readers(3, lambda: False, is_turn=False), (
        "others than Fetch only far above it"
    )
    budget.replies.charge(100)
    assert budget.is_held_by_readers(1, lambda: True, is_turn=False)
    assert budget.is_held_by_readers(3, lambda: False, is_turn=False)


def test_nobody_unknown_overtakes_those_who_wait_to_be_given_answers() -> None:
    """Metadata may be as long as a Fetch: readers of it that do not read, and come again as often as they are
    ended, would keep a first Fetch out for ever."""
    budget = RequestBudget(1600, Soon())
    budget.replies.charge(300)
    budget.replies.wait("a first Fetch", lambda: None)
    assert budget.is_held_by_readers(3, lambda: False, is_turn=False)
    assert not budget.is_held_by_readers(3, lambda: True, is_turn=False)
    assert not budget.is_held_by_readers(12, lambda: False, is_turn=False)


def test_those_who_are_known_take_turns_with_those_who_are_not() -> None:
    """A crowd of new addresses stands in line, and one that has done its part before comes after one of them
    at most."""
    soon, called = Soon(), list[str]()
    memory = RequestMemory(10, soon)
    memory.charge(10)
    for number in range(5):
        memory.wait(f"new{number}", lambda number=number: called.append(f"new{number}"), number)  # type: ignore[misc]
    for number in range(2):
        memory.wait(
            f"known{number}", lambda number=number: called.append(f"known{number}"), "k", is_known=True
        )  # type: ignore[misc]
    memory.release(10)
    soon.run()
    assert called == ["known0", "new0", "known1", "new1", "new2", "new3", "new4"]
    assert not memory.is_short


def test_each_class_has_one_that_may_overrun() -> None:
    """A slow one of the new ones does not keep the known ones waiting; each makes way for the next of its
    own."""
    soon, called = Soon(), list[str]()
    memory = RequestMemory(10, soon, has_overrun=True)
    memory.charge(10)
    for name, is_known in (("new", False), ("newer", False), ("known", True), ("other", True)):
        memory.wait(name, lambda name=name: called.append(name), name, is_known=is_known)  # type: ignore[misc]
    soon.run()
    assert called == ["known", "new"]
    memory.end_overrun("known")
    soon.run()
    assert called == ["known", "new", "other"]
    assert memory.is_overrun_by("new")
    assert memory.overrunning_count == 2
