"""Which partitions this broker leads and has open. They open on first use, and end as the metadata says.

    absent --get--> opening --> open (--> closing --> absent)

A partition is open in `LedTopic.partitions` while it takes batches, or quietly, for retention alone, until
somebody else wants it. Handlers look in `topic_named(..).partitions` first, which costs two dict lookups, and
ask `get` for what is not there.

Not here: what opening reads (opening.py), who leads what (the controller), what readers are given of
partitions that nobody can lead (reading_copies.py), which answers a refusal becomes (handlers).

Invariants
  * One handle a partition: a new one is opened after the former one's streams were closed.
  * At most `OPENS_IN_FLIGHT` opens at once, none of which waits for a close; those who asked take turns,
    however many partitions one of them wants. One that failed is not tried again for `RETRY_MS`.
  * At most `CLOSES_IN_FLIGHT` closes at once, of which a few begin in one iteration of the loop.
  * A close may wait for an upload as long as the store is away: so none is begun for retention's sake while
    uploads wait, and none holds a stop up.
  * A partition that is led no longer takes no batch from the moment the image says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from millrace.broker.partitions.opening import ROLES, Leadership, open_partition
from millrace.broker.partitions.opening_turn import Opening
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.producers import HOT_MAX, HOT_MIN_AT_LEVEL_0
from millrace.broker.partitions.reading_copies import ReadingCopies
from millrace.broker.partitions.settings import TopicSettings, parse_settings
from millrace.broker.partitions.traffic import Traffic
from millrace.broker.state_memory import StateMemory
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.configs import ResourceType
from millrace.kraft.tables.topics import PartitionState, Topic
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.ids import TopicId
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Closed, Fenced, MillraceError, in_words
from millrace.runtime.scheduling.semaphore import NOBODY, Owner, Semaphore
from millrace.s3stream.ids import OpenedStream, StreamId, StreamRole
from millrace.s3stream.storage import Storage

log = logging.getLogger(__name__)

OPENS_IN_FLIGHT, OPENS_OF_ONE = 64, 48
SAVES_IN_FLIGHT = 64
CLOSES_IN_FLIGHT, CLOSES_PER_CHUNK = 2_000, 50
DROPS_PER_CHUNK = 50
RETRY_MS = 1000
# Who comes later to an opening than `OPENING_S` behind its beginning, and would ask again at once, waits this
# long. What else was asked for in the same request or behind it waits as long.
OPENING_LATE_S = 0.5
SAVE_MS = 10_000
COOLED_AT_ONCE = 64
COOL_AGAIN_S = 1.0
FIRST_CLOSE_S = 20.0
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")

Key = tuple[bytes, int]
Effective = Callable[[MetadataImage, str], Mapping[str, str]]


class StreamOpener(Protocol):
    """Implemented on the controller (broker/controller_client.py)."""

    async def open_partition(
        self, topic_id: bytes, index: int, leader_epoch: int, roles: Sequence[StreamRole]
    ) -> dict[StreamRole, OpenedStream]:
        """Makes the streams that are missing and opens all for this node. Raises KafkaError for a refusal,
        Fenced for a stale node."""
        ...


class LedTopic:
    """One topic as handlers see it: what is open of it here, and what its configuration means."""

    __slots__ = ("is_internal", "name", "partitions", "retention_only", "settings", "topic_id", "traffic")

    def __init__(self, topic_id: TopicId, name: str, settings: TopicSettings) -> None:
        self.topic_id = topic_id
        self.name = name
        self.settings = settings
        self.is_internal = name in INTERNAL_TOPICS
        self.partitions: dict[int, Partition] = {}
        self.retention_only: dict[int, Partition] = {}  # open for retention alone
        self.traffic = Traffic()

    def opened(self) -> list[Partition]:
        return [*self.partitions.values(), *self.retention_only.values()]


class PartitionDirectory:
    """`effective` gives every configuration value that holds for a topic. `on_image` is to be told of every
    image after `image`."""

    def __init__(
        self,
        node_id: int,
        image: MetadataImage,
        opener: StreamOpener,
        storage: Storage,
        effective: Effective,
        clock: Clock,
        memory: StateMemory | None = None,
        *,
        is_skipping: bool = False,
    ) -> None:
        self.node_id = node_id
        self._image = image
        self._opener = opener
        self._storage = storage
        self._effective = effective
        self._clock = clock
        self._is_skipping = is_skipping  # see open_partition
        self.memory = StateMemory() if memory is None else memory
        self.memory.on_crowded = self._on_crowded
        self._set_hot_count_min()
        self._cooling: asyncio.Task[None] | None = None
        self._is_crowded = False  # since states were moved to the log last
        self.traffic = Traffic()  # of all topics, also those that are gone
        self._by_name: dict[str, LedTopic] = {}
        self._by_id: dict[bytes, LedTopic] = {}
        self._opening: dict[Key, Opening] = {}
        self._closing: dict[Key, asyncio.Task[None]] = {}
        self._streams_changed: dict[Key, asyncio.Future[None]] = {}  # openings that wait for another node
        self._told_gone: dict[int, None] = {}  # brokers that are gone, and whose logs openings wait for
        self._failed: dict[Key, tuple[float, KafkaError]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closes = asyncio.Semaphore(CLOSES_IN_FLIGHT)
        self._closes_begun = asyncio.Semaphore(CLOSES_PER_CHUNK)  # in one iteration of the loop
        self._opens = Semaphore(OPENS_IN_FLIGHT, each_max=OPENS_OF_ONE)
        self._copies = ReadingCopies(node_id, image, storage, clock, self._opens, self.spawn)
        self._is_closed = False

    # -- finding

    def topic_named(self, name: str) -> LedTopic | None:
        found = self._by_name.get(name)
        if found is not None:
            return found
        topic = self._image.topics.by_name(name)
        return None if topic is None else self._remember(topic)

    def topic_of(self, topic_id: bytes) -> LedTopic | None:
        found = self._by_id.get(topic_id)
        if found is not None:
            return found
        topic = self._image.topics.by_id(topic_id)
        return None if topic is None else self._remember(topic)

    def _remember(self, topic: Topic) -> LedTopic:
        settings = parse_settings(self._effective(self._image, topic.name))
        led = LedTopic(topic.topic_id, topic.name, settings)
        self._by_name[topic.name] = led
        self._by_id[topic.topic_id] = led
        return led

    def leader_of(self, topic_id: bytes, index: int) -> PartitionState | None:
        """What the metadata says of a partition, None when there is none."""
        return self._image.topics.partition(topic_id, index)

    def get(
        self,
        topic_id: bytes,
        index: int,
        asker: Owner = NOBODY,
        *,
        is_retention_only: bool = False,
        is_reading: bool = False,
    ) -> Partition | asyncio.Future[Partition]:
        """The open partition, or a future of it, not to be cancelled. Raises KafkaError when it is not led
        here or would not open. `asker`: in whose turn it opens. `is_retention_only`: not to be kept open for
        this caller's sake (see `release_quiet`). `is_reading`: a reading copy does where nobody can lead
        it."""
        led = self.topic_of(topic_id)
        if led is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if not is_retention_only and index in led.retention_only:
            led.partitions[index] = led.retention_only.pop(index)
        partition = led.partitions.get(index) or led.retention_only.get(index)
        if partition is not None:
            return partition
        if is_reading and self._copies.are_wanted_of((topic_id, index)):
            return self._copies.get(led.topic_id, led.name, index, led.settings, asker)
        opening = self._opening.get((topic_id, index)) or self._begin(led, index, is_retention_only)
        opening.ask(asker)
        return opening.future

    def at_hand(self, name: str, index: int, asker: Owner = NOBODY, *, is_reading: bool = False) -> Partition:
        """The open partition; for those who have waited for it (requests/openings.py). Raises KafkaError,
        also while it opens, which begins with this at the latest."""
        topic = self.topic_named(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        found = self.get(topic.topic_id, index, asker, is_reading=is_reading)
        if not isinstance(found, Partition):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name}-{index} is not open yet")
        return found

    def opening_due_s(self, topic_id: bytes, index: int, found: asyncio.Future[Partition]) -> float:
        """Until when, by the loop's clock, those who asked for a partition that opens, and `found` it so,
        wait for it: it may take as long as the store or another broker is away."""
        key = topic_id, index
        for opening in (self._opening.get(key), self._copies.opening.get(key)):
            if opening is not None and opening.future is found:
                return opening.due_s
        return asyncio.get_running_loop().time()

    def opened(self) -> list[Partition]:
        """Every open partition, by topics in the order of their first use."""
        return [partition for led in self._by_id.values() for partition in led.opened()]

    def topics(self) -> Iterable[LedTopic]:
        """Every topic that was asked for and is still there, in the order of first use."""
        return self._by_id.values()

    @property
    def failed_count(self) -> int:
        """Partitions whose last opening failed, and that were not opened since; and those that are open and
        take no batch for damage."""
        return len(self._failed) + sum(1 for partition in self.opened() if partition.state.doubts)

    def bounds_of(self, topic_id: bytes, index: int) -> tuple[int, int]:
        """[log start, high watermark) as metadata has them, of a partition that is not open here: all of it
        is committed then."""
        data = self._image.streams.of_role(topic_id, index, StreamRole.DATA)
        return (0, 0) if data is None else (data.start, data.end)

    def is_open(self, topic_id: bytes, index: int) -> bool:
        led = self._by_id.get(topic_id)
        return led is not None and (index in led.partitions or index in led.retention_only)

    # -- opening

    def _begin(self, led: LedTopic, index: int, is_retention_only: bool) -> Opening:
        key = led.topic_id, index
        self._check_led(key)
        failed_at, error = self._failed.get(key, (0.0, None))
        if error is not None and asyncio.get_running_loop().time() - failed_at < RETRY_MS / 1000:
            raise error
        opening = self._opening[key] = Opening(self._opens)
        self.spawn(self._open(led, index, opening, is_retention_only))
        return opening

    def _check_led(self, key: Key) -> PartitionState:
        state = self._image.topics.partition(*key)
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if state.leader != self.node_id or self._is_closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return state

    def _is_led(self, key: Key) -> bool:
        state = self._image.topics.partition(*key)
        return state is not None and state.leader == self.node_id

    async def _open(self, led: LedTopic, index: int, opening: Opening, is_retention_only: bool) -> None:
        key = led.topic_id, index
        partition, error = None, None
        try:
            while (closing := self._closing.get(key)) is not None:
                await asyncio.wait([closing])
            await self._until_closed_elsewhere(key)
            asker = await opening.turn()
            try:
                partition = await self._open_streams(led, index)
            finally:
                self._opens.release(asker)
            partition.raise_epoch(self._check_led(key).leader_epoch)
            partition.settings = led.settings
        except Exception as escaped:
            error = self._why_not(led, index, escaped)
        self._opening.pop(key, None)
        if error is not None:
            if partition is not None:
                self._end(key, partition)
            if self._is_led(key):  # else nothing failed, and nobody would ever forget it
                self._failed[key] = asyncio.get_running_loop().time(), error
            opening.future.set_exception(error)
            return
        assert partition is not None
        self._failed.pop(key, None)
        partition.on_readable = partial(self._reopen, led, partition)
        (led.retention_only if is_retention_only else led.partitions)[index] = partition
        opening.future.set_result(partition)

    async def _until_closed_elsewhere(self, key: Key) -> None:
        """Who led the partition before closes its streams, or they are recovered from its log; until then
        nobody else can open them, or read what opening takes. Raises KafkaError where the partition is led
        here no more."""
        while self.is_elsewhere(key):
            self._say_waiting(key)
            changed = self._streams_changed.setdefault(key, asyncio.get_running_loop().create_future())
            await asyncio.wait([changed])
            self._check_led(key)

    def is_elsewhere(self, key: Key) -> bool:
        """Another node has it open. Or this one owes some of it still: what it has of a stream continues. Or
        small states, which are read to open it, are owed by a broker that is gone."""
        streams = self._image.streams
        return any(
            (stream.is_open and stream.node_id != self.node_id)
            or streams.owed.by(stream.stream_id, self.node_id) is not None
            for stream in streams.of_partition(*key)
        ) or bool(self._gone_owners(key))

    def _gone_owners(self, key: Key) -> list[int]:
        """Whoever asks a broker that is gone for what it owes waits in vain, and in the place of others."""
        meta = self._image.streams.of_role(*key, StreamRole.META)
        owed = () if meta is None else self._image.streams.owed.of_stream(meta.stream_id)
        found = [(one.node_id, self._image.brokers.get(one.node_id)) for one in owed]
        return [node_id for node_id, broker in found if broker is None or broker.is_fenced]

    def _say_waiting(self, key: Key) -> None:
        """Of each broker that is gone once, however many partitions wait for its log."""
        topic = self._image.topics.by_id(key[0])
        for node_id in self._gone_owners(key):
            if node_id not in self._told_gone and topic is not None:
                self._told_gone[node_id] = None
                log.warning(
                    "partitions, %s-%d the first, wait for the write-ahead log of broker %d, which is gone: "
                    "it owes small states of theirs. Start the broker, or see that another one can reach its "
                    "log",
                    topic.name,
                    key[1],
                    node_id,
                )

    def _wake(self, delta: MetadataDelta) -> None:
        """Those who wait for streams to be closed elsewhere, where that or the partition has changed. Of the
        others none is looked at: thousands may wait, while thousands of changes come."""
        waiting = self._streams_changed
        changed = [self._image.streams.get(stream_id) for stream_id in delta.streams_changed]
        keys = {(stream.topic_id, stream.partition): None for stream in changed if stream is not None}
        if delta.topics_changed or delta.topics_removed:
            moved = [
                key for key in waiting if key[0] in delta.topics_changed or key[0] in delta.topics_removed
            ]
        else:
            moved = []
        if delta.brokers_changed:  # one may be back that owes
            keys |= dict.fromkeys(waiting)
            self._told_gone.clear()
        ready = [key for key in keys if key in waiting and not self.is_elsewhere(key)]
        for key in dict.fromkeys((*moved, *ready)):
            waiting.pop(key).set_result(None)

    def _reopen(self, led: LedTopic, partition: Partition) -> None:
        """It ends, and opens on its next use."""
        for opened in (led.partitions, led.retention_only):
            if opened.get(partition.index) is partition:
                del opened[partition.index]
                self._end((led.topic_id, partition.index), partition)

    def _why_not(self, led: LedTopic, index: int, error: Exception) -> KafkaError:
        """A partition that was deleted or moved while it opened lacks objects, say: then that is the reason,
        and nothing is wrong."""
        try:
            self._check_led((led.topic_id, index))
        except KafkaError as change:
            log.info("%s-%d changed while it opened: %s", led.name, index, in_words(error))
            return change
        return _refusal(led.name, index, error)

    async def _open_streams(self, led: LedTopic, index: int) -> Partition:
        state = self._check_led((led.topic_id, index))
        opened = await self._take_streams(led, index, state.leader_epoch)
        self._storage.take_back(one.stream_id for one in opened.values())
        streams = {role: self._storage.open_stream(opened[role]) for role in ROLES}
        leadership = Leadership(led.topic_id, led.name, index, state.leader_epoch)
        try:
            await self._storage.mark_opened()
            partition = await open_partition(
                leadership,
                streams,
                led.settings,
                self._storage,
                self.spawn,
                self._clock,
                self.memory,
                is_skipping=self._is_skipping,
            )
        except BaseException:
            for stream in streams.values():
                await stream.close()
            raise
        if self._image.streams.owed.of_stream(partition.meta.stream.stream_id):
            partition.meta.rewrite()  # small states do not hang on the log of another broker
        return partition

    async def _take_streams(
        self, led: LedTopic, index: int, leader_epoch: int
    ) -> dict[StreamRole, OpenedStream]:
        """Those that this node's process before left open are not closed any more: else a close that comes
        late would be one of these."""
        left_open = self._storage.left_open
        known = self._image.streams.of_partition(led.topic_id, index) if len(left_open) else ()
        taken = await left_open.take(stream.stream_id for stream in known)
        try:
            return await self._opener.open_partition(led.topic_id, index, leader_epoch, ROLES)
        except BaseException:
            left_open.give_back(taken)
            raise

    # -- memory of producers' states

    def _set_hot_count_min(self) -> None:
        """What goes to the log is read from millrace.version 1 on: below it the build of before may be
        started again."""
        self.memory.hot_count_min = 0 if self._image.features.has_identities else HOT_MIN_AT_LEVEL_0

    def _on_crowded(self) -> None:
        self._is_crowded = True
        if self._cooling is None and not self._is_closed:
            self._cooling = asyncio.get_running_loop().create_task(self._cool(), name="cool producers")
            self._tasks[self._cooling] = None
            self._cooling.add_done_callback(self._done)

    async def _cool(self) -> None:
        """Moves producers' states to the log until there is room in memory again, as often as memory is
        crowded meanwhile."""
        try:
            while self._is_crowded:
                self._is_crowded = False
                if not await self._cool_once(self.memory.hot_bytes_max * 3 // 4):
                    await asyncio.sleep(COOL_AGAIN_S)  # what is left is on its way to the log
        finally:
            self._cooling = None

    async def _cool_once(self, target_bytes: int) -> bool:
        """Of each partition the half that wrote longest ago, from the partitions with most first; then, where
        that is not enough, all, also those of partitions with one producer; but those stay that have to.
        Whether that was enough."""
        least = self.memory.hot_count_min
        for part, count_min in ((2, 2), (HOT_MAX, 1)):
            crowded = [
                one for one in self.opened() if one.state.producers.hot_count >= max(count_min, least + 1)
            ]
            crowded.sort(key=lambda one: -one.state.producers.hot_count)
            for first in range(0, len(crowded), COOLED_AT_ONCE):
                if self.memory.hot_bytes <= target_bytes:
                    return True
                some = crowded[first : first + COOLED_AT_ONCE]
                await asyncio.gather(
                    *(one.cool_producers(max(least, one.state.producers.hot_count // part)) for one in some)
                )
        return self.memory.hot_bytes <= target_bytes

    # -- following the metadata

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._image = image
        self._copies.on_image(delta, image)
        self._set_hot_count_min()
        for topic_id in delta.topics_removed:
            self._drop(topic_id)
        for topic_id in delta.topics_changed:
            self._follow(topic_id)
        if self._streams_changed:
            self._wake(delta)
        for resource_type, name in delta.configs_changed:
            if resource_type == ResourceType.TOPIC:
                self._configure([self._by_name[name]] if name in self._by_name else [])
            elif resource_type == ResourceType.BROKER:
                self._configure(list(self._by_id.values()))

    def _drop(self, topic_id: bytes) -> None:
        led = self._by_id.pop(topic_id, None)
        if led is None:
            return
        if self._by_name.get(led.name) is led:
            del self._by_name[led.name]
        self._clear_open_failures(topic_id)
        opened = led.opened()
        for partition in opened:
            partition.is_led = False  # takes nothing from now on; what waits for it is told in its turn
        self.spawn(self._drop_opened(opened))

    async def _drop_opened(self, opened: list[Partition]) -> None:
        for number, partition in enumerate(opened, 1):
            partition.resign()
            await self._storage.drop_streams(_stream_ids(partition))
            if number % DROPS_PER_CHUNK == 0:
                await asyncio.sleep(0)

    def _clear_open_failures(self, topic_id: bytes) -> None:
        """What went wrong before the change says nothing of what comes after it."""
        for key in [key for key in self._failed if key[0] == topic_id]:
            del self._failed[key]

    def _follow(self, topic_id: bytes) -> None:
        led = self._by_id.get(topic_id)
        if led is None:
            return
        self._clear_open_failures(topic_id)
        for index in [*led.partitions, *led.retention_only]:
            state = self._image.topics.partition(topic_id, index)
            partition = led.partitions.get(index) or led.retention_only[index]
            if state is not None and state.leader == self.node_id:
                partition.raise_epoch(state.leader_epoch)
            else:
                led.partitions.pop(index, None)
                led.retention_only.pop(index, None)
                self._end((topic_id, index), partition)

    def _configure(self, topics: list[LedTopic]) -> None:
        for led in topics:
            led.settings = parse_settings(self._effective(self._image, led.name))
            for partition in led.opened():
                partition.settings = led.settings

    # -- ending

    async def release_quiet(self) -> None:
        """Partitions that were got quietly are not needed any more; they close, unless somebody else has come
        to want them. While uploads wait they stay as they are, for the next call: nobody could use one until
        its last upload. So the first that has something to upload tells, and the others follow together."""
        quiet = [partition for led in self._by_id.values() for partition in led.retention_only.values()]
        first = next((partition for partition in quiet if partition.has_to_upload), None)
        if first is not None:
            self._release(first)
            closing = self._closing.get((first.topic_id, first.index))
            if closing is not None:
                await asyncio.wait([closing], timeout=FIRST_CLOSE_S)
                if not closing.done():
                    return
        for partition in quiet:
            self._release(partition)

    def _release(self, partition: Partition) -> None:
        led = self._by_id.get(partition.topic_id)
        if (
            led is None
            or led.retention_only.get(partition.index) is not partition
            or self._storage.upload_blocked_reason
        ):
            return
        del led.retention_only[partition.index]
        self._end((partition.topic_id, partition.index), partition)

    def _end(self, key: Key, partition: Partition) -> None:
        partition.resign()
        if self._image.topics.partition(*key) is None:
            self.spawn(self._storage.drop_streams(_stream_ids(partition)))
            return
        task = asyncio.get_running_loop().create_task(
            self._close_in_turn(partition, is_sealing=self._is_handed_over(key)),
            name=f"close {partition.topic_name}-{partition.index}",
        )
        self._closing[key] = task
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._ended(key, task))

    def _is_handed_over(self, key: Key) -> bool:
        """Another broker waits to open it, and knows ranges that are owed."""
        state = self._image.topics.partition(*key)
        return self._image.features.has_owed_ranges and state is not None and state.leader != self.node_id

    async def _close_in_turn(self, partition: Partition, *, is_sealing: bool) -> None:
        """A broker that is stopped closes all at once that it leads: heartbeats go on between."""
        async with self._closes:
            async with self._closes_begun:
                await asyncio.sleep(0)
            await partition.close(is_sealing=is_sealing)

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        self._done(task)
        if self._closing.get(key) is task:
            del self._closing[key]

    async def save(self) -> None:
        """On return every partition that was open has had a checkpoint at its log's end, durably: where
        nothing is appended after it, a close writes none."""
        gate = asyncio.Semaphore(SAVES_IN_FLIGHT)

        async def save(partition: Partition) -> None:
            async with gate:
                try:
                    await partition.save()
                except (Fenced, Closed) as error:
                    log.info("%r was not saved: %s", partition, in_words(error))

        await asyncio.gather(*(save(partition) for partition in self.opened()))

    async def close(self, timeout_ms: int = SAVE_MS) -> None:
        """Nothing is taken any more. On return every partition's checkpoint is at its log's end and durable,
        as far as that was possible within the bound: what a checkpoint lacks is read from the log by the next
        opening. The streams are still open: the engine closes them all, after one upload
        (`Storage.close`)."""
        self._is_closed = True
        for waiting in self._streams_changed.values():
            waiting.set_result(None)
        self._streams_changed.clear()
        for partition in self.opened():
            partition.resign()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.save()
                while self._closing:
                    await asyncio.wait(list(self._closing.values()))
        except TimeoutError:
            why = self._storage.upload_blocked_reason or "the log takes no more"
            log.warning(
                "not every partition has a checkpoint at its end: the next start reads what is missing (%s)",
                why,
            )
            closing = list(self._closing.values())
            for task in closing:
                task.cancel()
            await asyncio.gather(*closing, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` in the background; what escapes is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)


def _stream_ids(partition: Partition) -> list[StreamId]:
    return [partition.data.stream_id, partition.time.stream_id, partition.meta.stream.stream_id]


def _refusal(name: str, index: int, error: Exception) -> KafkaError:
    """What those who wait for a partition are told when it does not open."""
    if isinstance(error, KafkaError):
        is_stale = error.code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message) if is_stale else error
    if isinstance(error, Fenced | Closed):
        log.info("%s-%d was not opened: %s", name, index, in_words(error))
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    is_known = isinstance(error, MillraceError)
    log.error("%s-%d does not open: %s", name, index, in_words(error), exc_info=None if is_known else error)
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}-{index} does not open")
