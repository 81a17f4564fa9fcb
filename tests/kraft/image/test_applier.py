"""Committed metadata is applied in one place: leader, follower, observer, restart and installed snapshot come
to equal images."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millrace.kraft.errors import LogCorrupt, ProposalDropped
from millrace.kraft.image.applier import Applier, Folding, StoredBatch
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.image.records import Proposal, ValueWriter, encode_batch
from millrace.kraft.node import ControllerNode
from millrace.protocol.batches import BatchHeader
from millrace.protocol.metadata_records import FeatureLevelRecord
from tests.kraft.build import Broker, create_topic, open_node, run, sim_disk
from tests.kraft.quorum import Quorum


def batch(base: int, *levels: int, epoch: int = 1) -> StoredBatch:
    values = ValueWriter().write_all([FeatureLevelRecord("metadata.version", level) for level in levels])
    return StoredBatch.of(encode_batch([Proposal(values, 0)], base, epoch))


def test_batches_are_published_as_one_change_in_their_order() -> None:
    """The image moves to the last batch's end, and a subscriber is told once."""
    publisher = MetadataPublisher()
    seen: list[MetadataImage] = []
    publisher.subscribe(lambda delta, image: seen.append(image))
    Applier(publisher).apply([batch(0, 1, 2), batch(2, 3)])
    assert [(image.offset, image.epoch, image.features.level("metadata.version")) for image in seen] == [
        (3, 1, 3)
    ]


def test_a_batch_that_does_not_join_is_refused() -> None:
    """One that is applied already is stepped over; one behind a hole, or across the end, is no log."""
    folding = Folding(replace(EMPTY_IMAGE, offset=2))
    for found, is_refused in ((batch(0, 1, 2), False), (batch(3, 1), True), (batch(1, 1, 2), True)):
        if is_refused:
            with pytest.raises(LogCorrupt):
                folding.take(BatchHeader(found.data), memoryview(found.data))
        else:
            folding.take(BatchHeader(found.data), memoryview(found.data))
    assert folding.end == 2


def test_an_outcome_is_taken_on_the_image_it_was_decided_on_alone() -> None:
    """The fast path of a leader is for what is equal to folding the records, and for nothing else."""
    publisher = MetadataPublisher()
    applier = Applier(publisher)
    delta = MetadataDelta(replace(EMPTY_IMAGE))
    with pytest.raises(AssertionError):
        applier.adopt(delta, delta.done(1, 1))


def test_a_leader_folds_nothing_twice() -> None:
    """What it decided on is published as decided: no batch is read back or decoded in steady state."""

    async def main() -> None:
        node = await open_node(sim_disk())
        await Broker.register(node)
        folded: list[object] = []
        node.driver.applier.apply = folded.append  # type: ignore[method-assign,assignment]
        for number in range(5):
            await create_topic(node, f"t{number}")
        assert not folded
        assert len(list(node.publisher.image.topics)) == 5
        await node.close()

    run(main())


def test_followers_and_observers_hold_the_leaders_image() -> None:
    """Commits are told to all roles; a follower that takes over goes on from the same image."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3), observers=(9,))
        await quorum.start()
        leader = await quorum.leader()
        await Broker.register(leader)
        for number in range(10):
            await create_topic(leader, f"before-{number}", 3)
        image = await quorum.agree()
        assert len(list(image.topics)) == 10
        await quorum.stop(leader.meta.node_id)
        heir = await quorum.leader()
        await create_topic(heir, "after")
        assert next(topic.name for topic in (await quorum.agree()).topics) == "after"
        for seen in quorum.images.values():
            offsets = [image.offset for image in seen]
            assert offsets == sorted(set(offsets)), "a change was told twice, or backwards"
        await quorum.stop()

    run(main())


def test_a_restart_applies_what_is_known_to_be_committed() -> None:
    """One of several begins with its snapshot; what lies behind it counts when the leader says so. A quorum
    of one begins with all."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start()
        leader = await quorum.leader()
        await Broker.register(leader)
        await create_topic(leader, "in-the-snapshot")
        await quorum.agree()
        for node in quorum.nodes.values():
            await node.snapshot()
        await create_topic(await quorum.leader(), "behind-it")
        await quorum.agree()
        await quorum.stop()
        await quorum.start(1)
        assert [topic.name for topic in quorum.nodes[1].publisher.image.topics] == ["in-the-snapshot"]
        await quorum.start(2, 3)
        image = await quorum.agree()
        assert [topic.name for topic in image.topics] == ["behind-it", "in-the-snapshot"]
        await quorum.stop()

        disk = sim_disk()
        node = await open_node(disk)
        await Broker.register(node)
        await create_topic(node, "all")
        await node.close()
        node = await open_node(disk)
        assert [topic.name for topic in node.publisher.image.topics] == ["all"]
        await node.close()

    run(main())


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_who_is_far_behind_installs_the_leaders_snapshot(is_interrupted: bool) -> None:
    """The log is replaced, subscribers are told of everything that may have changed, and a crash on the way
    is gone on from."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start(segment_bytes=500)
        leader = await quorum.leader()
        await Broker.register(leader)
        await create_topic(leader, "old")
        await quorum.agree()
        behind = next(node_id for node_id in quorum.nodes if quorum.nodes[node_id] is not leader)
        await quorum.stop(behind)
        for number in range(4):
            for topic in range(10):
                await create_topic(leader, f"n{number}-{topic}", 2)
            await leader.snapshot()
        assert leader.driver.raft.log.start > 10
        if is_interrupted:
            # Its snapshot was durable, and then the process was gone.
            snapshot = snapshot_path(leader)
            data = await quorum.disks[leader.meta.node_id].read_file(snapshot)
            assert data is not None
            await quorum.disks[behind].write_file(snapshot, data)
        quorum.images[behind].clear()
        await quorum.start(behind)
        image = await quorum.agree()
        assert len(list(image.topics)) == 41
        assert quorum.installed == (0 if is_interrupted else 1)
        assert quorum.nodes[behind].driver.raft.log.start > 10
        await quorum.stop(behind)
        await quorum.start(behind)
        assert len(list((await quorum.agree()).topics)) == 41
        await quorum.stop()

    run(main())


def snapshot_path(node: ControllerNode) -> str:
    assert node.driver.raft.log.snapshot is not None
    end, epoch = node.driver.raft.log.snapshot
    return f"/data/__cluster_metadata-0/{end:020}-{epoch:010}.checkpoint"


def test_a_command_that_is_cut_with_the_leadership_is_told_so() -> None:
    """What a deposed leader had decided and not committed never shows in an image, and its caller hears that
    the outcome is unknown."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start()
        leader = await quorum.leader()
        await Broker.register(leader)
        await quorum.agree()
        own = leader.meta.node_id
        quorum.is_lost = lambda message: own in (message.source, message.target)
        lost = asyncio.ensure_future(create_topic(leader, "lost"))
        others = {node_id: node for node_id, node in quorum.nodes.items() if node_id != own}
        while not any(node.driver.leading_epoch >= 0 for node in others.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        heir = next(node for node in others.values() if node.driver.leading_epoch >= 0)
        await create_topic(heir, "kept")
        quorum.is_lost = lambda message: False
        image = await quorum.agree()
        with pytest.raises(ProposalDropped):
            await lost
        assert [topic.name for topic in image.topics] == ["kept"]
        await quorum.stop()

    run(main())
