"""What is fuzzed for long by `make fuzz`, in short: the seeds and random damage to them; and the guard itself."""

from __future__ import annotations

from random import Random

import pytest

from millrace.protocol.errors import KafkaError, WireError
from millrace.runtime.errors import MillraceError
from tests.fuzz import targets
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import NAMES, TARGETS, Guard, run

SEEDS = list(seeds())


def damaged(random: Random, data: bytes) -> bytes:
    """`data` with its target and a few of its bytes changed, cut, doubled or spliced."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(1, len(found) + 1)
        kind = random.randrange(4)
        if kind == 0 and at < len(found):
            found[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            found[at:at] = random.choice((b"\0", b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", found[at : at + 8]))
        else:
            other = random.choice(SEEDS)
            found[at:] = other[random.randrange(len(other)) :]
    return bytes(found)


def test_every_target_has_a_seed_that_it_reads() -> None:
    """Seeds are sound, so that the fuzzer begins behind the first check: each target reads at least one to its end."""
    read = set()
    for seed in SEEDS:
        name = NAMES[seed[0]]
        target, allowed = TARGETS[name]
        try:
            target(seed[1:])
        except allowed:
            continue
        read.add(name)
    assert read == set(NAMES)


def test_what_a_target_may_raise_is_the_houses() -> None:
    """Whoever catches what bytes from outside lead to needs one family of errors."""
    raised = {error for _, allowed in TARGETS.values() for error in allowed}
    assert [error for error in raised if not issubclass(error, (MillraceError, WireError, KafkaError))] == []


@pytest.mark.parametrize("name", NAMES)
def test_damage_gives_the_one_error_or_a_value(name: str) -> None:
    """Seeds of one target with random damage: its own error or nothing."""
    random = Random(name)
    mine = [seed for seed in SEEDS if seed[0] == NAMES.index(name)]
    for _ in range(1500):
        run(damaged(random, random.choice(mine)))


def test_a_small_input_that_takes_much_memory_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard refuses an input of a few bytes that made the process larger by far more."""
    guard = Guard()
    guard(bytes([NAMES.index("footer")]) + bytes(100))
    monkeypatch.setitem(targets.TARGETS, "footer", (lambda data: len(b"x" * (250 << 20)), ()))
    with pytest.raises(MemoryError):
        guard(bytes([NAMES.index("footer")]) + bytes(100))
