"""Two nodes from one disk and one bucket: at most one goes on, what it wrote is never another's, and no
object is overwritten."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.broker.identity.ownership import HALT_MS
from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_request
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.attack import IS_FULL
from tests.live import LiveBroker, free_port
from tests.live.client import Client
from tests.live.cluster import LiveControllers, logged
from tests.live.s3_server import S3Server
from tests.patience import until

END_S = 10.0  # what is promised; in the suite the machine may be as busy as it likes
TRIES = 10


class Pair:
    """`first` runs and is cloned to `second`, which has a disk of its own and the same bucket."""

    def __init__(self, folder: Path, bucket: str, objects: Path, upload_ms: int = 600_000) -> None:
        self.objects = objects
        overrides = {"s3.data.buckets": bucket, "s3.wal.upload.interval.ms": str(upload_ms)}
        self.first = LiveBroker(folder / "first", overrides, wal="16MiB", is_warm=True)
        self.second = LiveBroker(folder / "second", overrides, wal="16MiB", is_warm=True)
        self.seen: dict[str, str] = {}
        self.sent: list[bytes] = []

    def clone(self) -> None:
        """The first one's disk as it is now, whole, while it runs."""
        shutil.copytree(self.first.folder / "data", self.second.folder / "data")

    def produce(self, broker: LiveBroker, name: str, count: int = 20) -> None:
        with Client(broker.address) as client:
            for number in range(count):
                value = f"{name} {number}".encode() * 20
                client.produce("t", [value])
                self.sent.append(value)

    def check_objects(self) -> None:
        """Whatever was in the bucket at an earlier look and is there still has the same bytes."""
        found = {
            str(path.relative_to(self.objects)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.objects.rglob("*")
            if path.is_file() and not {".new", ".versitygw"} & set(path.relative_to(self.objects).parts)
        }
        changed = [key for key, digest in found.items() if self.seen.get(key, digest) != digest]
        assert changed == []
        self.seen |= found

    def data_objects(self) -> list[Path]:
        return [one for one in self.objects.rglob("*") if one.is_file() and one.parts[-3] == "objects"]

    def check_records(self, broker: LiveBroker) -> None:
        """All that was acknowledged, and nothing else, from caches and from objects."""
        with Client(broker.address) as client:
            assert client.read("t") == self.sent
        if not IS_FULL and broker is self.first:
            return
        with broker.cold_reads(), Client(broker.address) as client:
            assert client.read("t") == self.sent

    def close(self) -> None:
        for broker in (self.first, self.second):
            broker.kill()


def said(broker: LiveBroker) -> str:
    return broker.log_path.read_text()


def check_refused(broker: LiveBroker) -> None:
    """A start that knows nothing of the newest claim: a sentence with the remedy, and its disk is as it
    was."""
    before = contents_of(broker.folder / "data" / "metadata")
    broker.begin()
    assert broker.wait_end() == 1
    knows_nothing = "of which this metadata log knows nothing" in said(broker)
    is_older = "the metadata log is older than" in said(
        broker
    )  # what the bucket has of the metadata tells it, too
    assert knows_nothing or is_older, said(broker)[-2000:]
    assert "(log.dirs)" in said(broker)
    assert contents_of(broker.folder / "data" / "metadata") == before


def contents_of(folder: Path) -> dict[str, bytes]:
    skipped = (".lock", "metadata.reserve")
    return {
        str(one): one.read_bytes() for one in folder.rglob("*") if one.is_file() and one.name not in skipped
    }


def clone_takes_over(pair: Pair) -> float:
    """How long the first one lived beside its clone, in seconds from when that was ready."""
    first, second = pair.first, pair.second
    first.start()
    with Client(first.address) as client:
        client.create("t")
    pair.produce(first, "before")
    if IS_FULL:
        first.restart()  # an orderly stop: all is in objects, claims were released
    pair.produce(first, "in the log")
    pair.check_objects()
    pair.clone()
    kept = list(pair.sent)
    second.start()
    ready = time.monotonic()
    with contextlib.suppress(OSError, AssertionError):  # it may have looked by now
        pair.produce(first, "of the replaced", 5)
    pair.sent = kept
    pair.produce(second, "of the winner")
    assert first.wait_end() == 1
    lived_s = time.monotonic() - ready
    assert "has taken" in said(first)
    assert " records (" in said(first)
    assert "t-0 [" in said(first)
    pair.check_objects()
    check_refused(first)
    pair.check_objects()
    if IS_FULL:
        second.kill()
        second.start()  # kill -9 and instant restart of the winner
    pair.check_records(second)
    pair.check_objects()
    return lived_s


def clone_comes_late(pair: Pair) -> None:
    """The first one was started again since the clone was taken: the clone is refused, and the first one goes
    on."""
    first, second = pair.first, pair.second
    first.start()
    with Client(first.address) as client:
        client.create("t")
    pair.produce(first, "before")
    pair.clone()
    first.kill()
    first.start()
    pair.produce(first, "after")
    pair.check_objects()
    check_refused(second)
    pair.check_objects()
    pair.check_records(first)


def replaced_after_a_put(folder: Path) -> Pair | None:
    """The first one has ended, and put an object after its clone was ready; None if it looked before that."""
    pair = Pair(folder, f"0@file://{folder}/objects", folder / "objects", upload_ms=100)
    first, second = pair.first, pair.second
    try:
        first.start()
        with Client(first.address) as client:
            client.create("t")
        pair.produce(first, "before")
        until(lambda: first.metrics()["millrace_wal_used_bytes"] == 0)
        pair.clone()
        second.start()
        before = len(pair.data_objects())
        with contextlib.suppress(OSError, AssertionError), Client(first.address) as client:
            client.create("replaced")
            client.produce("t", [b"of the replaced"])
        assert first.wait_end() == 1
    except BaseException:
        pair.close()
        raise
    if len(pair.data_objects()) == before + 1:
        return pair
    pair.close()
    return None


@pytest.mark.parametrize("is_idle", [False, True])
def test_what_a_replaced_node_put_last_stops_nobody(tmp_path: Path, is_idle: bool) -> None:
    """Before it looks it makes a topic and uploads an object, under an id that its clone gives too: the clone
    goes on under the next one, and starts again, before it gave that id (idle) as behind it, though the
    bucket holds more metadata and objects than it has itself."""
    pair = next(pair for number in range(TRIES) if (pair := replaced_after_a_put(tmp_path / str(number))))
    second = pair.second
    try:
        pair.check_objects()
        if not is_idle:
            pair.produce(second, "of the winner")
            until(lambda: second.metrics()["millrace_wal_used_bytes"] == 0)
            assert "which this process has replaced" in said(second)
        second.kill()
        second.start()
        assert ("which was replaced: it is passed over" in said(second)) is is_idle
        pair.produce(second, "behind it")
        pair.check_records(second)
        pair.check_objects()
    finally:
        pair.close()


def test_a_halted_node_acknowledges_nothing_when_it_goes_on(tmp_path: Path) -> None:
    """It is stopped with producers at its door, and cloned; the clone takes over. Once it goes on it answers
    no producer and makes no topic, and ends; the clone has all that was acknowledged before."""
    pair = Pair(tmp_path, f"0@file://{tmp_path}/objects", tmp_path / "objects")
    first, second = pair.first, pair.second
    clients: list[Client] = []
    try:
        first.start()
        clients += [Client(first.address) for _ in range(5)]
        *producers, maker = clients
        maker.create("t")
        pair.produce(first, "before")
        os.kill(first.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        pair.clone()
        second.start()
        for number, client in enumerate(producers):
            client.begin_send("t", [b"of the halted %d" % number])
        making = CreateTopicsRequest([CreatableTopic("late", 1, 1)], 10_000)
        version = NAMED["CreateTopics"].max_stable_version
        maker.socket.sendall(encode_request(NAMED["CreateTopics"], version, 1, "live", making))
        time.sleep(
            max(0.0, stopped + HALT_MS / 1000 + 0.1 - time.monotonic())
        )  # what was stopped for less holds nothing
        os.kill(first.pid, signal.SIGCONT)
        acknowledged = 0
        for client in producers:
            with contextlib.suppress(OSError):
                acknowledged += client.end_send().error_code == 0
        assert acknowledged == 0
        with contextlib.suppress(OSError):
            assert maker.take_answer("CreateTopics", version).topics[0].error_code != 0
        assert first.wait_end() == 1
        assert "stood still for" in said(first)
        assert "has taken" in said(first)
        pair.produce(second, "of the winner")
        pair.check_records(second)
        pair.check_objects()
    finally:
        for client in clients:
            client.socket.close()
        pair.close()


@pytest.mark.parametrize("store", ["directory", "S3"] if IS_FULL else ["S3"])
def test_two_nodes_from_one_disk(tmp_path: Path, store: str) -> None:
    """Whichever comes second by the claims is refused, or the first ends with what only its log holds; all
    that the winner acknowledged is there, and every object has the bytes that it was given."""
    with S3Server(tmp_path / "s3") as server:
        places: list[Pair] = []
        for name in ("over", "late") * (4 if IS_FULL else 1):
            bucket = f"{name}-{len(places)}"
            if store == "S3":
                server.make(bucket)
                address, objects = server.address(bucket), server.folder / "buckets" / bucket
            else:
                objects = tmp_path / bucket / "objects"
                address = f"0@file://{objects}"
            places.append(Pair(tmp_path / bucket, address, objects))
        try:
            with ThreadPoolExecutor(len(places)) as threads:
                over = [threads.submit(clone_takes_over, pair) for pair in places[::2]]
                late = [threads.submit(clone_comes_late, pair) for pair in places[1::2]]
                lived_s = max(one.result() for one in over)
                for one in late:
                    one.result()
        finally:
            for pair in places:
                pair.close()
    print(f"{store}: a replaced node ended {lived_s:.1f} s after its clone was ready, at most")
    assert lived_s < END_S or not IS_FULL


def test_a_copy_of_a_voter_is_told_of_by_who_leads(tmp_path: Path) -> None:
    """It counts as the voter, and nothing that lies in it says that it is a copy."""
    with LiveControllers(tmp_path, 3) as quorum:
        leader = quorum.leader()
        copied = next(node_id for node_id in quorum.nodes if node_id != leader)
        elsewhere = {"listeners": f"CONTROLLER://127.0.0.1:{free_port()}"}
        data = quorum.nodes[copied].folder / "data"
        shutil.copytree(data, tmp_path / "copy" / "data")
        with LiveBroker(tmp_path / "copy", {**quorum.settings_of(copied), **elsewhere}):
            told = f"two processes fetch as node {copied} with directory "
            until(lambda: logged(quorum.nodes[leader], told), "not told")
