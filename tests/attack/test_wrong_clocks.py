"""A live broker whose clock is wrong when it starts: nothing is deleted before its time, and what says that
the clock is right lets it go."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from millrace.broker.identity.known_time import NEWEST
from millrace.broker.identity.known_time_text import decode_time, encode_time
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tests.live import LiveBroker
from tests.live.client import EARLIEST, Client
from tests.live.cluster import LiveCluster
from tests.live.s3_server import S3Server
from tests.live.shifted import ShiftedBroker
from tests.patience import until

DAY_MS = 86_400_000
ROUND_S = 0.1
ROUNDS = 8
SETTINGS = {
    "log.retention.check.interval.ms": str(int(ROUND_S * 1000)),
    "offsets.retention.check.interval.ms": str(int(ROUND_S * 1000)),
    "s3.wal.upload.interval.ms": "200",
    "s3.object.delete.retention.minutes": "0",
    "offsets.topic.num.partitions": "1",
}
COORDINATOR_MOVES = (14, 15, 16)  # and loads


def commit(client: Client, offset: int) -> None:
    topics = [OffsetCommitRequestTopic("kept", partitions=[OffsetCommitRequestPartition(0, offset)])]

    client.ask(
        "FindCoordinator", FindCoordinatorRequest(coordinator_keys=["group"]), 4
    )  # makes the offsets' topic

    def is_taken() -> bool:
        answer = client.ask("OffsetCommit", OffsetCommitRequest("group", topics=topics), 7)
        code = int(answer.topics[0].partitions[0].error_code)
        assert code in (0, *COORDINATOR_MOVES), code
        return code == 0

    until(is_taken)


def committed(client: Client) -> int:
    """-1: none."""
    found = -1

    def is_told() -> bool:
        nonlocal found
        topics = [OffsetFetchRequestTopic("kept", [0])]
        answer = client.ask("OffsetFetch", OffsetFetchRequest("group", topics), 5)
        if answer.error_code in COORDINATOR_MOVES:
            return False
        found = int(answer.topics[0].partitions[0].committed_offset)
        return True

    until(is_told)
    return found


def rounds() -> None:
    """Of retention, as many as a fault would need."""
    time.sleep(ROUNDS * ROUND_S)


def fill(broker: LiveBroker) -> None:
    """A topic kept for the default of seven days, whose records are in objects, and a group's offset."""
    with Client(broker.address) as client:
        client.create("kept", segment_ms=1)
        client.create("stamped", message_timestamp_type="LogAppendTime")
        for number in range(3):
            client.produce("kept", [b"%d" % number])
        commit(client, 2)
    assert broker.stop() == 0


def kept(broker: LiveBroker) -> tuple[int, list[bytes], int]:
    """Where the log starts, what it holds, and the group's offset."""
    with Client(broker.address) as client:
        return (
            client.offset("kept", EARLIEST),
            client.read("kept", start=client.offset("kept", EARLIEST)),
            committed(client),
        )


ALL = (0, [b"0", b"1", b"2"], 2)


def clock_text(broker: LiveBroker) -> Callable[[], bool]:
    return lambda: "retention by time is suspended" in broker.log_path.read_text()


def is_doubted(node: LiveBroker) -> Callable[[], bool]:
    return lambda: node.metrics().get("millrace_clock_ahead_seconds", 0) > 3600


def test_a_start_eight_days_ahead_deletes_nothing(tmp_path: Path) -> None:
    """Objects in a directory, so nobody tells the time: not at this start, nor at the next, until the
    operator confirms."""
    with ShiftedBroker(tmp_path, SETTINGS, wal="64MiB", is_warm=True) as broker:
        fill(broker)
        broker.shift(8 * DAY_MS)
        for _ in range(2):
            broker.start()
            assert clock_text(broker)()
            assert broker.metrics()["millrace_clock_ahead_seconds"] > 7.9 * 86_400
            rounds()
            assert kept(broker) == ALL
            assert broker.stop() == 0
        broker.confirm_clock()
        broker.start()
        with Client(broker.address) as client:
            until(lambda: client.offset("kept", EARLIEST) == 3)
            until(lambda: committed(client) == -1)
        assert broker.metrics()["millrace_clock_ahead_seconds"] == 0
    print(
        f"eight days ahead over two starts and {2 * ROUNDS} rounds: 3 of 3 records and the group's offset "
        "kept"
    )


def test_a_bucket_confirms_or_denies_the_clock(tmp_path: Path) -> None:
    """A real S3 server tells the time: a start eight days ahead deletes nothing, one that was off for as long
    deletes at once."""
    with S3Server(tmp_path / "s3") as server:
        server.make("lake")
        overrides = {**SETTINGS, "s3.data.buckets": server.address("lake")}
        with ShiftedBroker(tmp_path / "broker", overrides, wal="64MiB", is_warm=True) as broker:
            fill(broker)
            broker.shift(8 * DAY_MS)
            broker.start()
            rounds()
            assert kept(broker) == ALL
            assert broker.stop() == 0
            newest = tmp_path / "broker" / "data" / "metadata" / NEWEST
            assert (decode_time(newest.read_bytes()) or 0) < (time.time() + 3600) * 1000
            broker.shift(0)
            newest.write_bytes(encode_time(int(time.time() * 1000) - 8 * DAY_MS))
            broker.start()
            assert broker.metrics()["millrace_clock_ahead_seconds"] == 0
            with Client(broker.address) as client:
                client.create("old")
                client.produce("old", [b"old"], time_ms=int(time.time() * 1000) - 8 * DAY_MS)
                until(lambda: client.offset("old", EARLIEST) == 1)
            assert kept(broker) == ALL
    print("a bucket's clock denied eight days ahead, and confirmed eight days off")


def test_what_is_written_while_the_clock_is_behind_is_not_old_when_it_is_right(tmp_path: Path) -> None:
    """A board starts in 1970 and its clock is set minutes later: what the broker stamped meanwhile stays, in
    order."""
    with ShiftedBroker(tmp_path, SETTINGS, wal="64MiB", is_warm=True) as broker:
        fill(broker)
        before_ms = int(time.time() * 1000)
        broker.shift(-before_ms + 60_000)
        broker.start()
        with Client(broker.address) as client:
            stamped_ms = client.send("stamped", [b"x"], time_ms=0).log_append_time_ms
            client.produce("kept", [b"3"], time_ms=-1)
            assert broker.metrics()["millrace_clock_behind_seconds"] > 365 * 86_400
        assert before_ms - 60_000 < stamped_ms < before_ms + 600_000
        broker.shift(0)
        rounds()
        with Client(broker.address) as client:
            assert client.offset("stamped", EARLIEST) == 0
            assert client.send("stamped", [b"y"]).log_append_time_ms >= stamped_ms
            assert client.read("kept") == [b"0", b"1", b"2", b"3"]
            assert committed(client) == 2
    print(f"a start in 1970: records stamped {stamped_ms - before_ms} ms from the true time, all kept")


def test_a_new_broker_of_a_cluster_whose_clock_is_behind_stamps_nothing_old(tmp_path: Path) -> None:
    """The metadata that it fetches tells the time: what it stamps is not found too old by the next leader of
    the partition, whose clock is right."""
    with LiveCluster(tmp_path, controllers=1, brokers=1, overrides=SETTINGS) as cluster:
        right = cluster.brokers[101]
        late = ShiftedBroker(tmp_path / "broker102", cluster.settings_of(102), wal="64MiB")
        late.folder.mkdir()
        late.shift(-8 * DAY_MS)
        cluster.brokers[102] = late
        before_ms = int(time.time() * 1000)
        late.start()
        with Client(right.address) as client, Client(late.address) as at_late:
            client.create("stamped", message_timestamp_type="LogAppendTime", segment_ms=1)
            told: list[int] = []

            def is_stamped() -> bool:
                answer = at_late.send("stamped", [b"x"])
                told.append(answer.log_append_time_ms)
                return not answer.error_code

            client.move("stamped", [0], 102)
            until(is_stamped, "it does not lead")
            client.move("stamped", [0], 101)
            until(lambda: not client.send("stamped", [b"y"]).error_code, "it does not lead")
            rounds()
            assert client.offset("stamped", EARLIEST) == 0
            assert client.read("stamped") == [b"x", b"y"]
        assert before_ms - 3_600_000 < told[-1] < before_ms + 3_600_000
        assert late.metrics()["millrace_clock_behind_seconds"] > 7.9 * 86_400
    print(f"a new broker eight days behind stamped {told[-1] - before_ms} ms from the true time")


def test_a_members_bucket_denies_a_clock_that_is_twenty_hours_ahead(tmp_path: Path) -> None:
    """Less than a node may have been off unnoticed: it is asked before the clock is believed, by a controller
    and by a broker."""
    hours_ms = 20 * 3_600_000
    with S3Server(tmp_path / "s3") as server:
        server.make("lake")
        overrides = {**SETTINGS, "s3.data.buckets": server.address("lake")}
        cluster = LiveCluster(tmp_path, controllers=1, brokers=1, overrides=overrides)
        controller = ShiftedBroker(tmp_path / "controller1", cluster.quorum.settings_of(1))
        broker = ShiftedBroker(tmp_path / "broker101", cluster.settings_of(101), wal="64MiB")
        cluster.quorum.nodes[1], cluster.brokers[101] = controller, broker
        with cluster:
            for node in (broker, controller):
                assert node.stop() == 0
                node.shift(hours_ms)
            for node in (controller, broker):
                node.start()
            kept_ms = [decode_time(path.read_bytes()) or 0 for path in sorted(tmp_path.rglob(NEWEST))]
            assert len(kept_ms) == 2
            ahead_ms = [ms - int(time.time() * 1000) for ms in kept_ms]
            assert all(ms < 3_600_000 for ms in ahead_ms), ahead_ms
            for node in (controller, broker):
                until(is_doubted(node), "its pages do not say that its clock is doubted")
    print(f"a bucket's clock denied twenty hours ahead: kept are times {ahead_ms} ms from the true one")


def test_a_new_broker_of_a_cluster_that_was_quiet_for_days_believes_its_clock(tmp_path: Path) -> None:
    """The newest that is committed is three days old, and the clock of who leads was confirmed since: it
    stamps the registration."""
    with LiveCluster(tmp_path, controllers=1, brokers=1, overrides=SETTINGS) as cluster:
        controller = ShiftedBroker(tmp_path / "controller1", cluster.quorum.settings_of(1))
        assert cluster.brokers[101].stop() == 0
        assert cluster.quorum.nodes[1].stop() == 0
        cluster.quorum.nodes[1] = controller
        controller.shift(3 * DAY_MS)
        controller.start()
        until(is_doubted(controller), "its clock is believed")
        controller.confirm_clock()
        until(lambda: not is_doubted(controller)(), "the word is not taken")
        new = ShiftedBroker(tmp_path / "broker102", cluster.settings_of(102), wal="64MiB")
        new.folder.mkdir()
        new.shift(3 * DAY_MS)
        cluster.brokers[102] = new
        new.start()
        assert new.metrics()["millrace_clock_ahead_seconds"] == 0
    print("a new broker of a cluster that had written nothing for three days: its clock is believed")
