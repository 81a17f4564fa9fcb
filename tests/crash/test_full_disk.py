"""Room runs out: on the machine's disk, in the bucket, under the WAL. Nothing acknowledged is lost, deletions
go on, producers are told to come again, and once there is room all goes on by itself.

The same on a real file system is tests/live/test_full_disk.py; here time is virtual, the power may go
meanwhile, and a start is tried.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.runtime.disk import DiskFull
from millrace.runtime.errors import Unavailable
from tests.sim import asking
from tests.sim.checkers import AcknowledgedIsThere, Checker, OnceInOrder, TopicsHold
from tests.sim.client import SimClient
from tests.sim.disk import Fail
from tests.sim.history import History, Place, TopicStory
from tests.sim.hunt import Tally
from tests.sim.look import judge, look
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.node import SimNode
from tests.sim.plan import Plan, Strike
from tests.sim.run import run_plan
from tests.sim.settings import node_settings
from tests.sim.workload import Actor, part_of
from tests.sim.world import World

ROOM_BYTES = 1 << 40
CLAIMS_BYTES = 2048
OK, TIMED_OUT, STORAGE_ERROR = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR


class Fixture:
    """A node with two topics, and a client that remembers what it was told."""

    def __init__(self, loop: SimLoop, variants: Sequence[str] = ()) -> None:
        self.world = World(loop, "full")
        self.node = SimNode(self.world, settings=node_settings(1, "10.0.0.1", variants))
        self.history = History()
        self.client: SimClient = self.world.client("client", self.node.address)
        self._actor = Actor(self.client, self.history, self.world.rand, self.world.clock)

    async def open(self) -> Fixture:
        await self.node.start()
        self.kept = await self._topic("kept")
        self.deleted = await self._topic("deleted")
        for place in (self.kept, self.deleted):
            assert await self.produce(place, 3) == Counter({OK: 3})
        return self

    async def _topic(self, name: str) -> Place:
        topic_id = await asking.create_topic(self.client, name, 1, {})
        self.history.topics[topic_id] = TopicStory(name, topic_id, 1)
        return topic_id, 0

    async def produce(self, place: Place, count: int) -> Counter[int]:
        """One batch after another; gives how many had which answer."""
        codes: Counter[int] = Counter()
        for _ in range(count):
            batch = self._actor.batch(place)
            self.history.on_sent(place, "client", batch.values)
            request = asking.produce_request(place, batch.frame)
            part = part_of(await self.client.ask(0, request))
            codes[part.error_code] += 1
            if not part.error_code:
                self.history.on_acknowledged(place, part.base_offset, batch.values)
        return codes

    async def create(self, name: str) -> int:
        (answer,) = (await self.client.ask(19, CreateTopicsRequest([CreatableTopic(name, 1, 1)]))).topics
        return int(answer.error_code)

    async def delete_topic_asked(self) -> None:
        story = self.history.topics[self.deleted[0]]
        story.is_deletion_asked = True
        await asking.delete_topic(self.client, self.deleted[0])
        story.is_gone = True

    async def check(self) -> None:
        """All that was acknowledged is there; again from objects, after a stop and a start."""
        checkers: list[Checker] = [AcknowledgedIsThere(), OnceInOrder(), TopicsHold()]
        for _ in range(2):
            judge(checkers, self.history, await look(self.client, self.history))
            assert self.history.findings == []
            await self.node.stop()
            await self.node.start()
        assert all(checker.count for checker in checkers)


def drive(test: Callable[[Fixture], Coroutine[Any, Any, None]], variants: Sequence[str] = ()) -> None:
    async def main(loop: SimLoop) -> None:
        await test(await Fixture(loop, variants).open())
        assert loop.problems == []

    run_simulation(main)


async def fill_disk(fixture: Fixture) -> None:
    """Nothing fits any more, and the broker has noticed."""
    disk = fixture.node.disk
    disk.capacity_bytes = disk.used_bytes() + 50
    codes = [await fixture.create(f"more{number}") for number in range(3)]
    assert codes == [OK, STORAGE_ERROR, STORAGE_ERROR], codes


def test_a_full_metadata_disk() -> None:
    """New topics are refused, deletions taken; producers go on until WAL and cache are full, then are told to
    come again; with room everything goes on, the refused things too."""

    async def test(fixture: Fixture) -> None:
        await fill_disk(fixture)
        assert await fixture.produce(fixture.kept, 10) == Counter({OK: 10})
        await fixture.delete_topic_asked()
        codes = await fixture.produce(fixture.kept, 150)
        assert set(codes) == {OK, TIMED_OUT}
        assert codes[OK] > 20
        fixture.node.disk.capacity_bytes = ROOM_BYTES
        await asyncio.sleep(10)
        assert await fixture.produce(fixture.kept, 20) == Counter({OK: 20})
        assert await fixture.create("after") == OK
        await fixture.check()

    drive(test)


def test_the_power_goes_while_the_metadata_disk_is_full() -> None:
    """A start without room waits or ends, and loses nothing; with room it serves what was acknowledged, and
    the deletion holds."""

    async def test(fixture: Fixture) -> None:
        await fill_disk(fixture)
        await fixture.produce(fixture.kept, 20)
        await fixture.delete_topic_asked()
        fixture.node.cut_power()
        starting = asyncio.ensure_future(fixture.node.start())
        fixture.node.disk.capacity_bytes = fixture.node.disk.used_bytes() + 4_000
        await asyncio.sleep(60)
        assert not starting.done()
        fixture.node.disk.capacity_bytes = ROOM_BYTES
        await starting
        assert await fixture.produce(fixture.kept, 5) == Counter({OK: 5})
        await fixture.check()

    drive(test)


def test_a_start_without_a_byte_of_room() -> None:
    """It ends with DiskFull, as often as it is tried, and leaves everything as it was."""

    async def test(fixture: Fixture) -> None:
        await fill_disk(fixture)
        await fixture.produce(fixture.kept, 20)
        fixture.node.cut_power()
        for _ in range(3):
            starting = asyncio.ensure_future(fixture.node.start())
            fixture.node.disk.capacity_bytes = fixture.node.disk.used_bytes()
            await asyncio.wait([starting])
            error = starting.exception()
            assert error is not None
            assert isinstance(error.__cause__, DiskFull)
        fixture.node.disk.capacity_bytes = ROOM_BYTES
        await fixture.node.start()
        await fixture.check()

    drive(test)


@pytest.mark.parametrize("variants", [(), ("object wal",)])
def test_a_start_on_a_disk_that_is_full_but_for_the_reserve(variants: Sequence[str]) -> None:
    """Whatever a start has to write beside the log takes of the reserve, as the log does: it serves, and
    takes deletions."""

    async def test(fixture: Fixture) -> None:
        await fixture.node.stop()
        fixture.node.disk.capacity_bytes = fixture.node.disk.used_bytes()
        await fixture.node.start()
        await fixture.delete_topic_asked()
        assert await fixture.create("more") == STORAGE_ERROR
        fixture.node.disk.capacity_bytes = ROOM_BYTES
        await asyncio.sleep(10)
        assert await fixture.create("more") == OK
        await fixture.check()

    drive(test, variants)


def test_a_full_bucket() -> None:
    """Producers go on until WAL and cache are full, then wait; log starts still move and topics are still
    made and deleted; with room what waits is uploaded."""

    async def test(fixture: Fixture) -> None:
        fixture.world.bucket.capacity_bytes = fixture.world.bucket.used_bytes()
        codes = await fixture.produce(fixture.kept, 150)
        assert set(codes) == {OK, TIMED_OUT}
        assert await fixture.create("more") == OK
        log = fixture.history.log(fixture.kept)
        log.start_asked = log.start_promised = 5
        assert await asking.delete_records(fixture.client, "kept", 0, 5) == 5
        await fixture.delete_topic_asked()
        assert fixture.world.bucket.hits["FULL"] > 3
        fixture.world.bucket.capacity_bytes = None
        await asyncio.sleep(15)
        assert await fixture.produce(fixture.kept, 20) == Counter({OK: 20})
        await fixture.check()

    drive(test)


def test_a_start_makes_room_in_a_full_bucket() -> None:
    """Killed behind a deletion: the start has a log to upload and room for claims alone; what was deleted
    makes some while it waits."""

    async def test(fixture: Fixture) -> None:
        assert await fixture.produce(fixture.deleted, 100) == Counter({OK: 100})
        await asyncio.sleep(1)
        bucket = fixture.world.bucket
        bucket.capacity_bytes = bucket.used_bytes()
        assert await fixture.produce(fixture.kept, 15) == Counter({OK: 15})
        await fixture.delete_topic_asked()
        fixture.node.kill()
        bucket.capacity_bytes = bucket.used_bytes() + CLAIMS_BYTES
        bucket.hits.clear()
        await asyncio.wait_for(fixture.node.start(), 120)
        assert bucket.hits["FULL"]
        await fixture.check()

    drive(test)


def test_metadata_that_finds_no_room_begins_a_round() -> None:
    """Nothing waits to be uploaded: what was deleted goes since the metadata that says so is refused for want
    of room."""

    async def test(fixture: Fixture) -> None:
        assert await fixture.produce(fixture.deleted, 100) == Counter({OK: 100})
        await asyncio.sleep(1)
        bucket, broker = fixture.world.bucket, fixture.node.broker
        used_bytes = bucket.capacity_bytes = bucket.used_bytes()
        assert broker is not None
        assert broker._makers._compaction.counts.reclaim_rounds == 0
        await fixture.delete_topic_asked()
        await asyncio.sleep(60)
        assert broker._makers._compaction.counts.reclaim_rounds > 0
        assert bucket.used_bytes() < used_bytes * 3 // 4
        await fixture.check()

    drive(test, ("no compaction",))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_write_of_the_wal_fails(code: int) -> None:
    """Thin provisioning, or a broken device: what was in flight has an unknown outcome, so the process ends;
    the next one goes on."""

    async def test(fixture: Fixture) -> None:
        disk = fixture.node.disk
        disk.at_write(disk.write_count + 2, Fail(code))
        with pytest.raises(Unavailable):
            await fixture.produce(fixture.kept, 5)
        await fixture.node.gone
        assert [type(failure).__name__ for failure in fixture.node.failures] == [
            "DiskFull" if code == errno.ENOSPC else "DiskFailed"
        ]
        await fixture.node.start()
        assert await fixture.produce(fixture.kept, 5) == Counter({OK: 5})
        await fixture.check()

    drive(test)


def test_storms_without_room() -> None:
    """Whole runs in which disk or bucket are full for two seconds, also with the power going meanwhile."""
    tally = Tally()
    for number in range(6):
        weather = ("full disk", "full bucket")[number % 2]
        strikes = (Strike("write", 60 + 25 * number),) if number > 1 else ()
        tally.add(run_plan(Plan(f"room {number}", strikes, weather=weather)))
    assert [f"{outcome.plan}: {line}" for outcome in tally.failed for line in outcome.findings[:3]] == []
    assert tally.hits["full"] > 0
    assert tally.hits["FULL"] > 0
