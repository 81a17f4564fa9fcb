"""LogView: what the core knows of the log without holding it: its bounds, where each epoch begins, what is
not durable; and who votes, as the log's records say.

    snapshot end <= ... start ... stable_end <= end        [stable_end, end) = `unstable`, to be persisted

Not here: bytes (log_store.py). Kept true: epochs and their starts ascend; an epoch is in `epochs` from its
first entry on; `unstable` is continuous and ends at `end`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from millrace.kraft.raft.voters import VoterHistory, VotersChange, VoterSet
from millrace.protocol.dataclass import dataclass


@dataclass(slots=True)
class Entry:
    """Records that stand or fall together: [base, base + count) of one epoch. The core never looks into the
    payload.

    From `propose` the payload is what was proposed; from a fetch it is a batch as the leader's log has it.
    `change`: what its records say of voters, told by whoever knows its bytes.
    """

    base: int
    count: int
    epoch: int
    payload: Any = None
    is_control: bool = False
    change: VotersChange | None = None

    @property
    def end(self) -> int:
        return self.base + self.count


@dataclass(frozen=True, slots=True)
class LogHistory:
    """Where each epoch of a log began, as it was at one moment: tells whether a place in somebody's log is in
    this one too."""

    start: int
    end: int
    epochs: tuple[tuple[int, int], ...]

    def has(self, offset: int, epoch: int) -> bool:
        """Whether this log holds everything below `offset` as the log did whose last record there was of
        `epoch`. True below `start`, where nobody can tell any more."""
        if offset <= self.start:
            return True
        following = bisect_right(self.epochs, epoch, key=lambda known: known[0])
        end = self.epochs[following][1] if following < len(self.epochs) else self.end
        return following > 0 and self.epochs[following - 1][0] == epoch and offset <= end


@dataclass(slots=True)
class LogView:
    start: int = 0  # the first offset that can be read from the log
    end: int = 0
    stable_end: int = 0  # what is below is durable
    epochs: list[tuple[int, int]] = field(default_factory=list)  # (epoch, its first offset)
    snapshot: tuple[int, int] | None = None  # the newest: (end, epoch of the last record in it)
    unstable: list[Entry] = field(default_factory=list)
    voters: VoterHistory = field(default_factory=VoterHistory)

    @property
    def history(self) -> LogHistory:
        """Of what lies below the newest snapshot a start reads no epochs: nobody can tell there."""
        known_from = self.epochs[0][1] if self.epochs else self.snapshot[0] if self.snapshot else self.start
        return LogHistory(max(self.start, known_from), self.end, tuple(self.epochs))

    @property
    def last_epoch(self) -> int:
        if self.epochs:
            return self.epochs[-1][0]
        return self.snapshot[1] if self.snapshot else 0

    @property
    def place(self) -> tuple[int, int]:
        """Where a fetch goes on: the end, and the epoch of the entry before it."""
        return self.end, self.last_epoch

    def reaches(self, least: tuple[int, int]) -> bool:
        """Whether it ends at or behind a place of (epoch, end)."""
        return (self.last_epoch, self.end) >= least

    def has_epoch_to(self, end: int, epoch: int) -> bool:
        """Whether all below `end` is here, a record of `epoch`, the last one of this log, among it."""
        if self.snapshot is not None and self.snapshot[1] == epoch:
            return self.snapshot[0] <= end <= self.end
        return self.last_epoch == epoch and bool(self.epochs) and self.epochs[-1][1] < end <= self.end

    def agreed_end(self, epoch: int, leader_end: int) -> int:
        """Where this log and one whose last entry of `epoch` or earlier ends there may still agree; the next
        fetch finds out."""
        known, end = self.end_of_epoch(epoch)
        return min(end, leader_end) if known == epoch else end

    def append(self, entry: Entry) -> None:
        assert entry.base == self.end, (entry.base, self.end)
        assert entry.epoch >= self.last_epoch, (entry.epoch, self.last_epoch)
        if not self.epochs or self.epochs[-1][0] < entry.epoch:
            self.epochs.append((entry.epoch, entry.base))
        if entry.change is not None:
            self.voters.append(entry.base, entry.change)
        self.unstable.append(entry)
        self.end = entry.end

    def on_persisted(self, end: int) -> None:
        assert self.stable_end <= end <= self.end, (self.stable_end, end, self.end)
        self.stable_end = end
        self.unstable = [entry for entry in self.unstable if entry.base >= end]

    def end_of_given(self, entries: Sequence[Entry]) -> int:
        """Where the last of these very entries that was not cut ends; 0 when none is waited for any more."""
        count = len(entries)
        if count and len(self.unstable) >= count and self.unstable[count - 1] is entries[-1]:
            return entries[-1].end
        waiting = {id(entry) for entry in self.unstable}
        return next((entry.end for entry in reversed(entries) if id(entry) in waiting), 0)

    def truncate(self, end: int) -> None:
        """Forgets what lies at or above `end`."""
        assert self.start <= end <= self.end, (self.start, end, self.end)
        self.end = end
        self.stable_end = min(self.stable_end, end)
        self.unstable = [entry for entry in self.unstable if entry.end <= end]
        while self.epochs and self.epochs[-1][1] >= end:
            self.epochs.pop()
        self.voters.truncate(end)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch in the log that is not above `epoch` (0 when there is none), and the offset where
        it ends."""
        place = self._epochs_up_to(epoch)
        end = self.epochs[place][1] if place < len(self.epochs) else self.end
        return (self.epochs[place - 1][0] if place else 0), end

    def check_fetch(self, offset: int, last_epoch: int) -> tuple[int, int] | str | None:
        """None: the asker's log is a prefix of ours. A pair: where it diverges. "snapshot": ours begins
        later."""
        if offset < self.start:
            return "snapshot"
        if offset == 0 or self.snapshot == (offset, last_epoch):
            return None
        epoch, end = self.end_of_epoch(last_epoch)
        if epoch == last_epoch and offset <= end:
            return None
        is_older_than_log = self._epochs_up_to(last_epoch) == 0
        return "snapshot" if is_older_than_log and self.start > 0 else (epoch, end)

    def on_snapshot(self, end: int, epoch: int) -> None:
        """A snapshot of our own log was made."""
        self.snapshot = end, epoch

    def trim_start(self, start: int) -> None:
        """The log store removed what lies below `start`; a snapshot holds it."""
        assert self.snapshot is not None
        assert start <= self.snapshot[0], (start, self.snapshot)
        self.start = max(self.start, start)
        self.voters.trim(self.start)
        kept = (
            bisect_left(self.epochs, self.start, key=lambda known: known[1]) - 1
        )  # holds the record before start
        del self.epochs[: max(kept, 0)]

    def restart_at(self, end: int, epoch: int, voters: VoterSet | None = None) -> None:
        """The log was replaced by a snapshot of the leader's, and by the voters that it names."""
        self.start = self.end = self.stable_end = end
        self.snapshot = end, epoch
        self.epochs = []
        self.unstable = []
        self.voters.restart_at(end, voters)

    def _epochs_up_to(self, epoch: int) -> int:
        return bisect_right(self.epochs, epoch, key=lambda known: known[0])
