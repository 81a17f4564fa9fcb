"""Metadata that is read beside a broker that writes it, makes snapshots, and removes what they replace."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.inspection.opening import _read_image_of_a_moment
from millrace.kraft.errors import LogCorrupt
from tests.kraft.build import NODE, Broker, create_topic, open_node, run
from tests.sim.disk import SimDisk

FOLDER = "/data/__cluster_metadata-0"


def test_what_is_read_beside_a_writer_is_of_one_moment(caplog: pytest.LogCaptureFixture) -> None:
    """Snapshots are made and old files removed between any two reads: each image has exactly the topics that
    were made before some moment within the reading."""
    seen: list[int] = []

    async def main() -> None:
        disk = SimDisk(hops=3)
        node = await open_node(disk, snapshot_records=8, segment_bytes=1)
        await Broker.register(node)
        is_over = False

        async def write() -> None:
            for number in range(150):
                await create_topic(node, f"t{number}")

        async def look() -> None:
            while not is_over:
                before = len(list(node.publisher.image.topics))
                image = await _read_image_of_a_moment(disk, "/data", NODE)  # type: ignore[arg-type]
                names = {topic.name for topic in image.topics}
                assert names == {f"t{number}" for number in range(len(names))}
                assert before <= len(names) <= len(list(node.publisher.image.topics)) + 1
                seen.append(len(names))

        looking = asyncio.ensure_future(look())
        await write()
        is_over = True
        await looking
        await node.close()

    run(main())
    assert len(seen) > 10
    assert len(set(seen)) > 5


@pytest.mark.parametrize("fault", ["flip", "zero"])
def test_damage_is_not_taken_for_a_writer(fault: str) -> None:
    """A segment with a wrong byte or a sector of zeros before its end, and files that nobody changes, are
    refused at the first look, as by a start: what a quorum of one wrote is no torn tail."""

    async def main() -> None:
        disk = SimDisk(hops=0)
        node = await open_node(disk)
        await Broker.register(node)
        for number in range(5):
            await create_topic(node, f"t{number}", 20)
        await node.close()
        path = f"{FOLDER}/00000000000000000000.log"
        if fault == "flip":
            disk.flip(path, 1100)
        else:
            disk.zero(path, 1024, 1536)
        with pytest.raises(LogCorrupt):
            await _read_image_of_a_moment(disk, "/data", NODE)  # type: ignore[arg-type]

    run(main())
