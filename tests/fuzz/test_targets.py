"""What is fuzzed for long by `make fuzz`, in short: the seeds and random damage to them; and the guard
itself."""

from __future__ import annotations

import resource
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol.errors import KafkaError, WireError
from millrace.runtime.errors import MillraceError
from tests.fuzz import targets
from tests.fuzz.cost import TooManySteps
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import NAMES, TARGETS, Guard, run, run_in_bounds, target_of

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
            found[at:at] = random.choice(
                (b"\0", b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", found[at : at + 8])
            )
        else:
            other = random.choice(SEEDS)
            found[at:] = other[random.randrange(len(other)) :]
    return bytes(found)


def test_every_target_has_a_seed_that_it_reads() -> None:
    """Seeds are sound, so that the fuzzer begins behind the first check: each target reads at least one to
    its end."""
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


def test_what_a_target_may_raise_is_the_projects() -> None:
    """Whoever catches what bytes from outside lead to needs one family of errors."""
    raised = {error for _, allowed in TARGETS.values() for error in allowed}
    assert [error for error in raised if not issubclass(error, (MillraceError, WireError, KafkaError))] == []


@pytest.fixture(scope="module")
def guard() -> Guard:
    """With every codec made: they are made on first use, which is no input's doing."""
    for seed in SEEDS:
        run(seed)
    return Guard()


def of_target(name: str) -> list[bytes]:
    return [seed for seed in SEEDS if target_of(seed) == name]


@pytest.mark.parametrize("name", NAMES)
def test_seeds_stay_in_their_bounds(guard: Guard, name: str) -> None:
    """Every sound message takes memory and steps in proportion to its bytes."""
    for seed in of_target(name):
        run_in_bounds(seed)
        guard(seed)


def test_frames_that_come_byte_by_byte_stay_in_their_bounds(guard: Guard) -> None:
    """The most pieces that a connection can bring."""
    for seed in of_target("frames"):
        data = seed[:1] + b"\0" + seed[2:]
        run_in_bounds(data)
        guard(data)


@pytest.mark.parametrize("name", NAMES)
def test_damage_gives_the_one_error_or_a_value(guard: Guard, name: str) -> None:
    """Seeds of one target with random damage: its own error or nothing, within memory and steps in proportion
    to the bytes."""
    random = Random(name)
    mine = of_target(name)
    for _ in range(1500):
        data = damaged(random, random.choice(mine))
        run_in_bounds(data)
        guard(data)


EDITS = st.lists(
    st.tuples(
        st.floats(0, 1), st.sampled_from(("set", "cut", "put", "drop")), st.binary(min_size=1, max_size=6)
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", NAMES)
def test_edited_messages_give_the_one_error_or_a_value(guard: Guard, name: str) -> None:
    """The same for sound messages that hypothesis edits, and makes small again when one is found."""

    @given(seed=st.sampled_from(of_target(name)), edits=EDITS)
    def check(seed: bytes, edits: list[tuple[float, str, bytes]]) -> None:
        data = edited(seed, edits)
        run_in_bounds(data)
        guard(data)

    check()


def edited(seed: bytes, edits: list[tuple[float, str, bytes]]) -> bytes:
    """`seed` with its target, and bytes behind that set, put in or dropped, or all cut off, at places from 0
    (its start) to 1."""
    found = bytearray(seed)
    for place, kind, content in edits:
        at = 1 + int(place * (len(found) - 1))
        if kind == "set":
            found[at : at + len(content)] = content
        elif kind == "put":
            found[at:at] = content
        elif kind == "drop":
            del found[at : at + len(content)]
        else:
            del found[at:]
    return bytes(found)


def test_what_takes_more_than_its_bytes_allow_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard refuses a few bytes that take a hundred kilobytes of Python's memory, also behind an input
    that took as much and might; and those that take far more of the process."""
    guard = Guard()
    footer = bytes([NAMES.index("footer")])
    guard(footer + bytes(100))
    monkeypatch.setitem(targets.TARGETS, "footer", (lambda data: bytes(100 << 10), ()))
    guard(footer + bytes(2000))
    with pytest.raises(MemoryError, match="took"):
        guard(footer + bytes(100))
    monkeypatch.setattr(targets, "peak_bytes", lambda call: call() or 0)
    more_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (
        150 << 20
    )  # than this process ever held
    monkeypatch.setitem(targets.TARGETS, "footer", (lambda data: (b"x" * more_bytes).find(b"y") and None, ()))
    with pytest.raises(MemoryError, match="process"):
        guard(footer + bytes(100))


@pytest.mark.parametrize("loops", [1, 2])
def test_what_takes_more_steps_than_its_bytes_allow_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, loops: int
) -> None:
    """A decoder that looks at every byte passes; one that does so for every byte does not, nor one that never
    ends."""

    def read(data: bytes) -> None:
        for _ in data:
            for _ in data if loops == 2 else b"":
                pass

    def hang(data: bytes) -> None:
        while True:
            pass

    monkeypatch.setitem(targets.TARGETS, "footer", (read, ()))
    footer = bytes([NAMES.index("footer")])
    if loops == 1:
        run_in_bounds(footer + bytes(1000))
        monkeypatch.setitem(targets.TARGETS, "footer", (hang, ()))
    with pytest.raises(TooManySteps):
        run_in_bounds(footer + bytes(1000))
