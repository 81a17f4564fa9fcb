"""A log that a snapshot of the leader's was about to replace when the process ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.kraft.log.log_store import LogStore
from millrace.kraft.log.snapshot import write_snapshot
from millrace.kraft.node import ControllerNode
from millrace.kraft.raft.ready import QuorumState
from millrace.runtime.rand import Rand
from tests.kraft.build import SETTINGS, Broker, HandClock, create_topic, open_node, run, sim_disk

FOLDER = "/data/__cluster_metadata-0"


@pytest.mark.parametrize("segments_left", [0, 1, 2, 9])
def test_a_log_that_a_snapshot_was_to_replace_is_replaced_at_the_next_start(segments_left: int) -> None:
    """Also where the log was longer than the leader's snapshot: of an earlier epoch, and nothing that lies
    behind was ever committed. The power went after any number of its segments was removed."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk, segment_bytes=300)
        await Broker.register(node)
        for number in range(6):
            await create_topic(node, f"topic-{number}", 2)
        image = node.publisher.image
        await node.close()
        installed = replace(image, offset=image.offset - 4, epoch=7)
        await write_snapshot(disk, FOLDER, installed, 0)
        store = LogStore(disk, "/data", (1, 2, 3), 300)
        await store.save_state(QuorumState(7, 2))
        bases = sorted(await store.list_segments())
        assert len(bases) > 3
        for base in bases[segments_left:]:
            await disk.remove(f"{FOLDER}/{base:020}.log")
        again = await ControllerNode.open(
            disk,
            HandClock(),
            Rand(b"again"),
            replace(SETTINGS, voters=(1, 2, 3)),
            send=lambda message: None,
        )
        log = again.driver.raft.log
        assert (log.start, log.end, log.last_epoch) == (installed.offset, installed.offset, 7)
        assert again.publisher.image == installed
        await again.close()

    run(main())
