"""GivenUp: which records an operator gave up, and no others: worked out from metadata as it was right before,
and cut from the history, so that all else is looked for as ever.

    give-up      an unclean election, while the broker is gone and nobody reaches its log
    accept       a start of the broker with `wal.lost.accept`, until it serves

Of a stream that the broker had open that is what lies at its committed end and behind, for all below is
in objects; of one that it owes, what metadata says is owed. Leader epochs of the partitions have to rise.
Where a stream of the broker ends while nobody gives its log up, that is seen elsewhere: as records that are
gone (checkers.py), or owed by nobody (images.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from millrace.broker.coordinators.runtime.partitioning import partition_for
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.owed_ranges import OwedRange
from millrace.kraft.tables.streams import StreamState
from millrace.s3stream.ids import StreamRole
from tests.sim.history import History, Place, shown
from tests.sim.salvage import OFFSETS_TOPIC

NOBODY = -1  # leads


@dataclass(frozen=True, slots=True)
class Act:
    """`epochs`: of leaders, as it began. `own_epochs`: the last that the broker may have written in; where
    another was to lead already, what that one writes is told apart as it is."""

    how: str
    epochs: dict[Place, int]
    own_epochs: dict[Place, int]


class GivenUp:
    def __init__(self, history: History, hits: Counter[str]) -> None:
        self._history = history
        self._hits = hits
        self._acts: dict[int, Act] = {}  # by the broker whose log it is
        # Brokers whose log is where nobody can read it, and their epochs as it went: what one of them had
        # closed with its last word may be decided behind its end.
        self._missing: dict[int, int] = {}

    def begin(self, node_id: int, how: str, image: MetadataImage) -> None:
        epochs = leader_epochs(image)
        led_by_others = [place for place in epochs if leader_of(image, place) not in (node_id, NOBODY)]
        own_epochs = epochs | {place: epochs[place] - 1 for place in led_by_others}
        self._acts[node_id] = Act(how, epochs, own_epochs)

    def end(self, node_id: int) -> None:
        self._acts.pop(node_id, None)

    def miss(self, node_id: int, image: MetadataImage) -> None:
        """From here on nobody can close its streams, unless an operator says so; until it is `found`."""
        self._missing[node_id] = image.brokers.by_id[node_id].epoch

    def found(self, node_id: int) -> None:
        self._missing.pop(node_id, None)

    def is_of(self, owed: OwedRange) -> bool:
        return owed.node_id in self._acts

    def follow(self, before: MetadataImage, after: MetadataImage) -> None:
        for node_id, epoch in self._missing.items():
            broker = after.brokers.get(node_id)
            if node_id not in self._acts and broker is not None and broker.epoch != epoch:
                for stream in ended(before, after, node_id):
                    self._history.find("taken-unrecovered", f"{stream}, whose log nobody has")
        for node_id, act in self._acts.items():
            for stream in ended(before, after, node_id):
                self._lose(stream, (stream.end, None), act, after)
            for owed in before.streams.owed.of_node(node_id):
                gone = before.streams.get(owed.stream_id)
                if gone is not None and after.streams.owed.by(owed.stream_id, node_id) is None:
                    self._lose(gone, (owed.start, owed.end), act, after)

    def _lose(
        self, stream: StreamState, lost: tuple[int, int | None], act: Act, after: MetadataImage
    ) -> None:
        place, (start, end) = (stream.topic_id, stream.partition), lost
        epoch = (act.own_epochs if end is None else act.epochs).get(place, -1)
        self._hits[f"given up: {act.how}"] += 1
        if leader_epochs(after).get(place, -1) <= epoch:
            self._history.find("epoch-stays", f"{shown(place)}: {lost} of {stream} is given up in {epoch}")
        if stream.role is not StreamRole.DATA:
            self._history.give_up(place, None)
            return
        told = self._history.log(place).acknowledged
        count = sum(offset >= start and (end is None or offset < end) for offset in told)
        self._hits["given up: acknowledged records"] += count
        if end is None:
            self._history.give_up(place, (epoch, start))
        else:
            self._hits["given up: what was owed"] += 1
            self._history.lose(place, start, end)
        topic = next((one for one in after.topics if one.topic_id == stream.topic_id), None)
        if topic is not None and topic.name == OFFSETS_TOPIC:
            self._hits["given up: commits"] += 1
            self._forget_commits(stream.partition, len(topic.partitions))

    def _forget_commits(self, partition: int, partition_count: int) -> None:
        for (group, _, _), commits in self._history.commits.items():
            if partition_for(group, partition_count) == partition:
                commits.promised = 0


def ended(before: MetadataImage, after: MetadataImage, node_id: int) -> Iterator[StreamState]:
    """Streams that the broker had open, as they were; and has no more, or anew. Not those that it sealed, and
    owes some of."""
    for stream in before.streams.open_on(node_id):
        now, owed = after.streams.get(stream.stream_id), after.streams.owed.by(stream.stream_id, node_id)
        is_kept = now is None or (now.is_open, now.node_id, now.epoch) == (True, node_id, stream.epoch)
        if not is_kept and owed is None:
            yield stream


def leader_of(image: MetadataImage, place: Place) -> int:
    state = image.topics.partition(*place)
    return NOBODY if state is None else state.leader


def leader_epochs(image: MetadataImage) -> dict[Place, int]:
    return {
        (topic.topic_id, index): state.leader_epoch
        for topic in image.topics
        for index, state in enumerate(topic.partitions)
    }
