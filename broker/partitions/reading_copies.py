"""Partitions that nobody can lead, open for readers as far as objects hold them.

A partition whose broker is gone waits for that one's write-ahead log. Where nobody can recover the log, that
may take hours, or for ever; what was uploaded can be read meanwhile, by any broker. A reading copy is opened
from what metadata has of the partition's streams, and takes no batch (Partition.is_copy). It ends as soon as
anything of that changes: readers are answered then, and find the leader, or the next copy.

Not here: when a log is given to somebody to be recovered (the controller), which broker clients are told to
read from (told_replicas.py).

Kept true: a copy writes nothing, and claims nothing. A broker that is gone itself, and has not ended, serves
none: those who still ask it had read on in its log. What is read of a stream is below its first range that a
broker that is gone owes. At most `COPIES_MAX` copies; the one that was asked for longest ago makes way, and
is not opened anew for a while: who reads more of them than that would open them without an end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from millrace.broker.partitions.opening import ROLES, Leadership, open_partition
from millrace.broker.partitions.opening_turn import Opening
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.settings import TopicSettings
from millrace.kraft.commands.failovers import waiting_nodes
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.ids import TopicId
from millrace.runtime.clock import Clock
from millrace.runtime.errors import in_words
from millrace.runtime.scheduling.semaphore import Owner, Semaphore
from millrace.s3stream.ids import OpenedStream, StreamRole
from millrace.s3stream.storage import Storage

log = logging.getLogger(__name__)
COPIES_MAX: Final = 4096
RETRY_S: Final = 1.0  # one that failed is not tried again before
REST_S: Final = 10.0  # nor one that made way

Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Basis:
    """What a copy is made from."""

    leader_epoch: int
    streams: dict[StreamRole, OpenedStream]


class ReadingCopies:
    """Of broker `node_id`. `permits`: of openings. `on_image` is to be told of every image after `image`."""

    def __init__(
        self,
        node_id: int,
        image: MetadataImage,
        storage: Storage,
        clock: Clock,
        permits: Semaphore,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._waiting = self._read_for(image)
        self._storage = storage
        self._clock = clock
        self._permits = permits
        self._spawn = spawn
        self._copies: dict[Key, tuple[Partition, Basis]] = {}  # the one asked for longest ago first
        self.opening: dict[Key, Opening] = {}
        self._resting: dict[Key, float] = {}  # until when they are not opened, by the loop's clock

    def _read_for(self, image: MetadataImage) -> frozenset[int]:
        """Brokers that are gone, whose partitions are read here."""
        own = image.brokers.get(self._node_id)
        return waiting_nodes(image) if own is not None and own.is_usable else frozenset()

    def are_wanted_of(self, key: Key) -> bool:
        """Whether the partition waits for a log that nobody can recover, and may be read here."""
        return bool(self._waiting) and any(self._image.streams.waits_for(*key, self._waiting))

    def get(
        self, topic_id: TopicId, name: str, index: int, settings: TopicSettings, asker: Owner
    ) -> Partition | asyncio.Future[Partition]:
        """The copy, or a future of it, not to be cancelled. Raises KafkaError where it would not open."""
        key = topic_id, index
        found = self._copies.pop(key, None)
        if found is not None:
            self._copies[key] = found
            return found[0]
        opening = self.opening.get(key)
        if opening is None:
            if asyncio.get_running_loop().time() < self._resting.get(key, 0.0):
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "a reading copy is not opened yet")
            basis = self._basis(key)
            opening = self.opening[key] = Opening(self._permits)
            leadership = Leadership(topic_id, name, index, basis.leader_epoch)
            self._spawn(self._open(key, leadership, basis, settings, opening))
        opening.ask(asker)
        return opening.future

    async def _open(
        self, key: Key, leadership: Leadership, basis: Basis, settings: TopicSettings, opening: Opening
    ) -> None:
        copy, asker = None, await opening.turn()
        try:
            if self._is_true(key, basis):
                streams = {role: self._storage.open_for_reading(basis.streams[role]) for role in ROLES}
                copy = await open_partition(
                    leadership, streams, settings, self._storage, self._spawn, self._clock, is_copy=True
                )
        except Exception as error:
            if self._is_true(key, basis):  # else that is the reason, and nothing is wrong
                self._rest(key, RETRY_S)
                log.warning(
                    "%s-%d waits for the write-ahead log of a broker that is gone, and what objects hold of "
                    "it cannot be read: %s",
                    leadership.topic_name,
                    leadership.index,
                    in_words(error),
                )
        finally:
            self._permits.release(asker)
            self.opening.pop(key, None)
        if copy is None or not self._is_true(key, basis):
            opening.future.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        self._resting.pop(key, None)
        self._copies[key] = copy, basis
        if len(self._copies) > COPIES_MAX:
            oldest = next(iter(self._copies))
            self._rest(oldest, REST_S)
            self._end(oldest)
        opening.future.set_result(copy)

    def _basis(self, key: Key) -> Basis:
        """Raises KafkaError where there is no such partition, or it was never opened."""
        state, streams = self._image.topics.partition(*key), self._image.streams
        found: dict[StreamRole, OpenedStream] = {}
        for stream in streams.of_partition(*key):
            owed = streams.owed.of_stream(stream.stream_id)
            end = min(
                (one.start for one in owed if self._image.failovers.get(one.node_id)), default=stream.end
            )
            found[stream.role] = OpenedStream(
                stream.stream_id, stream.epoch, stream.start, max(stream.start, min(end, stream.end))
            )
        if state is None or any(role not in found for role in ROLES):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return Basis(state.leader_epoch, found)

    def _is_true(self, key: Key, basis: Basis) -> bool:
        try:
            return self.are_wanted_of(key) and self._basis(key) == basis
        except KafkaError:
            return False

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._image = image
        if delta.failovers_changed or delta.brokers_changed:
            self._waiting = self._read_for(image)
            changed = list(self._copies)
        elif not self._copies:
            return
        else:
            streams = map(image.streams.get, delta.streams_changed)
            keys = {(one.topic_id, one.partition): None for one in streams if one is not None}
            topics = {**delta.topics_changed, **delta.topics_removed}
            changed = [key for key in self._copies if key in keys or key[0] in topics]
        for key in changed:
            copy, basis = self._copies[key]
            if not self._is_true(key, basis):
                for stream in (copy.meta.stream, copy.data, copy.time):
                    stream.is_fenced = True  # what a read of it lacks from now on is no damage
                self._end(key)
        self._resting = {key: due_s for key, due_s in self._resting.items() if self.are_wanted_of(key)}

    def _rest(self, key: Key, for_s: float) -> None:
        self._resting[key] = asyncio.get_running_loop().time() + for_s

    def _end(self, key: Key) -> None:
        """Who waits at it is answered, and looks again."""
        copy, _ = self._copies.pop(key)
        copy.resign()
