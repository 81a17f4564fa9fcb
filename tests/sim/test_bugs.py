"""Bugs that are planted on purpose are found: a short form of `make sim-bugs`."""

from __future__ import annotations

import pytest

from tests.sim.bugs import BUGS, find_bug
from tests.sim.plan import Plan
from tests.sim.run import Outcome
from tests.sim.signatures import misfits

# The seed that shows a bug first, where that is not the first one: tried before the others.
SEEN_AT = {
    "older-object-wal-served": 1,
    "older-pair-served": 1,
    "older-pair-beside-objects-served": 1,
    "other-wal-served": 1,
    "other-kind-served": 1,
    "refused-wal-changed": 1,
    "given-up-untold": 3,
    "refused-late": 1,
    "damage-stepped-over": 1,
    "skipped-too-much": 5,
    "loss-not-told": 1,
    "given-up-comes-back": 1,
    "restored-to-the-same-epochs": 2,
    "metadata-not-synced": 6,
    "cache-order": 76,
    "restored-not-lifted": 2,
    "stale-epoch": 22,
    "epoch-not-raised": 2,
    "one-header": 14,
    "slot-overwritten": 15,
    "slots-out-of-order": 6,
    "blocks-swapped": 36,
    "links-deleted": 5,
    "never-expired": 5,
    "repeat-committed": 88,
    "behind-a-hole": 2,
    "producers-forgotten": 31,
    "lost-wal-unasked": 202,
    "cold-not-loaded": 19,
    "start-not-durable": 15,
    "group-before-durable": 6,
    "never-evicted": 48,
    "room-not-asked": 1,
}
# What it is called by the checker that is there for it, where more than one may find it.
KINDS = {
    "ack-out-of-order": "ack-before-durable",
    "trim-too-early": "trimmed-too-early",
    "trim-before-backup": "trimmed-before-saved",
    "delete-before-backup": "deleted-before-saved",
    "commit-before-put": "commit-before-put",
    "epoch-not-raised": "epoch-not-raised",
    "never-expired": "prepared-for-ever",
    "prepared-for-years": "prepared-too-long",
    "snapshot-incomplete": "forgotten-object",
    "corrupt-taken": "corrupt-taken",
    "cold-unknown": "duplicate",
    "seal-skipped": "epoch-not-taken",
    "closed-before-reset": "closed-unsettled",
    "start-clock-believed": "log-start-rose",
    "older-bucket-served": "strange-place-served",
    "refused-late": "refused-start-changed",
    "loss-not-told": "epoch-stays",
    "other-wal-served": "strange-place-served",
    "left-untold": "left-not-named",
    "restored-not-lifted": "epoch-stays",
    "given-up-comes-back": "two-meanings",
    "restored-to-the-same-epochs": "epoch-stays",
}
SEEDS = 10


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """By the checker that is there for it, within a few seeds."""
    hunted = find_bug(name, [SEEN_AT.get(name, 0), *range(SEEDS)])
    assert hunted.outcome is not None, f"not in {hunted.seeds} seeds"
    found = {line.partition(":")[0] for line in hunted.outcome.findings}
    assert KINDS.get(name) in (None, *found)


def test_every_bug_of_the_tables_is_there() -> None:
    """A bug that was renamed is not hunted by its old seed for ever."""
    assert {*SEEN_AT, *KINDS} <= {*BUGS}


@pytest.mark.parametrize("name", BUGS)
def test_a_run_that_merely_fails_shows_no_bug(name: str) -> None:
    """Whatever goes wrong in a way that the bug was not planted for does not count."""
    bug = BUGS[name]
    failed = [
        "run-failed: TimeoutError()",
        "unhandled: KeyError(0)",
        "process-ended: KeyError(0)",
        "start-failed: KeyError(0)",
    ]
    assert bug.is_shown_by(Outcome(Plan(), [*failed, f"{bug.found_by[0]}: so it is"])) == [
        f"{bug.found_by[0]}: so it is"
    ]


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_called_as_what_it_replaces(name: str) -> None:
    """However the product calls the function: else each start ends with a TypeError, which shows no bug."""
    bug = BUGS[name]
    for owner, attribute, make in ((bug.owner, bug.name, bug.make), *bug.also):
        real = getattr(owner, attribute)
        assert misfits(real, make(real)) == [], f"{owner.__name__}.{attribute}"


def test_a_planted_bug_that_cannot_be_called_is_told() -> None:
    """A parameter more, one less, one that is not known by its name, and a property that is none."""

    def real(self: object, store: int, *, is_new: bool = False) -> None: ...

    def same(self: object, *others: int, **named: bool) -> None: ...

    def one_more(self: object, store: int, bucket: int, *, is_new: bool = False) -> None: ...

    def one_less(self: object, *, is_new: bool = False) -> None: ...

    def renamed(self: object, bucket: int, *, is_new: bool = False) -> None: ...

    assert misfits(real, same) == []
    assert len(misfits(real, one_more)) == 3
    assert len(misfits(real, one_less)) == 3
    assert misfits(real, renamed) == ["all, by name where it can be: missing a required argument: 'bucket'"]
    assert misfits(property(lambda self: 0), real) == ["one is a property, the other is none"]


def test_planting_is_undone() -> None:
    """After a hunt the product is as it was."""
    for bug in BUGS.values():
        for owner, name, _ in ((bug.owner, bug.name, None), *bug.also):
            before = vars(owner)[name]
            with bug.planted():
                assert vars(owner)[name] is not before
            assert vars(owner)[name] is before
