"""What clients asked for, what they were told, and what they were shown: plain data, filled by the actors of
workload.py.

A record's value is unique and names its producer, so that what is read needs no other trace. What a client
was told at once contradicts something earlier (a watermark that fell, an offset with two meanings) becomes a
finding on the spot; the rest is for checkers.py at a quiet moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

FINDINGS_MAX = 200
Place = tuple[bytes, int]
"""Topic id and partition: a topic that is made again under its old name is another topic."""


@dataclass(slots=True)
class Log:
    """One partition as its clients know it."""

    sent: dict[str, list[bytes]] = field(default_factory=dict)  # by producer, in order of sending
    acknowledged: dict[int, bytes] = field(default_factory=dict)  # by offset
    confirmed: dict[bytes, None] = field(
        default_factory=dict
    )  # durable, though the offset was not told (a duplicate's answer)
    shown: dict[int, bytes] = field(default_factory=dict)  # by offset, whatever a reader ever got
    high_watermark: int = 0  # the highest that anybody was told
    log_start: int = 0  # the same
    start_asked: int = 0  # what DeleteRecords asked for at most
    start_promised: int = 0  # what it was told is done
    is_ageing: bool = False  # retention may raise the start by itself
    is_cut: bool = False  # an operator gave up records of it, of any of its streams
    lost: list[tuple[int, int]] = field(
        default_factory=list
    )  # ranges that were given up while others wrote behind them: they mean nothing else ever
    ends_of_epochs: dict[int, int] = field(
        default_factory=dict
    )  # of leader epochs in which records were given up, by them

    def is_lost(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.lost)


@dataclass(slots=True)
class TopicStory:
    """One topic under one id. `is_gone` once its deletion was acknowledged; `is_deletion_asked` once it was
    asked for."""

    name: str
    topic_id: bytes
    partitions: int
    is_deletion_asked: bool = False
    is_gone: bool = False


@dataclass(slots=True)
class Commits:
    """Offsets that a group committed for one partition, in order of asking. `promised` is how many of them
    are settled by the last answer."""

    asked: list[int] = field(default_factory=list)
    promised: int = 0

    def allowed(self) -> list[int]:
        """What may be found: the last that was promised, or anything asked for after it."""
        return self.asked[max(0, self.promised - 1) :] if self.promised else [-1, *self.asked]


@dataclass
class History:
    logs: dict[Place, Log] = field(default_factory=dict)
    topics: dict[bytes, TopicStory] = field(default_factory=dict)
    commits: dict[tuple[str, str, int], Commits] = field(default_factory=dict)  # group, topic, partition
    owners: dict[tuple[str, int, int], str] = field(
        default_factory=dict
    )  # group, generation, partition -> member
    producer_ids: list[int] = field(default_factory=list)
    followed: dict[Place, dict[int, bytes]] = field(
        default_factory=dict
    )  # what consumers that check epochs have read
    corrupted: dict[Place, list[bytes]] = field(default_factory=dict)  # of batches that no broker may take
    findings: list[str] = field(default_factory=list)
    may_be_old: bool = False  # what clients are shown: by a process that was replaced and lives on
    is_ending: bool = False  # actors are asked to come to their end
    on_find: Callable[[str], None] = lambda line: None
    on_promise: Callable[[], None] = lambda: (
        None
    )  # of something else than a record: told as a client hears of it
    on_watermark: Callable[[Place, int], None] = lambda place, high_watermark: None
    on_told: Callable[[Place, int, list[bytes]], None] = lambda place, offset, values: None

    def log(self, place: Place) -> Log:
        return self.logs.setdefault(place, Log())

    def find(self, kind: str, text: str) -> None:
        self.take(f"{kind}: {text}")

    def take(self, line: str) -> None:
        """A finding in one line, its kind first."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(line)
            self.on_find(line)

    def give_up(self, place: Place, cut: tuple[int, int] | None) -> None:
        """An operator gave up its records from an offset on, in that leader epoch (None: state of it alone):
        whatever anybody was told of them binds no more, nor where it starts."""
        log = self.log(place)
        log.is_cut = True
        log.start_promised = log.log_start = 0
        if cut is None:
            return
        epoch, offset = cut
        log.ends_of_epochs[epoch] = min(offset, log.ends_of_epochs.get(epoch, offset))
        for told in (log.acknowledged, log.shown):
            for lost in [one for one in told if one >= offset]:
                del told[lost]
        log.confirmed.clear()
        log.high_watermark = min(log.high_watermark, offset)

    def lose(self, place: Place, start: int, end: int) -> None:
        """Likewise of those in a range that others have written behind: nothing comes in its place."""
        log = self.log(place)
        log.is_cut = True
        log.lost.append((start, end))
        for told in (log.acknowledged, log.shown):
            for lost in [one for one in told if start <= one < end]:
                del told[lost]
        log.confirmed.clear()

    def give_up_groups(self) -> None:
        for commits in self.commits.values():
            commits.promised = 0
        self.owners.clear()

    def on_sent(self, place: Place, producer: str, values: list[bytes]) -> None:
        self.log(place).sent.setdefault(producer, []).extend(values)

    def on_acknowledged(self, place: Place, base_offset: int, values: list[bytes]) -> None:
        log = self.log(place)
        for offset, value in enumerate(values, base_offset):
            if log.acknowledged.setdefault(offset, value) != value:
                self.find("two-meanings", f"{shown(place)} {offset} was acknowledged for two records")
            self._meet(place, offset, value)
        self.on_told(place, base_offset, values)

    def on_confirmed(self, place: Place, values: list[bytes]) -> None:
        """They were said to be a repeat of what is there, and not where."""
        self.log(place).confirmed.update(dict.fromkeys(values))
        self.on_told(place, -1, values)

    def on_shown(self, place: Place, offset: int, value: bytes) -> None:
        self._meet(place, offset, value)

    def _meet(self, place: Place, offset: int, value: bytes) -> None:
        """An offset that anyone was told or shown keeps its meaning."""
        if self.log(place).is_lost(offset):
            return  # an answer that was on its way as it was given up
        known = self.log(place).shown.setdefault(offset, value)
        if known != value:
            self.find("two-meanings", f"{shown(place)} {offset} was {known[:24]!r} and is {value[:24]!r}")

    def watermarks(self, place: Place) -> tuple[int, int]:
        """Start and high watermark as known now: no answer to what is asked from now on may be lower.
        (Answers to two clients may cross.)"""
        log = self.log(place)
        return log.log_start, log.high_watermark

    def on_watermarks(
        self, place: Place, log_start: int, high_watermark: int, known: tuple[int, int]
    ) -> None:
        """`known`: `watermarks` from before the question."""
        log = self.log(place)
        known = (
            min(known[0], log.log_start),
            min(known[1], log.high_watermark),
        )  # records may have been given up since
        if high_watermark < known[1] and not self.may_be_old:
            self.find("watermark-fell", f"{shown(place)} from {known[1]} to {high_watermark}")
        if log_start < known[0] and not self.may_be_old:
            self.find("log-start-fell", f"{shown(place)} from {known[0]} to {log_start}")
        if log_start > max(log.start_asked, log.log_start) and not log.is_ageing:
            self.find(
                "log-start-rose",
                f"{shown(place)} is {log_start}, and nobody asked for more than {log.start_asked}",
            )
        if high_watermark > log.high_watermark:
            self.on_watermark(place, high_watermark)
        log.high_watermark = max(log.high_watermark, high_watermark)
        log.log_start = max(log.log_start, log_start)

    def on_owned(self, group: str, generation: int, partition: int, member_id: str) -> None:
        owner = self.owners.setdefault((group, generation, partition), member_id)
        if owner != member_id:
            self.find(
                "two-owners",
                f"{group} generation {generation} partition {partition}: {owner} and {member_id}",
            )

    def on_commit_asked(self, group: str, topic: str, partition: int, offset: int) -> int:
        """A number for `on_commit_promised`."""
        commits = self.commits.setdefault((group, topic, partition), Commits())
        commits.asked.append(offset)
        return len(commits.asked)

    def on_commit_promised(self, group: str, topic: str, partition: int, number: int) -> None:
        commits = self.commits[group, topic, partition]
        commits.promised = max(commits.promised, number)
        self.on_promise()


def shown(place: Place) -> str:
    return f"{place[0].hex()[:8]}-{place[1]}"
