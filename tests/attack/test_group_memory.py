"""Clients that make groups without end: memory stays bounded, groups that exist go on, and others make
theirs."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from pathlib import Path

from millrace.protocol.apis import API
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.attack import IS_FULL, SLACK
from tests.attack.bystander import Bystander
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.test_s3_lacking import running
from tests.patience import PATIENCE_S

VERSION = 9
MIB = 1 << 20
STATES_MIB = 16 if IS_FULL else 4
ONCE_BYTES = 9 * MIB // 2  # what a busy machine takes once, beyond what the first groups made it take
CONNECTIONS = 40
SEEN_FIRST = 10 * CONNECTIONS  # groups: connections, buffers and the log have their size then
# A 32nd part of the log is kept for groups; a commit that is alone in its WAL write takes 4 KiB.
AWAY_WAL_MIB = 160 if IS_FULL else 24
AWAY_COMMITS = 1000 if IS_FULL else 100
REFUSED = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class Commits:
    """Commits one offset of many groups each, over many connections at a time."""

    def __init__(self, broker: LiveBroker, from_address: str) -> None:
        place = "127.0.0.1", broker.port
        self._sockets = [
            socket.create_connection(place, PATIENCE_S, (from_address, 0)) for _ in range(CONNECTIONS)
        ]
        self._files = [one.makefile("rb") for one in self._sockets]

    def commit(self, groups: list[str], offset: int, partition: int = 0) -> Counter[tuple[int, int]]:
        """How many had which error code and throttle time."""
        found: Counter[tuple[int, int]] = Counter()
        for first in range(0, len(groups), CONNECTIONS):
            part = groups[first : first + CONNECTIONS]
            for one, group in zip(self._sockets, part, strict=False):
                one.sendall(
                    encode_request(API[8], VERSION, 1, "flood", commit_request(group, offset, partition))
                )
            for file, _ in zip(self._files, part, strict=False):
                (length,) = struct.unpack(">i", file.read(4))
                response = decode_response(API[8], VERSION, file.read(length))[1]
                found[response.topics[0].partitions[0].error_code, response.throttle_time_ms] += 1
        return found


def commit_request(group: str, offset: int, partition: int = 0) -> OffsetCommitRequest:
    topics = [
        OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(partition, offset, -1, "")])
    ]
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)


def commit_once(client: Client) -> None:
    response = client.ask("OffsetCommit", commit_request("steady", 1), VERSION)
    assert response.topics[0].partitions[0].error_code == 0, response


def test_groups_of_one_offset_fill_no_memory(tmp_path: Path) -> None:
    """One address makes groups until it is refused, and goes on asking: with a code for "ask again" and a
    time to wait. A group that was there commits meanwhile, so do those that were taken, and another address
    makes new ones; all are there after a kill. The process grows by what is charged, a quarter of it for the
    allocator, and what comes once, at most."""
    settings = {
        "states.memory.max.bytes": f"{STATES_MIB}MiB",
        "memory.max.bytes": "128MiB",
        "offsets.topic.num.partitions": "4",
    }
    with LiveBroker(tmp_path, settings, wal="64MiB") as broker:
        with Client(broker.address) as client:
            client.create("t")
            wait_for_coordinator(client)
            commit_once(client)
        flood, other = Commits(broker, "127.0.0.2"), Commits(broker, "127.0.0.3")
        groups = [f"group-{number}" for number in range(1000 * STATES_MIB)]
        with Bystander(broker, commit_once) as bystander:
            found = flood.commit(groups[:SEEN_FIRST], 1)
            before_bytes = broker.memory_bytes()
            already_bytes = broker.metrics()["millrace_states_memory_bytes"]
            found += flood.commit(groups[SEEN_FIRST:], 1)
            bystander.check_served()
            grown_bytes = broker.memory_bytes() - before_bytes
            charged_bytes = broker.metrics()["millrace_states_memory_bytes"] - already_bytes
        assert grown_bytes <= 1.25 * charged_bytes + ONCE_BYTES, (
            f"{grown_bytes / MIB:.1f} MiB for {charged_bytes / MIB:.1f}"
        )
        assert set(found) == {(0, 0), (REFUSED, 1000)}
        taken = found[0, 0]
        assert 300 * STATES_MIB < taken < 700 * STATES_MIB
        assert flood.commit(groups[:200], 2) == {(0, 0): 200}
        assert other.commit([f"other-{number}" for number in range(30 * STATES_MIB)], 1) == {
            (0, 0): 30 * STATES_MIB
        }
        assert broker.metrics()["millrace_states_memory_bytes"] < STATES_MIB * MIB
        assert "127.0.0.2 is refused a group" in broker.log_path.read_text()
        broker.kill()
        broker.start()
        again = Commits(broker, "127.0.0.2")
        assert again.commit(groups[:200], 3) == {(0, 0): 200}
        with Client(broker.address) as client:
            commit_once(client)
        print(
            f"{taken} of {len(groups)} groups taken, {charged_bytes / MIB:.1f} of {STATES_MIB} MiB charged, "
            "the process "
            f"{grown_bytes / MIB:.1f} MiB larger; the slowest commit of another group "
            f"{bystander.slowest_s * 1000:.0f} ms"
        )
        assert bystander.slowest_s < 2 * SLACK


def wait_for_coordinator(client: Client) -> None:
    """The internal topic is made when it is first asked for."""
    deadline = time.monotonic() + PATIENCE_S
    while client.ask("FindCoordinator", FindCoordinatorRequest(key="g", key_type=0), 3).error_code:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_groups_commit_while_the_store_is_away(tmp_path: Path) -> None:
    """Producers have filled all room and are told to come again: a group commits all the while, at once, as
    often as what is kept for groups lasts, and when the store is back everybody goes on."""
    with running() as store:
        settings = {
            "s3.data.buckets": store.address,
            "memory.max.bytes": "512MiB" if IS_FULL else "128MiB",
            "s3.wal.upload.interval.ms": "200",
        }
        with (
            LiveBroker(tmp_path, settings, wal=f"{AWAY_WAL_MIB}MiB", is_warm=True) as broker,
            Client(broker.address) as client,
        ):
            client.create("t")
            wait_for_coordinator(client)
            commit_once(client)
            store.faults.add("away")
            taken = 0
            while (code := client.send("t", [bytes(500_000)], timeout_ms=1000).error_code) == 0:
                taken += 1
                assert taken < 4 * AWAY_WAL_MIB
            assert code == ErrorCode.REQUEST_TIMED_OUT
            with Client(broker.address) as waiting, Bystander(broker, commit_once) as bystander:
                waiting.begin_send("t", [bytes(500_000)], timeout_ms=60_000)
                bystander.sees_answers(AWAY_COMMITS)
                slowest_s = bystander.slowest_s
                store.faults.clear()
                assert waiting.end_send().error_code == 0
            print(
                f"{taken} batches filled the room; {AWAY_COMMITS} commits while a producer waited, "
                f"the slowest {slowest_s * 1000:.0f} ms"
            )
            assert slowest_s < 2 * SLACK
