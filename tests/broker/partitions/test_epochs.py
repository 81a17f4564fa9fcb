"""Leader epochs: where each began and ended, as the log's start and end move."""

from __future__ import annotations

import pytest

from millrace.broker.partitions.epochs import EPOCHS_MAX, Epochs
from millrace.runtime.errors import Corrupt


def made(*entries: tuple[int, int]) -> Epochs:
    epochs = Epochs()
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 10)),
        (1, (1, 20)),
        (2, (2, 40)),
        (3, (2, 40)),
        (4, (2, 40)),
        (5, (5, 99)),
        (6, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_begins(asked: int, answer: tuple[int, int]) -> None:
    """Epochs that wrote nothing answer for the one below; the current one ends at the log's end; a later one
    is unknown."""
    assert made((1, 10), (2, 20), (5, 40)).end_of(asked, 99) == answer


def test_nothing_is_known_of_an_empty_log() -> None:
    """Without any epoch every question is answered with the undefined one."""
    assert Epochs().end_of(0, 0) == (-1, -1)
    assert Epochs().latest == -1
    assert Epochs().epoch_at(0) == -1


def test_an_epoch_that_wrote_nothing_is_replaced() -> None:
    """Leaders that come and go at the same offset leave one entry, and an old epoch never comes back."""
    epochs = made((1, 0), (2, 0), (3, 7), (4, 7))
    assert epochs.entries == ((2, 0), (4, 7))
    assert not epochs.assign(3, 9)
    assert not epochs.assign(4, 9)
    assert repr(epochs) == "2@0 4@7"


def test_the_entry_at_the_logs_start_is_kept() -> None:
    """Raising the log's start forgets what ended below it, and the epoch that holds the start begins
    there."""
    epochs = made((1, 0), (2, 10), (3, 20))
    assert epochs.raise_start(15)
    assert epochs.entries == ((2, 15), (3, 20))
    assert not epochs.raise_start(15)
    assert epochs.raise_start(20)
    assert epochs.entries == ((3, 20),)
    assert epochs.epoch_at(25) == 3
    assert epochs.epoch_at(19) == -1


def test_epochs_above_the_end_are_cut() -> None:
    """An epoch that was written down for offsets that were not is forgotten."""
    epochs = made((1, 0), (2, 10), (3, 20))
    assert epochs.cut_at(19)
    assert epochs.entries == ((1, 0), (2, 10))
    assert not epochs.cut_at(10)


def test_the_list_is_bounded() -> None:
    """The oldest epoch goes when there are too many."""
    epochs = made(*((number, number) for number in range(EPOCHS_MAX + 1)))
    assert len(epochs.entries) == EPOCHS_MAX
    assert epochs.entries[0] == (1, 1)


def test_encoding_comes_back_and_cuts_are_refused() -> None:
    """What was encoded decodes to the same entries; any other length is a ValueError."""
    epochs = made((1, 0), (2, 2**40))
    data = epochs.encode()
    assert Epochs.decode(data).entries == epochs.entries
    for end in range(len(data)):
        with pytest.raises(Corrupt):
            Epochs.decode(data[:end])
