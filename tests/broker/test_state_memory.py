"""Who may make further states, and that what is charged is given back."""

from __future__ import annotations

from millrace.broker.state_memory import GROWTH_FACTOR, Charges, StateMemory


def fill(memory: StateMemory, name: str, size_bytes: int = 10, factor: int = 3) -> int:
    """Charges one state after another until one is refused; how many there were."""
    holder, count = memory.holder(name), 0
    while memory.has_place(holder, size_bytes, factor):
        memory.charge(holder, size_bytes)
        count += 1
    return count


def test_one_holder_leaves_a_quarter_and_many_leave_some() -> None:
    """Alone it takes three quarters; who comes later takes part of the rest, and the last of fifty still has
    a place."""
    memory = StateMemory(100_000)
    holders = [memory.holder(f"address {number}") for number in range(50)]  # somebody refers to each
    counts = [fill(memory, holder.name) for holder in holders]
    assert counts[0] == 7500
    assert counts[1] == 1875
    assert memory.used_bytes < memory.limit_bytes
    assert all(count > 0 for count in counts[:5])
    memory.charge(holders[0], -holders[0].held_bytes)
    assert counts[-1] < fill(memory, "address 49") < 7500


def test_what_exists_may_grow_further() -> None:
    """Beyond the bound of new states there is a part for the growth of those that are there."""
    memory = StateMemory(100_000)
    fill(memory, "one")
    assert 80_000 < memory.used_bytes + 10 * fill(memory, "one", factor=GROWTH_FACTOR) <= 100_000


def test_what_is_loaded_is_charged_and_never_refused() -> None:
    """More than the bound may have been accepted before: then nothing new has a place, and nothing fails."""
    memory = StateMemory(100_000)
    memory.charge(memory.restored, 150_000)
    assert fill(memory, "one") == 0
    memory.charge(memory.restored, -120_000)
    assert fill(memory, "one") > 0


def test_charges_are_given_back_whole() -> None:
    """What one holder gives back that another was charged for is taken from the other; the sum is never
    wrong."""
    memory = StateMemory(1000)
    charges = Charges(memory)
    one, other = memory.holder("one"), memory.holder("other")
    charges.add(one, 30)
    charges.add(other, 50)
    charges.add(one, -40)
    assert (one.held_bytes, other.held_bytes, charges.size_bytes) == (0, 40, 40)
    charges.add(memory.restored, -40)
    assert memory.used_bytes == 0
    charges.add(one, 7)
    charges.release()
    assert (memory.used_bytes, one.held_bytes) == (0, 0)


def test_who_crowds_memory_is_told_once_it_is_crowded() -> None:
    """Beyond the part that hot producers have, each further charge says so."""
    memory, told = StateMemory(1000), []
    memory.on_crowded = lambda: told.append(memory.hot_bytes)
    for _ in range(6):
        memory.charge_hot(memory.restored, 50)
    assert told == [300]
    memory.charge_hot(memory.restored, -100)
    assert told == [300]


def test_a_refusal_has_states_moved_to_the_log_again() -> None:
    """What could not be moved when memory was crowded is asked for again by nobody who goes on without more:
    so each refusal asks."""
    memory, told = StateMemory(1000), []
    holder = memory.holder("a client")
    memory.charge_hot(holder, 300)
    memory.on_crowded = lambda: told.append(memory.hot_bytes)
    memory.refuse(holder, "a producer")
    assert told == [300]
    memory.charge_hot(holder, -100)
    memory.refuse(holder, "a producer")
    assert told == [300], "their part of memory is enough for them"
