"""A third kind of write-ahead log under a whole broker: a folder and a line of the table, and everything that
asks about logs has its answer.

The kind is the shelf in memory of tests/wal/shelf, which has a parameter, a sentence and a report that no
other kind has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.broker.cli.fsck import check_log
from millrace.broker.cli.refusals import sentence_of
from millrace.broker.config import load
from millrace.broker.errors import SettingsInvalid
from millrace.broker.inspection.opening import Inspected
from millrace.broker.settings.source import Given
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.runtime.bundle import Runtime
from millrace.wal.errors import WalCorrupt
from millrace.wal.opening import OPENERS
from tests.sim import asking
from tests.sim.clock import SimClock
from tests.sim.history import History
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.node import SimNode
from tests.sim.settings import node_settings
from tests.sim.workload import Actor
from tests.sim.world import World
from tests.wal.shelf.log import SHELF, SHELVES, ShelfSettings, ShelfWal

# the last two would be mistakes of the other kinds
ADDRESS = "0@shelf://attic?capacity=300KiB&wood=pine&fence=none&iops=many"
LATE = {"s3_wal_upload_interval_ms": "3600000", "s3_wal_upload_threshold": "128KiB"}
CLUSTER = "hGTiLit3SO-4Px19ZkbPNA"


@pytest.fixture(autouse=True)
def shelf() -> Iterator[None]:
    """The line of the table."""
    OPENERS["shelf"] = lambda address: SHELF
    try:
        yield
    finally:
        del OPENERS["shelf"]
        SHELVES.clear()


def settings_at(address: str) -> Any:
    return load(
        {"s3.wal.path": Given(address, "override", "here")}, data_dir="/data", machine_bytes=1 << 30
    ).settings


async def life(loop: SimLoop) -> None:
    world = World(loop, "third")
    node = SimNode(world, 1, node_settings(1, "10.0.0.1", s3_wal_path=ADDRESS, **LATE))
    await node.start()
    assert node.broker is not None
    assert node.broker.storage is not None
    assert isinstance(node.broker.storage._wal, ShelfWal)
    assert node.broker.storage._wal.capacity_bytes == 300 << 10
    client = world.client("producer", node.address)
    actor = Actor(client, History(), world.rand, world.clock)
    place = await asking.create_topic(client, "kept", 1, {}), 0
    sent: list[bytes] = []

    async def produce(count: int) -> None:
        for _ in range(count):
            batch = actor.batch(place)
            (topic,) = (await client.ask(0, asking.produce_request(place, batch.frame))).responses
            (answer,) = topic.partition_responses
            assert (answer.error_code, answer.base_offset) == (0, len(sent))
            sent.extend(batch.values)

    async def read() -> list[bytes]:
        found: list[bytes] = []
        while len(found) < len(sent):
            part = await asking.fetch_patiently(client, place, len(found))
            more = [value for _, value in asking.records_of(part, len(found))]
            assert more, f"{part}, after {len(found)} of {len(sent)}"
            found += more
        return found

    await produce(20)
    assert not any("/objects/" in key for key in world.bucket.objects), (
        "what was acknowledged is on the shelf alone"
    )
    node.kill()
    await node.start()
    assert await read() == sent
    epoch = SHELVES["attic"].epoch
    await produce(20)
    node.kill()
    await node.start()
    assert await read() == sent
    await node.stop()
    assert node.is_stopped_in_order
    await node.start()
    assert await read() == sent
    assert SHELVES["attic"].epoch > epoch, "each start is an owner of its own"
    assert not node.failures


def test_a_broker_lives_on_it() -> None:
    """Produce, kill, restart, consume, twice; then a stop in order. Nothing that was acknowledged is anywhere
    but on the shelf until a start."""
    run_simulation(life)


def test_its_settings_are_its_own() -> None:
    """Its parameters reach it through the node's settings, its mistakes the operator; what others would
    refuse is nothing to it."""
    assert settings_at(ADDRESS).wal_settings == ShelfSettings(300 << 10, "pine")
    with pytest.raises(SettingsInvalid) as caught:
        settings_at("0@shelf://attic?capacity=wide&wood=glass")
    assert " has capacity=***, which is not a number" in str(caught.value)
    assert "glass bears no log" in str(caught.value)
    del OPENERS["shelf"]
    try:
        with pytest.raises(SettingsInvalid, match="the scheme shelf is none of file, s3, mem") as caught:
            settings_at(ADDRESS)
        assert str(caught.value).count("the scheme") == 1, "said once"
    finally:
        OPENERS["shelf"] = lambda address: SHELF


def test_it_is_looked_at_and_named_in_its_own_way() -> None:
    """`fsck` asks the kind what lies there and what is wrong; a refusal calls the log by its name, with its
    remedy and no command that is not its."""

    async def main(loop: SimLoop) -> None:
        node = SimNode(World(loop, "third"), 1, node_settings(1, "10.0.0.1", s3_wal_path=ADDRESS, **LATE))
        await node.start()
        node.kill()
        for cluster_id, is_sound in ((node.cluster_id, True), (CLUSTER, False)):
            inspected = Inspected(cluster_id, 1, EMPTY_IMAGE, None, None)
            found = await check_log(runtime_of(node, loop), inspected, node.settings, reads_data=True)
            assert found is not None
            assert found.is_sound == is_sound
            assert found.rows[0][:2] == ("records", len(SHELVES["attic"].records))

    run_simulation(main)
    sentence = sentence_of(WalCorrupt(8, "a worm"), settings_at(ADDRESS)) or ""
    assert "the WAL shelf attic cannot be recovered" in sentence
    assert "nail the shelf; or start once with wal.corruption=skip" in sentence
    assert "millrace wal" not in sentence


def runtime_of(node: SimNode, loop: SimLoop) -> Runtime:
    """Somebody else's process beside the node."""

    async def open_store(*words: object) -> Any:
        await asyncio.sleep(0)
        raise AssertionError("a shelf needs no store")

    return Runtime(
        SimClock(lambda: loop.now_us), node.rand.split("look"), node.disk, node.world.net, open_store
    )  # type: ignore[arg-type]
