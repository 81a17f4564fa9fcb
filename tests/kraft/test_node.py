"""A node from an empty directory on: start, restart, group commit, snapshots, a full disk, what is
refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from millrace.kraft.errors import LogCorrupt, LogFull, NotLeader, SnapshotCorrupt
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.meta_properties import MetaProperties, read_meta_properties
from millrace.kraft.node import LOCK_FILE, ControllerNode
from millrace.kraft.tables.objects import ObjectState
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.ids import uuid_bytes
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from millrace.protocol.messages.get_opening_streams import GetOpeningStreamsRequest
from millrace.runtime.disk import DiskFailed, DiskLock, DiskLocked
from millrace.runtime.errors import Closed, Fenced
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import ObjectId
from tests.kraft.build import NODE, SETTINGS, Broker, HandClock, create_topic, open_node, run, sim_disk
from tests.patience import PATIENCE_S, eventually
from tests.sim.disk import Cut, Fail, SimDisk, drop

FOLDER = "/data/__cluster_metadata-0"


def same(one: MetadataImage, other: MetadataImage) -> bool:
    """Equal but for the control records of a new epoch."""
    return replace(one, offset=0, epoch=0) == replace(other, offset=0, epoch=0)


def test_a_first_start() -> None:
    """It leads at once, finalizes metadata.version first, and writes Kafka's files."""

    async def main() -> None:
        disk = sim_disk()
        assert await read_meta_properties(disk, "/data") is None
        node = await open_node(disk)
        assert node.publisher.image.features.levels == {"metadata.version": 30, "millrace.version": 3}
        assert len(node.cluster_id) == 22
        uuid_bytes(node.cluster_id)
        meta = await read_meta_properties(disk, "/data")
        assert meta == MetaProperties(node.cluster_id, NODE, node.meta.directory_id)
        assert sorted(disk.files) == [
            f"{FOLDER}/00000000000000000000.log",
            f"{FOLDER}/quorum-state",
            "/data/meta.properties",
            "/data/metadata.reserve",
        ]
        await node.close()
        await node.close()
        with pytest.raises(Closed):
            await create_topic(node, "late")

    run(main())


def test_a_node_that_was_never_started_can_be_closed() -> None:
    """An app that refuses to go on after looking at the image lets go of the directory."""

    async def main() -> None:
        disk = sim_disk()
        node = await ControllerNode.open(disk, HandClock(), Rand(b""), SETTINGS)
        await node.close()
        await (await open_node(disk)).close()

    run(main())


def test_a_restart_has_it_all() -> None:
    """The same cluster, the same image, in a new epoch."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        broker = await Broker.register(node)
        topic_id = await broker.create("t", 3, **{"retention.ms": "1000"})
        await broker.open(topic_id)
        before = node.publisher.image
        await node.close()
        again = await open_node(disk.restart(drop), seed=b"other")
        assert again.cluster_id == node.cluster_id
        assert same(again.publisher.image, before)
        assert again.publisher.image.epoch == before.epoch + 1
        await again.close()

    run(main())


def test_a_chosen_cluster_id() -> None:
    """A first start takes the id it is given; a later one refuses another, or another node's directory."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk, cluster_id="AAAAAAAAAAAAAAAAAAAAAQ")
        assert node.cluster_id == "AAAAAAAAAAAAAAAAAAAAAQ"
        await node.close()
        with pytest.raises(LogCorrupt, match=r"with cluster.id=AAAAAAAAAAAAAAAAAAAAAQ, and now"):
            await open_node(disk.restart(drop), cluster_id="AAAAAAAAAAAAAAAAAAAAAg")
        with pytest.raises(LogCorrupt, match=r"with node.id=1, and now node.id=2 is set"):
            await open_node(disk.restart(drop), node_id=2)

    run(main())


def test_a_directory_is_one_nodes_at_a_time() -> None:
    """A second process is refused while the first lives; a start that failed lets go of it."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        with pytest.raises(DiskLocked):
            await open_node(disk)
        await node.close()
        node = await open_node(disk)
        await node.close()
        with pytest.raises(LogCorrupt):
            await open_node(disk, node_id=2)
        await (await open_node(disk)).close()

    run(main())


@pytest.mark.parametrize(
    "gone", [f"{FOLDER}/00000000000000000000.log", f"{FOLDER}/quorum-state", "/data/meta.properties"]
)
def test_a_directory_that_lost_a_part_is_refused(gone: str) -> None:
    """A used directory without segments, without the votes that were cast, or without the cluster's id never
    starts as if it were new, and starts again when it has its part back."""

    async def main() -> None:
        disk = sim_disk()
        await (await open_node(disk)).close()
        part = await disk.read_file(gone)
        assert part is not None
        await disk.remove(gone)
        for _ in range(2):
            with pytest.raises(LogCorrupt):
                await open_node(disk)
            assert await disk.read_file(gone) is None
        await disk.write_file(gone, part)
        await (await open_node(disk)).close()

    run(main())


def test_commands_that_wait_share_one_sync() -> None:
    """A thousand commands at once take a handful of writes."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        await Broker.register(node)
        before = disk.write_count
        replies = await asyncio.gather(*(create_topic(node, f"t{number}") for number in range(1000)))
        assert all(reply.topics[0].error_code == 0 for reply in replies)
        assert disk.write_count - before <= 6
        assert len(node.publisher.image.topics) == 1000
        await node.close()

    run(main())


def test_subscribers_see_commits_in_order_before_their_replies() -> None:
    """Each delta leads to its image; a topic is in the image when its creation is answered."""

    async def main() -> None:
        node = await open_node(sim_disk())
        await Broker.register(node)
        seen: list[tuple[int, list[str]]] = []

        def follow(delta: Any, image: MetadataImage) -> None:
            names = [
                topic.name for topic_id in delta.topics_changed if (topic := image.topics.by_id(topic_id))
            ]
            seen.append((image.offset, names))

        node.publisher.subscribe(follow)
        await create_topic(node, "a")
        assert node.publisher.image.topics.by_name("a") is not None
        await create_topic(node, "b")
        assert [names for _, names in seen] == [["a"], ["b"]]
        assert seen[0][0] < seen[1][0] == node.publisher.image.offset
        await node.close()

    run(main())


def test_readers_see_nothing_that_is_not_durable() -> None:
    """Between a command and its commit the published image stands still, and a question waits for the
    answer's basis."""

    async def main() -> None:
        disk = sim_disk(latency_s=0.01)
        node = await open_node(disk)
        await Broker.register(node)
        first = node.controller.submit(CreateTopicsRequest([CreatableTopic("a", 1, 1)]))
        second = node.controller.submit(CreateTopicsRequest([CreatableTopic("a", 1, 1)]))
        assert node.publisher.image.topics.by_name("a") is None
        await asyncio.sleep(0)
        assert not second.done()
        assert (await second).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert first.done()
        await node.close()

    run(main())


def test_a_node_that_does_not_lead_takes_no_commands() -> None:
    """Before it is started it refers to nobody."""

    async def main() -> None:
        node = await ControllerNode.open(sim_disk(), HandClock(), Rand(b""), SETTINGS)
        with pytest.raises(NotLeader):
            await node.channel.send(CreateTopicsRequest())

    run(main())


def test_what_is_held_is_durable_and_not_committed() -> None:
    """Nobody sees it and nobody is answered until it is let through; what refuses that ends the log, and the
    next start has it."""

    async def main() -> None:
        disk = sim_disk()
        failures: list[BaseException] = []
        node = await open_node(disk, on_failed=failures.append)
        await Broker.register(node)
        gate = asyncio.get_running_loop().create_future()
        node.commit_after(lambda: asyncio.shield(gate))
        made = node.controller.submit(CreateTopicsRequest([CreatableTopic("a", 1, 1)]))
        await asyncio.sleep(0.05)
        assert node.publisher.image.topics.by_name("a") is None
        assert not made.done()
        gate.set_result(None)
        assert (await made).topics[0].error_code == 0
        assert node.publisher.image.topics.by_name("a") is not None
        refusal = Fenced("replaced")
        gate = asyncio.get_running_loop().create_future()
        gate.set_exception(refusal)
        with pytest.raises(Fenced):
            await create_topic(node, "b")
        assert failures == [refusal]
        assert node.publisher.image.topics.by_name("b") is None
        await node.close()
        again = await open_node(disk.restart(drop))
        assert again.publisher.image.topics.by_name("b") is not None
        await again.close()

    run(main())


def test_a_failed_write_ends_it() -> None:
    """The commands that waited fail, the app is told once, and nothing is taken any more."""

    async def main() -> None:
        disk = sim_disk()
        failures: list[BaseException] = []
        node = await open_node(disk, on_failed=failures.append)
        await Broker.register(node)
        disk.at_write(disk.write_count + 2, Fail())
        with pytest.raises(DiskFailed):
            await create_topic(node, "a")
        with pytest.raises(DiskFailed):
            await create_topic(node, "b")
        assert len(failures) == 1
        assert isinstance(failures[0], DiskFailed)
        assert node.publisher.image.topics.by_name("a") is None
        again = await open_node(disk.restart(drop))
        assert again.publisher.image.topics.by_name("a") is None
        await again.close()

    run(main())


async def fill_disk(disk: SimDisk, node: ControllerNode, room: int = 0) -> None:
    disk.capacity_bytes = disk.used_bytes() + room


def test_a_full_disk_takes_deletions_only() -> None:
    """The reserve makes room: what grows is refused in the reply, deletions pass, and with room all is well
    again."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk, expiry_interval_ms=10)
        await Broker.register(node)
        await create_topic(node, "old")
        await fill_disk(disk, node)
        first = await create_topic(
            node, "in-flight"
        )  # found the disk full, and was written into the reserve's room
        assert first.topics[0].error_code == 0
        assert "/data/metadata.reserve" not in disk.files
        refused = await create_topic(node, "more")
        assert refused.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "full" in (refused.topics[0].error_message or "")
        deleted = await node.channel.send(DeleteTopicsRequest([DeleteTopicState("old")]))
        assert deleted.responses[0].error_code == 0
        disk.capacity_bytes = 1 << 30
        async with asyncio.timeout(PATIENCE_S):
            while (await create_topic(node, "more")).topics[0].error_code:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await node.close()
        again = await open_node(disk.restart(drop))
        assert [topic.name for topic in again.publisher.image.topics] == ["in-flight", "more"]
        await again.close()

    run(main())


def test_a_disk_too_full_even_for_the_reserve() -> None:
    """What cannot be written fails and leaves no trace, and the node lives."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk, reserve_bytes=64)
        await Broker.register(node)
        await create_topic(node, "old")
        await fill_disk(disk, node)
        big = [asyncio.ensure_future(create_topic(node, f"big{n}", 100)) for n in range(3)]
        results = await asyncio.gather(*big, return_exceptions=True)
        assert all(isinstance(result, LogFull) for result in results)
        assert [topic.name for topic in node.publisher.image.topics] == ["old"]
        disk.capacity_bytes = 1 << 30
        await node.driver.reserve.hold_again()
        assert (await create_topic(node, "new")).topics[0].error_code == 0
        await node.close()
        again = await open_node(disk.restart(drop))
        assert [topic.name for topic in again.publisher.image.topics] == ["new", "old"]
        await again.close()

    run(main())


def test_snapshots_by_size_and_what_they_make_superfluous() -> None:
    """As the log grows snapshots are made; two stay, and the log from the older one on."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk, snapshot_bytes=3_000)
        await Broker.register(node)
        for number in range(60):
            await create_topic(node, f"topic-{number:04}", 2)
        await node.snapshot()
        snapshots = sorted(name for name in disk.files if name.endswith(".checkpoint"))
        segments = sorted(name for name in disk.files if name.endswith(".log"))
        assert len(snapshots) == 2
        assert int(segments[0].split("/")[-1][:20]) == int(snapshots[0].split("/")[-1][:20])
        image = node.publisher.image
        # No close: the next start has to make do with what lies there.
        again = await open_node(disk.restart(drop), snapshot_bytes=1 << 30)
        assert same(again.publisher.image, image)
        await again.close()

    run(main())


def test_snapshots_are_made_while_commands_never_cease() -> None:
    """Also where something is always proposed while something else is written."""

    async def main() -> None:
        disk = sim_disk(latency_s=0.002)
        node = await open_node(disk, snapshot_records=20)
        await Broker.register(node)

        async def create(client: int) -> None:
            for number in range(30):
                await create_topic(node, f"c{client}-{number}")
                await asyncio.sleep(0.0005 * client)

        creating = [asyncio.ensure_future(create(client)) for client in range(4)]
        await asyncio.wait(creating, return_when=asyncio.FIRST_COMPLETED)
        assert any(name.endswith(".checkpoint") for name in disk.files)
        await asyncio.gather(*creating)
        image = node.publisher.image
        # No close: the next start has to make do with what lies there.
        again = await open_node(disk.restart(drop), snapshot_records=20)
        assert same(again.publisher.image, image)
        await again.close()

    run(main())


def test_a_clean_shutdown_leaves_a_snapshot_where_it_is_worth_it() -> None:
    """Above a number of records the next start reads a snapshot instead of the log."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk, snapshot_records_at_close=50)
        await Broker.register(node)
        await node.close()
        assert not any(name.endswith(".checkpoint") for name in disk.files)
        node = await open_node(disk, snapshot_records_at_close=50)
        await create_topic(node, "t", 60)
        image = node.publisher.image
        await node.close()
        assert any(name.endswith(f"{image.offset:020}-{image.epoch:010}.checkpoint") for name in disk.files)
        again = await open_node(disk)
        assert same(again.publisher.image, image)
        await again.close()

    run(main())


def test_a_log_of_which_nothing_was_read_begins_at_its_end() -> None:
    """A node that was killed with a snapshot and an empty segment behind it, before the older segment went:
    of the epochs in that it knows nothing, so that who asks for what lies there is given the snapshot, and is
    not told that its log diverges."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        await Broker.register(node)
        await create_topic(node, "t", 3)
        await node.snapshot()
        offset, epoch = node.publisher.image.offset, node.publisher.image.epoch
        await node.close()
        assert f"{FOLDER}/00000000000000000000.log" in disk.files
        empty = await disk.open_log(f"{FOLDER}/{offset:020}.log")
        await empty.close()
        again = await ControllerNode.open(disk, HandClock(), Rand(b"1"), SETTINGS, send=lambda one: None)
        view = again.driver.raft.log
        assert (view.start, view.end, view.snapshot) == (offset, offset, (offset, epoch))
        assert view.check_fetch(offset - 1, epoch) == "snapshot"
        await again.close()

    run(main())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "footer"])
def test_a_bad_snapshot_falls_back_to_the_one_before(harm: str, count: int) -> None:
    """A snapshot that is not whole is not believed: the older one and the log behind it give the same image;
    and where none is older, the log from its beginning on."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        broker = await Broker.register(node)
        for name in ("a", "b", "c")[:count]:
            await broker.open(await broker.create(name, 2))
            await node.snapshot()
        await broker.create("d")
        image = node.publisher.image
        await node.close()
        newest = sorted(name for name in disk.files if name.endswith(".checkpoint"))[-1]
        damage(disk, newest, harm)
        again = await open_node(disk.restart(drop))
        assert same(again.publisher.image, image)
        await again.close()

    run(main())


def damage(disk: SimDisk, path: str, harm: str) -> None:
    for data in (disk.files[path].durable, disk.files[path].visible):
        if harm == "flip":
            data[len(data) // 2] ^= 0x10
        elif harm == "cut":
            del data[-5:]
        elif harm == "footer":
            del data[-78:]
        else:
            data.clear()


def test_without_any_whole_snapshot_it_refuses() -> None:
    """When the log no longer reaches back to the beginning, a bad snapshot is named in the refusal."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        await Broker.register(node)
        for name in ("a", "b", "c"):
            await create_topic(node, name)
            await node.snapshot()
        await node.close()
        snapshots = sorted(name for name in disk.files if name.endswith(".checkpoint"))
        for name in snapshots:
            damage(disk, name, "flip")
        with pytest.raises(SnapshotCorrupt) as caught:
            await open_node(disk.restart(drop))
        assert caught.value.path == snapshots[-1]

    run(main())


@pytest.mark.parametrize(
    ("is_whole", "why"), [(True, "before the snapshot at"), (False, "has no end, and all below offset")]
)
def test_a_snapshot_ahead_of_the_log_is_refused(is_whole: bool, why: str) -> None:
    """Records behind a snapshot may be gone with the log's end: that is said, not guessed. `is_whole`: what
    is left of the log."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        await Broker.register(node)
        size_bytes = node.log.size_bytes
        await create_topic(node, "a")
        await node.snapshot()
        await node.close()
        log = f"{FOLDER}/00000000000000000000.log"
        for data in (disk.files[log].durable, disk.files[log].visible):
            del data[size_bytes if is_whole else -3 :]
        with pytest.raises(LogCorrupt, match=why):
            await open_node(disk)

    run(main())


@pytest.mark.parametrize("starts", [0, 1])
def test_a_leaders_own_batches_are_no_torn_tail_where_one_behind_is_whole(starts: int) -> None:
    """A sector that holds zeros among what a leader has written: each of its batches had a sync of its own,
    so that what lies before a whole one of them was acknowledged. The start is refused, also where the next
    one has led meanwhile, and nothing is cut."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        await Broker.register(node)
        log = f"{FOLDER}/00000000000000000000.log"
        before = len(disk.files[log].durable)
        for name in ("a", "b", "c"):
            await create_topic(node, name, 20)
        await node.close()
        for _ in range(starts):
            await (await open_node(disk)).close()
        lost = -(-before // 512) * 512
        disk.zero(log, lost, lost + 512)
        whole = bytes(disk.files[log].durable)
        with pytest.raises(LogCorrupt, match="behind it is whole"):
            await open_node(disk)
        assert disk.files[log].durable == whole

    run(main())


def test_batches_of_a_quorum_of_one_are_no_torn_tail_though_the_next_start_was_cut() -> None:
    """The power goes at each write of a start, as where it has said that it stands for an epoch and has
    opened none; then a sector holds zeros among what the one before had written and acknowledged."""

    async def cut_at(number: int) -> bool:
        disk = sim_disk()
        node = await open_node(disk)
        await Broker.register(node)
        log = f"{FOLDER}/00000000000000000000.log"
        lost = -(-len(disk.files[log].durable) // 512) * 512
        for name in ("a", "b", "c"):
            await create_topic(node, name, 20)
        await node.close()
        disk = disk.restart(drop)
        disk.at_write(number, Cut())
        start = asyncio.ensure_future(open_node(disk))
        cut = asyncio.ensure_future(disk.was_cut.wait())
        await asyncio.wait([start, cut], return_when=asyncio.FIRST_COMPLETED)
        was_cut = disk.was_cut.is_set()
        if not was_cut:
            await start.result().close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        disk = disk.restart(drop)
        disk.zero(log, lost, lost + 512)
        with pytest.raises(LogCorrupt, match="behind it is whole"):
            await open_node(disk)
        return was_cut

    cuts = [run(cut_at(number)) for number in range(1, 8)]
    assert sum(cuts) >= 3


def test_a_clock_that_is_set_passes_no_deadline() -> None:
    """Prepared objects outlive a wall clock that jumps ahead; when their own time is up they are marked for
    deletion."""

    async def main() -> None:
        clock = HandClock()
        node = await open_node(sim_disk(), clock=clock, expiry_interval_ms=5, wall_jump_max_ms=1_000)
        broker = await Broker.register(node)
        long_lived, short_lived = await broker.prepare(ttl_ms=60_000), await broker.prepare(ttl_ms=500)
        clock.now_ms += 3_600_000

        def states() -> list[ObjectState]:
            objects = node.publisher.image.objects
            return [objects.by_id[ObjectId(i)].state for i in (long_lived, short_lived)]

        await eventually(lambda: states() == [ObjectState.PREPARED, ObjectState.PENDING_DELETION])
        objects = node.publisher.image.objects
        assert objects.by_id[ObjectId(short_lived)].time_ms == clock.now_ms
        await node.close()

    run(main())


def test_a_time_that_is_learnt_as_the_log_is_opened_holds_back_no_deadline() -> None:
    """The wall clock is hours behind what metadata tells: deadlines pass by the time at which the node began
    to lead."""

    async def main() -> None:
        clock, settings = HandClock(), replace(SETTINGS, expiry_interval_ms=5, wall_jump_max_ms=1_000)
        node = await ControllerNode.open(sim_disk(), clock, Rand(b"node"), settings)
        clock.now_ms += 5 * 3_600_000
        await node.start()
        object_id = await (await Broker.register(node)).prepare(ttl_ms=500)
        clock.now_ms += 600

        def state() -> ObjectState:
            return node.publisher.image.objects.by_id[ObjectId(object_id)].state

        await eventually(lambda: state() is ObjectState.PENDING_DELETION)
        await node.close()

    run(main())


def test_a_clock_that_went_back_keeps_no_node_out() -> None:
    """A node that was killed and starts ten years earlier is registered at once, above all its epochs, and
    its streams and ids go on."""

    async def main() -> None:
        disk, clock = sim_disk(), HandClock()
        node = await open_node(disk, clock=clock)
        broker = await Broker.register(node)
        opened = await broker.open(await broker.create("t"))
        prepared = await broker.prepare()
        await node.close()
        again = await open_node(disk.restart(drop), clock=HandClock(clock.now_ms - 10 * 365 * 86_400_000))
        later = await Broker.register(again, incarnation=2)
        assert later.epoch > broker.epoch
        response = await again.channel.send(GetOpeningStreamsRequest(NODE, later.epoch))
        assert [s.stream_id for s in response.streams] == [s.stream_id for s in opened.streams]
        stale = await again.channel.send(GetOpeningStreamsRequest(NODE, broker.epoch))
        assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
        assert await later.prepare() == prepared + 1
        assert again.publisher.image.objects.by_id[ObjectId(prepared)].state is ObjectState.PREPARED
        await again.close()

    run(main())


def test_describe_quorum() -> None:
    """One voter, the leader, at the end of the log; other topics are unknown."""

    async def main() -> None:
        clock = HandClock()
        node = await open_node(sim_disk(), clock=clock, endpoints=(("CONTROLLER", "localhost", 9093),))

        def asked(topic: str) -> DescribeQuorumRequest:
            partition = DescribeQuorumRequestPartitionData(0)
            return DescribeQuorumRequest([DescribeQuorumRequestTopicData(topic, [partition])])

        response = await node.channel.send(asked("__cluster_metadata"))
        partition = response.topics[0].partitions[0]
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, NODE, 1)
        assert partition.high_watermark == node.publisher.image.offset
        (voter,) = partition.current_voters
        assert (voter.replica_id, voter.log_end_offset) == (NODE, node.publisher.image.offset)
        assert voter.last_fetch_timestamp == voter.last_caught_up_timestamp == clock.now_ms
        assert uuid_bytes(node.meta.directory_id) == voter.replica_directory_id
        assert [(n.node_id, n.listeners[0].port) for n in response.nodes] == [(NODE, 9093)]
        other = (await node.channel.send(asked("t"))).topics[0].partitions[0]
        assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await node.close()

    run(main())


def test_the_lock_is_the_last_that_a_refused_first_start_takes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes the directory from then on loses nothing to it."""
    left: list[list[str]] = []
    remove = SimDisk.remove

    async def watched(disk: SimDisk, path: str) -> None:
        await remove(disk, path)
        left.append(await disk.list_folder("/data"))

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        await disk.write_file(f"/data/{LOCK_FILE}", b"")  # as a real disk's lock is
        monkeypatch.setattr(SimDisk, "remove", watched)
        await node.close(is_discarded=True)
        assert left[-2:] == [[LOCK_FILE], []]

    run(main())


def test_a_log_that_another_start_made_before_the_lock_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made between our first look and our lock: it is gone on with, and whoever gives up takes nothing
    of it back."""

    async def main() -> None:
        other = await open_node(sim_disk())
        made = dict(other.disk.files)  # type: ignore[attr-defined]
        await other.close()
        disk = sim_disk()
        lock = SimDisk.lock

        def late(disk: SimDisk, path: str) -> DiskLock:
            disk.files |= made
            return lock(disk, path)

        monkeypatch.setattr(SimDisk, "lock", late)
        node = await open_node(disk)
        assert (node.is_new, node.cluster_id) == (False, other.cluster_id)
        await node.close(is_discarded=True)
        assert set(made) <= set(disk.files)

    run(main())
