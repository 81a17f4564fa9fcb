"""Actors: small clients that use a broker as Kafka's clients do and write into the history what they asked
and were told.

Each runs in the life of its own client, survives the brokers, and ends by itself once it has done its share;
a broker that is away makes it wait, never give up. Chance comes from the actor's own Rand, so that what one
does depends on no other.

    Idempotent     up to three batches in flight a partition; after a lost answer all of them are sent again,
                   under the same sequences
    Plain          one batch at a time, never sent twice: a lost answer leaves its records in doubt
    Burst          many batches at once over one connection, so that several writes of the WAL are under way;
                   never sent twice
    Doubler        an idempotent producer whose every batch is on its way twice, over two connections, until
                   either is answered
    Crowd          many producers of one batch each; now and then an earlier one of them sends its batch again
    Reader         tails one partition and remembers what it was shown
    Rereader       reads from anywhere, again and again, and compares with what it was shown: history, from
                   objects mostly
    Corruptor      sends what no client should: batches with a wrong byte, frames of noise, and half a frame
    Committer      commits growing offsets for a group
    Trimmer        deletes records up to somewhere below the high watermark
    Churner        makes a topic, fills it, deletes it, and makes it again under the same name
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millrace.protocol.batch_build import build_batch
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.fetch import PartitionData
from millrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from millrace.protocol.records import Record
from millrace.runtime.errors import Unavailable
from millrace.runtime.rand import Rand
from tests.sim import asking
from tests.sim.asking import GONE, PASSING, PAUSE_S
from tests.sim.client import SimClient
from tests.sim.clock import SimClock
from tests.sim.history import History, Place, TopicStory, shown

IN_FLIGHT_MAX = 3
CROWD_FROM = 1 << 40  # producer ids that nobody is given
FORGOTTEN = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)  # where batches were given up
LAST_ROUNDS = 2  # of an actor that is asked to come to its end
ANY_TIME = {
    "message.timestamp.after.max.ms": str(1 << 60)
}  # the clock may be set back between a batch's making and its sending


@dataclass(slots=True)
class Batch:
    values: list[bytes]
    sequence: int
    frame: bytes


class Actor:
    def __init__(self, client: SimClient, history: History, rand: Rand, clock: SimClock) -> None:
        self.client = client
        self.history = history
        self.rand = rand.split(client.name)
        self.clock = clock
        self.made_count = 0
        self.ease = 1  # times as long are the pauses between what it does

    def batch(self, place: Place, producer: tuple[int, int] = (-1, -1), sequence: int = -1) -> Batch:
        """One to four records, small ones mostly."""
        values = []
        for _ in range(1 + self.rand.below(4)):
            self.made_count += 1
            size_bytes = self.rand.below(60) if self.rand.below(4) else self.rand.below(2_500)
            values.append(
                b"%s/%d/%d." % (self.client.name.encode(), place[1], self.made_count) + b"x" * size_bytes
            )
        records = [Record(None, value, self.clock.wall_ms()) for value in values]
        frame = build_batch(
            records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=max(-1, sequence)
        )
        return Batch(values, sequence, frame)

    async def producer_id(self) -> tuple[int, int]:
        given = await asking.init_producer_id(self.client)
        self.history.producer_ids.append(given[0])
        self.history.on_promise()
        return given

    def rounds(self, count: int, last: int = LAST_ROUNDS) -> Iterator[int]:
        """Counts them; few more once all shall come to an end."""
        for number in range(count):
            if last <= 0:
                return
            last -= self.history.is_ending
            yield number

    async def pause(self, bound_ms: int = 40) -> None:
        await asyncio.sleep(self.ease * self.rand.below(bound_ms) / 1000)


class Idempotent(Actor):
    async def run(self, places: list[Place], count: int) -> None:
        """`count` batches for each place."""
        producer = await self.producer_id()
        for place in places:
            await self._fill(place, producer, count)

    async def _fill(self, place: Place, producer: tuple[int, int], count: int) -> None:
        sequence = 0
        waiting: deque[Batch] = deque()
        for _ in self.rounds(count):
            waiting.append(self.batch(place, producer, sequence))
            self.history.on_sent(place, self.client.name, waiting[-1].values)
            sequence += len(waiting[-1].values)
        while waiting:
            try:
                if not await self._pipeline(place, waiting):
                    return
            except Unavailable:
                self.client.drop()
                if self.rand.below(2):
                    continue  # at once: the first sending may still be on its way to the disk
            await asyncio.sleep(PAUSE_S)

    async def _pipeline(self, place: Place, waiting: deque[Batch]) -> bool:
        """Sends what waits, in order, until something is refused or lost; False when the topic is gone."""
        wire = await self.client.wire()
        sent: deque[asyncio.Future[ProduceResponse]] = deque()
        while waiting:
            while self.history.is_ending and len(waiting) > IN_FLIGHT_MAX + LAST_ROUNDS:
                waiting.pop()
            while len(sent) < min(IN_FLIGHT_MAX, len(waiting)):
                request = asking.produce_request(place, waiting[len(sent)].frame)
                sent.append(wire.send(0, 13, request))
                await asyncio.sleep(self.rand.below(4) / 2000)
            answer = part_of(await asyncio.wait_for(sent.popleft(), 30))
            if answer.error_code in GONE and self.history.topics[place[0]].is_deletion_asked:
                return False
            if answer.error_code in PASSING:
                for late in sent:
                    late.cancel()
                return True
            batch = waiting.popleft()
            if answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                self.history.on_confirmed(place, batch.values)
            elif answer.error_code in FORGOTTEN and self.history.log(place).is_cut:
                # a client of Kafka's begins again under another epoch, and may write a record twice
                return False
            elif answer.error_code:
                self.history.find("producer-refused", f"{self.client.name} {answer!r}")
                return False
            else:
                self.history.on_acknowledged(place, answer.base_offset, batch.values)
        return True


class Plain(Actor):
    async def run(self, places: list[Place], count: int, acks: int = 1) -> None:
        for number in self.rounds(count):
            place = places[number % len(places)]
            batch = self.batch(place)
            self.history.on_sent(place, self.client.name, batch.values)
            if not await self._send(place, batch, acks):
                return
            await self.pause()

    async def _send(self, place: Place, batch: Batch, acks: int) -> bool:
        while True:
            try:
                answer = part_of(await self.client.ask(0, asking.produce_request(place, batch.frame, acks)))
            except Unavailable:
                await asyncio.sleep(PAUSE_S)
                return True
            if not answer.error_code:
                self.history.on_acknowledged(place, answer.base_offset, batch.values)
                return True
            if answer.error_code in GONE and self.history.topics[place[0]].is_deletion_asked:
                return False
            if answer.error_code not in PASSING:
                self.history.find("producer-refused", f"{self.client.name} {answer!r}")
                return False
            await asyncio.sleep(PAUSE_S)


class Burst(Actor):
    """What is sent over one connection is in order; what was under way on a lost one may come after what the
    next one brings."""

    async def run(self, places: list[Place], rounds: int, width: int = 16) -> None:
        for _ in self.rounds(rounds):
            await self.pause(120)
            try:
                wire = await self.client.wire()
            except Unavailable:
                await asyncio.sleep(PAUSE_S)
                continue
            asked = []
            sender = f"{self.client.name} over connection {self.client.connections_count}"
            for _ in range(width):
                place = places[self.rand.below(len(places))]
                batch = self.batch(place)
                self.history.on_sent(place, sender, batch.values)
                asked.append((place, batch, wire.send(0, 13, asking.produce_request(place, batch.frame))))
                await asyncio.sleep(self.rand.below(4) / 10_000)
            for place, batch, answer in asked:
                await asyncio.wait([answer])
                if answer.exception() is None and not (part := part_of(answer.result())).error_code:
                    self.history.on_acknowledged(place, part.base_offset, batch.values)


class Doubler(Actor):
    async def run(self, other: SimClient, place: Place, count: int) -> None:
        producer = await self.producer_id()
        sequence = 0
        for _ in self.rounds(count):
            batch = self.batch(place, producer, sequence)
            self.history.on_sent(place, self.client.name, batch.values)
            sequence += len(batch.values)
            while not await self._send_twice(other, place, batch):  # noqa: ASYNC110  (a retry, as clients make it)
                await asyncio.sleep(PAUSE_S)
            await self.pause()

    async def _send_twice(self, other: SimClient, place: Place, batch: Batch) -> bool:
        """Whether it was acknowledged. The two answers may not contradict one another."""
        answers = []
        for client in (self.client, other):
            answers.append(asyncio.ensure_future(client.ask(0, asking.produce_request(place, batch.frame))))
            await asyncio.sleep(self.rand.below(6) / 5000)
        is_done = False
        for answer in asyncio.as_completed(answers):
            try:
                part = part_of(await answer)
            except Unavailable:
                continue
            if not part.error_code:
                is_done = True
                self.history.on_acknowledged(place, part.base_offset, batch.values)
            elif part.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                is_done = True
                self.history.on_confirmed(place, batch.values)
            elif part.error_code in FORGOTTEN and self.history.log(place).is_cut:
                is_done = True  # it is given up, as what came before it
            elif part.error_code not in PASSING:
                self.history.find("producer-refused", f"{self.client.name} {part!r}")
        return is_done


class Crowd(Actor):
    async def run(self, place: Place, count: int) -> None:
        sent: list[tuple[Batch, int]] = []
        for number in self.rounds(count):
            batch = self.batch(place, (CROWD_FROM + number, 0), 0)
            self.history.on_sent(place, f"{self.client.name} {number}", batch.values)
            if (offset := await self._send(place, batch)) is None:
                return
            sent.append((batch, offset))
            if self.rand.below(2):
                continue
            batch, before = sent[self.rand.below(len(sent))]
            offset = await self._send(place, batch)
            if offset is not None and offset != before and not self.history.log(place).is_cut:
                self.history.find("duplicate", f"{self.client.name}: a batch at {before} is at {offset} too")

    async def _send(self, place: Place, batch: Batch) -> int | None:
        """Until it is acknowledged, at which offset; None: it is refused for good."""
        while True:
            try:
                part = part_of(await self.client.ask(0, asking.produce_request(place, batch.frame)))
            except Unavailable:
                await asyncio.sleep(PAUSE_S)
                continue
            if not part.error_code:
                self.history.on_acknowledged(place, part.base_offset, batch.values)
                return part.base_offset
            if part.error_code not in PASSING:
                self.history.find("producer-refused", f"{self.client.name} {part!r}")
                return None
            await asyncio.sleep(PAUSE_S)


class Seeing(Actor):
    """Who reads tells what it was shown."""

    may_step_over = True  # offsets that were deleted, or given up

    def see(self, place: Place, part: PartitionData, offset: int) -> int:
        """Where to read on."""
        for found, value in asking.records_of(part, offset):
            if found != offset and not (self.may_step_over or self._are_lost(place, offset, found)):
                self.history.find(
                    "stepped-over", f"{self.client.name} read {found} of {shown(place)} behind {offset - 1}"
                )
            self.history.on_shown(place, found, value)
            offset = found + 1
        return offset

    def _are_lost(self, place: Place, start: int, end: int) -> bool:
        log = self.history.log(place)
        return start < end and all(map(log.is_lost, range(start, end)))


class Reader(Seeing):
    async def run(self, place: Place, is_over: Callable[[], bool]) -> None:
        offset = 0
        while not is_over():
            known = self.history.watermarks(place)
            try:
                part = await asking.fetch(self.client, place, offset, 100 * self.ease)
            except Unavailable:
                await asyncio.sleep(PAUSE_S)
                continue
            if part.error_code in GONE:
                return
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                offset = await self._reset(place, offset)
                continue
            if part.error_code:
                assert part.error_code in PASSING, part
                await asyncio.sleep(PAUSE_S)
                continue
            if self.client.knows_end(place):
                self.history.on_watermarks(place, part.log_start_offset, part.high_watermark, known)
            offset = self.see(place, part, offset)

    async def _reset(self, place: Place, offset: int) -> int:
        """Where to go on: the log was cut below what was asked for."""
        start, end = await asking.list_offsets(self.client, self.history.topics[place[0]].name, place[1])
        if offset > end and not self.history.log(place).is_cut:
            self.history.find(
                "shown-and-gone", f"{self.client.name} had read to {offset}, the log ends at {end}"
            )
        return max(start, min(offset, end))


class Rereader(Seeing):
    async def run(self, places: list[Place], is_over: Callable[[], bool]) -> None:
        while not is_over():
            place = places[self.rand.below(len(places))]
            log = self.history.log(place)
            offset = log.log_start + self.rand.below(1 + max(0, log.high_watermark - log.log_start))
            for _ in range(1 + self.rand.below(3)):
                try:
                    part = await asking.fetch(self.client, place, offset, 0, 1 + self.rand.below(6_000))
                except Unavailable:
                    break
                offset = self.see(place, part, offset)
            await self.pause(200)


class Corruptor(Actor):
    async def run(self, place: Place, count: int) -> None:
        for _ in self.rounds(count, 1):
            await self.pause(200)
            batch = self.batch(place)
            corrupted = bytearray(batch.frame)
            self.history.corrupted.setdefault(place, []).extend(batch.values)
            corrupted[17 + self.rand.below(len(corrupted) - 17)] ^= 1 + self.rand.below(
                255
            )  # from the checksum on
            try:
                if self.rand.below(2):
                    part = part_of(await self.client.ask(0, asking.produce_request(place, bytes(corrupted))))
                    if not part.error_code:
                        self.history.find(
                            "corrupt-taken", f"{shown(place)} {part.base_offset}: {batch.values[0][:24]!r}"
                        )
                else:
                    wire = await self.client.wire()
                    noise = bytes(self.rand.below(256) for _ in range(self.rand.below(40)))
                    wire.transport.write(len(noise).to_bytes(4, "big") + noise[: self.rand.below(41)])
                    await self.pause()
                    self.client.drop()
            except Unavailable:
                await asyncio.sleep(PAUSE_S)


class Committer(Actor):
    async def run(self, group: str, topic: str, place: Place, count: int) -> None:
        await asking.find_coordinator(self.client, group)
        for offset in self.rounds(count, 1):
            offset += 1
            number = self.history.on_commit_asked(group, topic, place[1], offset)
            if await asking.commit_offset(self.client, group, place, offset):
                self.history.on_commit_promised(group, topic, place[1], number)
            await self.pause(80)


class Trimmer(Actor):
    async def run(self, name: str, place: Place, count: int) -> None:
        log = self.history.log(place)
        for _ in self.rounds(count, 1):
            await self.pause(400)
            if log.high_watermark <= log.start_asked:
                continue
            offset = log.start_asked + 1 + self.rand.below(log.high_watermark - log.start_asked)
            log.start_asked = offset
            known = self.history.watermarks(place)
            start = await asking.delete_records(self.client, name, place[1], offset, lambda: log.is_cut)
            if start is not None:
                log.start_promised = max(log.start_promised, offset)
                self.history.on_promise()
                self.history.on_watermarks(place, start, log.high_watermark, known)


class Churner(Actor):
    async def run(self, name: str, count: int) -> None:
        for _ in self.rounds(count, 1):
            topic_id = await asking.create_topic(self.client, name, 1, ANY_TIME)
            story = self.history.topics.setdefault(topic_id, TopicStory(name, topic_id, 1))
            self.history.on_promise()
            if story.is_gone:
                self.history.find("topic-is-back", f"{name} {topic_id.hex()}")
            filler = Plain(self.client, self.history, self.rand.split(topic_id.hex()), self.clock)
            filler.made_count = self.made_count
            await filler.run([(topic_id, 0)], 4)
            self.made_count = filler.made_count
            await self.pause(100)
            await self.producer_id()
            story.is_deletion_asked = True
            await asking.delete_topic(self.client, topic_id)
            story.is_gone = True
            self.history.on_promise()


def part_of(response: ProduceResponse) -> PartitionProduceResponse:
    return response.responses[0].partition_responses[0]
