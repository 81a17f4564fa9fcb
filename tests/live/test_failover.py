"""Brokers as real processes: one that is gone is recovered by another, one that ends hands over first, and a
partition that is moved goes on elsewhere. What was acknowledged is there once, and in order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from millrace.runtime.objectstore.folder import NEW_FOLDER
from millrace.wal.block.layout import choose_device_header
from tests.live import LiveBroker, warm
from tests.live.barred import Barred
from tests.live.client import Client
from tests.live.cluster import CLUSTER, FIRST_BROKER, LiveCluster, LiveNodes, logged
from tests.live.s3_server import S3Server
from tests.live.slow_proxy import SlowProxy
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders, producer, read_all
from tests.live.test_controllers import QUICK
from tests.live.test_damage import flip
from tests.patience import until

SECOND = FIRST_BROKER + 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, 1, 3, QUICK) as started:
        with Client(started.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        yield started


def values(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def send(cluster: LiveNodes, records: list[bytes]) -> None:
    """All are acknowledged on return."""
    sender = producer(cluster, retries=100, max_block_ms=60_000)
    try:
        sent = [sender.send(TOPIC, value, partition=int(value) % PARTITIONS) for value in records]
        for one in sent:
            one.get(60)
    finally:
        sender.close()


def check_all(cluster: LiveNodes, records: list[bytes]) -> None:
    found = read_all(cluster, len(records))
    assert sorted(found) == records
    for index in range(PARTITIONS):
        of_partition = [value for value in found if int(value) % PARTITIONS == index]
        assert of_partition == sorted(of_partition), index


def moved_from(cluster: LiveNodes, gone: int) -> bool:
    witness = next(broker for node_id, broker in cluster.brokers.items() if node_id != gone)
    return not {gone, -1} & {*leaders(witness).values()}


def test_what_a_killed_broker_acknowledged_is_recovered_by_another(cluster: LiveCluster) -> None:
    """And the killed one comes back, leads nothing that it led, and serves."""
    send(cluster, values(0, 300))
    victim = cluster.brokers[SECOND]
    victim.kill()
    began = time.monotonic()
    until(lambda: moved_from(cluster, SECOND), "its partitions are not led by others")
    print(f"led by others {time.monotonic() - began:.2f} s after the kill")
    del cluster.brokers[SECOND]
    send(cluster, values(300, 300))
    check_all(cluster, values(0, 600))
    cluster.brokers[SECOND] = victim.restart()
    send(cluster, values(600, 60))
    check_all(cluster, values(0, 660))


def test_a_start_beside_a_recovery_goes_on_in_its_process(tmp_path: Path) -> None:
    """It stands still where it has seen that nobody recovers its log, until another has opened that, who then
    stands still for a while. The starting broker's store is slow, so that it is met there."""
    with S3Server(tmp_path / "s3") as server, SlowProxy(server.port) as proxy:
        server.make("lake")
        address = server.address("lake")
        with LiveCluster(tmp_path, 1, 3, {**QUICK, "s3.data.buckets": address}) as cluster:
            with Client(cluster.addresses[0]) as client:
                client.create(TOPIC, PARTITIONS)
            send(cluster, values(0, 300))
            victim = cluster.brokers.pop(SECOND)
            victim.kill()
            victim.override({"s3.data.buckets": proxy.slow(address)})
            halt_before_its_look(victim)
            begun: list[LiveBroker] = []
            wal = str(victim.folder / "data" / "wal")

            def is_begun() -> bool:
                begun[:] = [one for one in cluster.brokers.values() if has_open(one, wal)]
                return bool(begun)

            try:
                until(is_begun, "nobody recovers it", pause_s=0.002)
                os.kill(begun[0].pid, signal.SIGSTOP)
            finally:
                os.kill(victim.pid, signal.SIGCONT)
            time.sleep(1.5)
            os.kill(begun[0].pid, signal.SIGCONT)
            cluster.brokers[SECOND] = victim.wait_ready()
            send(cluster, values(300, 60))
            check_all(cluster, values(0, 360))


def test_a_start_waits_for_one_that_stands_still_with_its_log_open(tmp_path: Path) -> None:
    """Who was to recover the log has begun, stands still, and is fenced by now: it has the log's lock. The
    start says for whom it waits, and goes on in its process when that one has ended."""
    with LiveCluster(tmp_path, 1, 2, QUICK) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        send(cluster, values(0, 300))
        puts = Barred(tmp_path, NEW_FOLDER)
        puts.bar()
        victim = cluster.brokers.pop(SECOND)
        victim.kill()
        (other,) = cluster.brokers.values()
        wal = str(victim.folder / "data" / "wal")
        until(lambda: is_halted_with(other, wal), "nobody recovers it", pause_s=0.002)
        puts.lift()
        (controller,) = cluster.quorum.nodes.values()
        until(lambda: logged(controller, f"broker {FIRST_BROKER} is fenced"), "it is not missed")
        victim.begin()
        waits = f"waiting for broker {FIRST_BROKER}, which has this broker's write-ahead log open"
        until(lambda: logged(victim, waits), "it waits for nobody")
        time.sleep(3)
        assert victim.is_running()
        assert len(re.findall(f"{waits}.*: continue it", victim.log_path.read_text())) == 1
        other.kill()
        cluster.brokers[SECOND] = victim.wait_ready()
        other.begin()
        other.wait_ready()
        send(cluster, values(300, 60))
        check_all(cluster, values(0, 360))


def has_open(broker: LiveBroker, path: str) -> bool:
    files = Path(f"/proc/{broker.pid}/fd")
    return any(os.path.realpath(file) == path for file in files.iterdir())


def is_halted_with(broker: LiveBroker, path: str) -> bool:
    """Halts it where it has the file open; where it has closed that meanwhile, it goes on."""
    if not has_open(broker, path):
        return False
    os.kill(broker.pid, signal.SIGSTOP)
    if not has_open(broker, path):
        os.kill(broker.pid, signal.SIGCONT)
        return False
    return True


def is_told(broker: LiveBroker, from_bytes: int, what: str) -> bool:
    return what.encode() in broker.log_path.read_bytes()[from_bytes:]


def halt_before_its_look(victim: LiveBroker) -> None:
    """On return its process is stopped, and not registered. Where it came further it is started again."""
    for _ in range(10):
        told = partial(is_told, victim, victim.log_path.stat().st_size)
        victim.begin()
        until(partial(told, f"cluster {CLUSTER}"), "it joins nothing", pause_s=0.002)
        os.kill(victim.pid, signal.SIGSTOP)
        if not told("registered in epoch"):
            return
        victim.kill()
    raise AssertionError("it was never met before it registered")


def test_a_broker_that_ends_hands_over_first(cluster: LiveCluster) -> None:
    """Its streams are closed before it goes, so that nothing is recovered, and nobody waits for a session."""
    send(cluster, values(0, 120))
    began = time.monotonic()
    assert cluster.brokers[SECOND].stop() == 0
    assert moved_from(cluster, SECOND), "moved before its end"
    print(f"handed over and ended in {time.monotonic() - began:.2f} s")
    ended = cluster.brokers.pop(SECOND)
    send(cluster, values(120, 120))
    check_all(cluster, values(0, 240))
    assert not logged(cluster.quorum.nodes[1], "is to recover")
    assert logged(cluster.quorum.nodes[1], "are led by others now")
    assert not logged(ended, "recovers it")


def test_a_partition_that_is_moved_goes_on_elsewhere(cluster: LiveCluster) -> None:
    send(cluster, values(0, 120))
    (witness, *_) = cluster.brokers.values()
    (index,) = [index for index, leader in leaders(witness).items() if leader == SECOND][:1]
    with Client(witness.address) as client:
        client.move(TOPIC, [index], FIRST_BROKER)
    until(lambda: leaders(witness)[index] == FIRST_BROKER, "it does not lead")
    send(cluster, values(120, 120))
    check_all(cluster, values(0, 240))


def test_a_log_that_nobody_reaches_is_waited_for(cluster: LiveCluster, tmp_path: Path) -> None:
    """Its partitions wait, and the controller says why; once the log is back it is recovered, though its
    broker is not there."""
    send(cluster, values(0, 120))
    before = leaders(cluster.brokers[FIRST_BROKER])
    gone = cluster.brokers.pop(SECOND)
    gone.kill()
    wal = next((tmp_path / f"broker{SECOND}").rglob("wal"))
    wal.rename(tmp_path / "away")
    (controller,) = cluster.quorum.nodes.values()
    until(lambda: controller.metrics()["millrace_failover_waiting_brokers"] == 1, "nobody waits for it")
    why = "nobody can recover its write-ahead log: no write-ahead log is at"
    until(lambda: logged(controller, why), "the controller does not say why")
    mine = [index for index, leader in before.items() if leader != SECOND]
    now = leaders(cluster.brokers[FIRST_BROKER])
    assert {index: now[index] for index in mine} == {index: before[index] for index in mine}
    assert {now[index] for index in now if index not in mine} == {-1}
    spread = warm.run(
        ["-m", "millrace.broker", "cluster", "drain", str(SECOND), "--bootstrap-server", cluster.addresses[0]]
    )
    assert (spread.returncode, "without a leader stay as they are" in spread.stderr) == (1, True), spread
    (tmp_path / "away").rename(wal)
    until(lambda: moved_from(cluster, SECOND), "the log is not recovered")
    check_all(cluster, values(0, 120))


def name_another_machine(path: Path) -> None:
    """As if the log had been open there."""
    data = bytearray(path.read_bytes())
    header = choose_device_header(bytes(data[:4096]), bytes(data[4096:8192]))
    assert header is not None
    assert header.holder is not None
    there = replace(header.holder, machine=b"m" * 16, boot=b"b" * 16)
    for sequence in (header.sequence, header.sequence + 1):
        at = sequence % 2 * 4096
        data[at : at + 4096] = replace(header, sequence=sequence, holder=there).encode()
    path.write_bytes(data)


def test_a_log_whose_lock_another_machine_keeps_waits_for_its_broker(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    """Nobody here can know whether it lives: its partitions wait, and who is asked says so and what can be
    done; the broker's own start recovers the log."""
    send(cluster, values(0, 120))
    gone = cluster.brokers.pop(SECOND)
    gone.kill()
    name_another_machine(next((tmp_path / f"broker{SECOND}").rglob("wal")))
    (controller,) = cluster.quorum.nodes.values()
    until(lambda: controller.metrics()["millrace_failover_waiting_brokers"] == 1, "nobody waits for it")
    assert SECOND not in leaders(cluster.brokers[FIRST_BROKER]).values()
    status = warm.run(
        ["-m", "millrace.broker", "cluster", "status", "--bootstrap-server", cluster.addresses[0]]
    )
    print(status.stdout)
    assert status.returncode == 1
    said = f"opened last on another machine.* Start broker {SECOND} where its log is; with fencing=claim"
    until(lambda: logged(controller, said), "the controller does not say why")
    cluster.brokers[SECOND] = gone.start()
    assert logged(gone, "no process of this node may run there")
    send(cluster, values(120, 60))
    check_all(cluster, values(0, 180))


def test_a_damaged_log_waits_for_its_broker_and_a_word(cluster: LiveCluster, tmp_path: Path) -> None:
    """Nobody steps over the damage but the broker itself, started with the setting that the controller's log
    names: what lies before the damage is there then, and all partitions take records."""
    send(cluster, values(0, 120))
    before = leaders(cluster.brokers[FIRST_BROKER])
    index = next(index for index, leader in before.items() if leader == SECOND)
    with Client(cluster.brokers[SECOND].address) as client:
        for number in range(20):
            assert not client.send(TOPIC, [b"in order %d" % number], index).error_code
    gone = cluster.brokers[SECOND]
    gone.kill()
    wal = next((tmp_path / f"broker{SECOND}").rglob("wal"))
    whole = wal.read_bytes()
    flip(wal, whole.find(b"in order 10"))
    (controller,) = cluster.quorum.nodes.values()
    until(lambda: controller.metrics()["millrace_failover_waiting_brokers"] == 1, "nobody waits for it")
    why = f"cannot be recovered as it is: .* start broker {SECOND} with a wal.corruption"
    until(lambda: logged(controller, why), "the controller does not say why")
    assert leaders(cluster.brokers[FIRST_BROKER])[index] == -1
    gone.override({"wal.corruption": "truncate"})
    gone.restart()
    until(lambda: -1 not in leaders(cluster.brokers[FIRST_BROKER]).values(), "a partition has no leader")
    kept = [*values(0, 120), *(b"in order %d" % number for number in range(10))]
    assert sorted(read_all(cluster, len(kept))) == sorted(kept)
    send(cluster, values(120, 60))
    assert sorted(read_all(cluster, len(kept) + 60)) == sorted([*kept, *values(120, 60)])


def test_a_log_that_has_lost_its_header_is_named_with_what_can_be_done(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    """By the controller, and a sound copy that is put in its place is recovered, though its broker is not
    there."""
    send(cluster, values(0, 120))
    cluster.brokers.pop(SECOND).kill()
    wal = next((tmp_path / f"broker{SECOND}").rglob("wal"))
    whole = wal.read_bytes()
    wal.write_bytes(bytes(8192) + whole[8192:])
    (controller,) = cluster.quorum.nodes.values()
    why = f"{wal}.* cannot be recovered as it is: .*put a sound copy there, or say `millrace cluster give-up"
    until(lambda: logged(controller, why), "the controller does not say what can be done")
    wal.write_bytes(whole)
    until(lambda: moved_from(cluster, SECOND), "the log is not recovered")
    check_all(cluster, values(0, 120))


def test_a_log_that_is_lost_for_good_is_given_up_by_name(cluster: LiveCluster, tmp_path: Path) -> None:
    """Not of a broker that serves, and not without the word. Its partitions go on elsewhere without what only
    the log held; a broker that comes back with the log brings nothing of it back."""
    send(cluster, values(0, 120))
    before = leaders(cluster.brokers[FIRST_BROKER])
    words = ["-m", "millrace.broker", "cluster", "give-up", str(SECOND), "--bootstrap-server"]
    refused = warm.run([*words, cluster.addresses[0], "--accept-loss"])
    assert (refused.returncode, f"broker {SECOND} serves" in refused.stderr) == (2, True), refused
    gone = cluster.brokers.pop(SECOND)
    gone.kill()
    wal = next((tmp_path / f"broker{SECOND}").rglob("wal"))
    wal.rename(tmp_path / "away")
    (controller,) = cluster.quorum.nodes.values()
    until(lambda: controller.metrics()["millrace_failover_waiting_brokers"] == 1, "nobody waits for it")
    refused = warm.run([*words, cluster.addresses[0]])
    assert (refused.returncode, "--accept-loss" in refused.stderr) == (1, True), refused
    given_up = warm.run([*words, cluster.addresses[0], "--accept-loss"])
    assert given_up.returncode == 0, given_up
    lost = [index for index, leader in before.items() if leader == SECOND]
    given = f"that only the log of broker {SECOND} holds are given up"
    assert all(given in line for line in given_up.stdout.splitlines())
    named = [line.split(":") for line in given_up.stdout.splitlines() if line.startswith(f"{TOPIC}:")]
    assert [int(index) for _, index, _ in named] == lost
    kept = [value for value in values(0, 120) if int(value) % PARTITIONS not in lost]
    send(cluster, values(120, 120))
    check_all(cluster, [*kept, *values(120, 120)])
    (tmp_path / "away").rename(wal)
    cluster.brokers[SECOND] = gone.restart()
    send(cluster, values(240, 60))
    check_all(cluster, [*kept, *values(120, 180)])


def ask(cluster: LiveCluster, *words: str) -> subprocess.CompletedProcess[str]:
    """By `millrace cluster`."""
    asked = ["-m", "millrace.broker", "cluster", *words, "--bootstrap-server", cluster.addresses[0]]
    return warm.run(asked)


def test_what_a_move_left_in_a_lost_log_waits_by_name_and_is_given_up(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    """A broker stands still, its partitions are moved to another, and it dies with its log: the next leader
    cannot open what was never closed. `status` says what waits for whom, and `give-up` gives that up."""
    send(cluster, values(0, 120))
    moved = [index for index, leader in leaders(cluster.brokers[FIRST_BROKER]).items() if leader == SECOND]
    gone = cluster.brokers.pop(SECOND)
    os.kill(gone.pid, signal.SIGSTOP)
    with Client(cluster.addresses[0]) as client:
        client.move(TOPIC, moved, FIRST_BROKER)
    gone.kill()
    next((tmp_path / f"broker{SECOND}").rglob("wal")).rename(tmp_path / "away")
    (controller,) = cluster.quorum.nodes.values()
    until(lambda: controller.metrics()["millrace_failover_waiting_brokers"] == 1, "nobody waits for it")
    waiting = "millrace_failover_waiting_partitions"
    until(lambda: controller.metrics()[waiting] == len(moved), "they are not counted")
    with Client(cluster.addresses[0]) as client:
        under_way = ([FIRST_BROKER, SECOND], [FIRST_BROKER], [SECOND])
        assert client.moves() == {(TOPIC, index): under_way for index in moved}

    command = partial(ask, cluster)
    status = command("status")
    assert f"{len(moved)} of them wait for broker {SECOND}, or for its write-ahead log" in status.stdout
    refused = command("unregister", str(SECOND))
    assert (refused.returncode, "may be in its write-ahead log alone" in refused.stderr) == (1, True), refused
    given_up = command("give-up", str(SECOND), "--accept-loss")
    assert (given_up.returncode, len(given_up.stdout.splitlines())) == (0, len(moved)), given_up
    send(cluster, values(120, 60))
    kept = [value for value in values(0, 120) if int(value) % PARTITIONS not in moved]
    check_all(cluster, [*kept, *values(120, 60)])
    assert "wait for broker" not in command("status").stdout
    until(lambda: controller.metrics()[waiting] == 0, "they are counted still")
    with Client(cluster.addresses[0]) as client:
        assert client.moves() == {}
    assert command("unregister", str(SECOND)).returncode == 0


def test_what_a_lost_log_owes_of_partitions_that_went_on_is_given_up_by_name(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    """A broker does not reach the bucket, its partitions are moved, and it dies with its log: the next leader
    takes writes, and lacks what was owed. `status` says so, and after `give-up` readers step over that."""
    victim, way = cluster.brokers[SECOND], tmp_path / "way"
    way.symlink_to(cluster.quorum.bucket)
    victim.override({"s3.data.buckets": f"0@file://{way}"})
    victim.restart()
    assert ask(cluster, "spread").returncode == 0
    send(cluster, values(0, 120))
    way.unlink()
    moved = [index for index, leader in leaders(cluster.brokers[FIRST_BROKER]).items() if leader == SECOND]
    with Client(cluster.addresses[0]) as client:
        client.move(TOPIC, moved, FIRST_BROKER)
    send(cluster, values(120, 60))
    gone = cluster.brokers.pop(SECOND)
    gone.kill()
    next((tmp_path / f"broker{SECOND}").rglob("wal")).rename(tmp_path / "away")
    (controller,) = cluster.quorum.nodes.values()
    until(lambda: controller.metrics()["millrace_failover_waiting_brokers"] == 1, "nobody waits for it")
    status = ask(cluster, "status").stdout
    assert f"without some of their records: {len(moved)} partitions" in status
    assert f"{len(moved)} of them wait for broker {SECOND}, or for its write-ahead log" in status
    given_up = ask(cluster, "give-up", str(SECOND), "--accept-loss")
    assert (given_up.returncode, len(given_up.stdout.splitlines())) == (0, len(moved)), given_up
    kept = [value for value in values(0, 120) if int(value) % PARTITIONS not in moved]
    check_all(cluster, [*kept, *values(120, 60)])
    assert "wait for broker" not in ask(cluster, "status").stdout


@pytest.mark.parametrize("halted_s", [4.0, 7.0])
def test_a_broker_that_stood_still_acknowledges_nothing_that_is_lost(
    cluster: LiveCluster, halted_s: float
) -> None:
    """A stopped process has the lock of its log still, so that nobody recovers it meanwhile."""
    send(cluster, values(0, 120))
    victim = cluster.brokers[SECOND]
    os.kill(victim.pid, signal.SIGSTOP)
    time.sleep(halted_s)
    os.kill(victim.pid, signal.SIGCONT)
    send(cluster, values(120, 120))
    check_all(cluster, values(0, 240))


@pytest.fixture(params=["objects", "claims"])
def without_locks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveCluster]:
    """Brokers whose logs are objects in a folder, or blocks in files that are fenced by claims; all of them
    reach all."""
    wal = {"s3.wal.path": f"0@file://{tmp_path}/logs/?kind=object"} if request.param == "objects" else {}
    with LiveCluster(tmp_path, 1, 3, {**QUICK, **wal}, "64MiB&fencing=claim") as started:
        with Client(started.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        yield started


def test_a_log_without_a_lock_is_recovered_by_another(without_locks: LiveCluster) -> None:
    """And by its own broker later, which finds it empty."""
    send(without_locks, values(0, 300))
    victim = without_locks.brokers.pop(SECOND)
    victim.kill()
    began = time.monotonic()
    until(lambda: moved_from(without_locks, SECOND), "its partitions are not led by others")
    print(f"led by others {time.monotonic() - began:.2f} s after the kill")
    send(without_locks, values(300, 300))
    check_all(without_locks, values(0, 600))
    without_locks.brokers[SECOND] = victim.start()
    send(without_locks, values(600, 60))
    check_all(without_locks, values(0, 660))


def test_a_log_in_a_store_with_keys_in_its_address_is_recovered_by_another(tmp_path: Path) -> None:
    """Metadata keeps no keys: who recovers has its own."""
    with S3Server(tmp_path / "s3") as server:
        for bucket in ("lake", "logs"):
            server.make(bucket)
        settings = {"s3.data.buckets": server.address("lake"), "s3.wal.path": server.address("logs")}
        with LiveCluster(tmp_path, 1, 3, {**QUICK, **settings}) as cluster:
            with Client(cluster.addresses[0]) as client:
                client.create(TOPIC, PARTITIONS)
            send(cluster, values(0, 120))
            cluster.brokers.pop(SECOND).kill()
            until(lambda: moved_from(cluster, SECOND), "its partitions are not led by others")
            check_all(cluster, values(0, 120))


def test_one_that_stood_still_finds_its_log_taken(without_locks: LiveCluster) -> None:
    """Nothing keeps others from such a log while its process is stopped: what that acknowledges afterwards is
    nothing, and it ends."""
    send(without_locks, values(0, 120))
    victim = without_locks.brokers.pop(SECOND)
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        until(lambda: moved_from(without_locks, SECOND), "its partitions are not led by others")
        send(without_locks, values(120, 120))
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    assert victim.wait_end() != 0
    assert logged(victim, "cannot go on")
    check_all(without_locks, values(0, 240))
    without_locks.brokers[SECOND] = victim.start()
    send(without_locks, values(240, 60))
    check_all(without_locks, values(0, 300))
