"""`millrace cluster` in real processes: nodes started in one terminal, shown, killed, their partitions
moved."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.cluster.plan import ADMIN, CONTROLLERS
from tests.live import free_port
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.test_controllers import QUICK
from tests.patience import PATIENCE_S, until

COMMAND = [sys.executable, "-m", "millrace.broker", "cluster"]
NODES = 3


def free_ports() -> int:
    """The first of the ports that a cluster takes, all of which are free."""
    while True:
        first = free_port()
        try:
            for offset in (0, CONTROLLERS, ADMIN):
                for port in range(first + offset, first + offset + NODES):
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


class Started:
    """`millrace cluster start`, its output in a file."""

    def __init__(self, folder: Path, port: int, *words: str) -> None:
        self.folder, self.port = folder, port
        self.out = folder / "out"
        self.process = self.start(*words)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        quick = [word for key, value in QUICK.items() for word in ("--override", f"{key}={value}")]
        own = ["--data-dir", str(self.folder / "cluster"), "--port", str(self.port)]
        with self.out.open("ab") as out:
            self.process = subprocess.Popen(
                [*COMMAND, "start", *own, *quick, "--override", "s3.wal.capacity=64MiB", *words],
                stdout=out,
                stderr=out,
            )
        return self.process

    def said(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.out.read_text())

    def wait_serving(self) -> None:
        until(lambda: bool(self.said(rf"{NODES} of {NODES} nodes serve")), "not all nodes serve")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        address = f"127.0.0.1:1,127.0.0.1:{self.port}"  # the first of them answers never
        command = [*COMMAND, *words, "--bootstrap-server", address]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.ask("status", "--json").stdout)
        return told

    def led(self) -> dict[int, int]:
        return {node["node_id"]: node["partitions_led"] for node in self.status()["nodes"]}

    def pid_of(self, node_id: int) -> int:
        return int(self.said(rf"node {node_id}: ready, pid (\d+)")[-1])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Started]:
    port = free_ports()
    started = Started(tmp_path, port)
    try:
        started.wait_serving()
        yield started
    finally:
        if started.process.poll() is None:
            started.process.send_signal(signal.SIGTERM)
            started.process.wait(PATIENCE_S)


def test_nodes_are_started_moved_between_killed_and_stopped(cluster: Started) -> None:
    with Client(f"127.0.0.1:{cluster.port}") as client:
        client.create("orders", 9)
        client.create("other", 3)
    until(lambda: cluster.led() == {1: 4, 2: 4, 3: 4}, "not spread")
    assert cluster.ask("status").returncode == 0
    assert re.search(
        r"2 +broker,controller +127.0.0.1:\d+ +- +serves +4 +\d+ behind", cluster.ask("nodes").stdout
    )

    moved = cluster.ask("move", "other", "orders:0", "--to", "2")
    assert (moved.returncode, moved.stderr.splitlines()[-1][-5:]) == (0, "moved"), moved
    counts = cluster.led()
    assert counts[2] >= 6
    planned = cluster.ask("drain", "3", "--dry-run")
    assert len(planned.stdout.splitlines()) == counts[3]
    assert cluster.led() == counts, "nothing was done"
    drained = cluster.ask("drain", "3", "--at-once", "2")
    assert drained.returncode == 0, drained
    assert cluster.led()[3] == 0
    with Client(f"127.0.0.1:{cluster.port}") as client:
        client.create("later", 6)
    assert cluster.ask("spread").returncode == 0
    assert cluster.led() == {1: 9, 2: 9, 3: 0}, "a drained broker is given nothing"
    assert re.search(r"3 +broker,controller .* serves, drained +0 ", cluster.ask("status").stdout)
    assert cluster.ask("undrain", "3").returncode == 0
    assert cluster.ask("spread").returncode == 0
    assert cluster.led() == {1: 6, 2: 6, 3: 6}
    assert cluster.ask("spread").stdout == "nothing has to move\n"

    os.kill(cluster.pid_of(3), signal.SIGKILL)
    until(lambda: bool(cluster.said("node 3: ended by signal 9; starts again")), "its end is not told")
    until(lambda: cluster.led()[3] == 0 and not cluster.status()["without_leader"], "nobody took over")
    gone = cluster.ask("drain", "3")
    assert (gone.returncode, "drain it again once it serves" in gone.stderr) == (1, True), gone
    until(lambda: len(cluster.said("node 3: ready")) == 2, "it was not started again")
    assert cluster.stop() == 0
    assert len(cluster.said(r"node \d: ended with code 0")) == NODES


def test_a_node_that_stands_still_is_taken_over_and_acknowledges_nothing(tmp_path: Path) -> None:
    """In a folder whose logs were fenced by locks, as those of an earlier release were. What the node is
    asked while it is stopped it finds when it goes on: it answers nothing, and ends."""
    cluster = Started(tmp_path, free_ports(), "--wal-fencing", "lock")
    try:
        cluster.wait_serving()
        with Client(f"127.0.0.1:{cluster.port}") as client:
            client.create("orders")
        assert cluster.ask("move", "orders", "--to", "3").returncode == 0
        assert cluster.stop() == 0
        cluster.start()
        until(lambda: len(cluster.said("node 3: ready")) == 2, "it was not started again")
        until(lambda: cluster.led() == {1: 0, 2: 0, 3: 1} or moved_to(cluster, 3), "it does not lead")
        with Client(f"127.0.0.1:{cluster.port + 2}") as old:
            old.produce("orders", [b"before"])
            os.kill(cluster.pid_of(3), signal.SIGSTOP)
            old.begin_send("orders", [b"woken"])
            found: list[int] = []

            def is_found() -> bool:
                found.extend(other_leaders(cluster))
                return bool(found)

            until(is_found, "nobody took over")
            leader = found[0]
            with Client(f"127.0.0.1:{cluster.port + leader - 1}") as client:
                until(lambda: not client.send("orders", [b"new"]).error_code, "the next leader takes nothing")
                os.kill(cluster.pid_of(3), signal.SIGCONT)
                until(lambda: bool(cluster.said("node 3: ended with code")), "it does not end")
                assert not is_acknowledged(old)
                assert client.read("orders") == [b"before", b"new"]
    finally:
        if cluster.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(cluster.pid_of(3), signal.SIGCONT)
            cluster.stop()


def moved_to(cluster: Started, node_id: int) -> bool:
    return cluster.ask("move", "orders", "--to", str(node_id)).returncode == 0


def other_leaders(cluster: Started) -> list[int]:
    """Of those that lead anything, all but node 3; a look that gets no answer finds none."""
    return [node_id for node_id, led in cluster.led().items() if led and node_id != 3]


def is_acknowledged(client: Client) -> bool:
    """What `begin_send` asked."""
    try:
        return client.end_send().error_code == 0
    except (OSError, EOFError, AssertionError):
        return False  # the connection has ended


def test_a_drain_leaves_nothing_whoever_spreads_meanwhile(cluster: Started) -> None:
    """Another operator's `spread` was planned before: it says that it did not do all of it, and the drain
    moves what it gave until then."""
    with Client(f"127.0.0.1:{cluster.port}") as client:
        client.create("orders", 120)
    assert cluster.ask("drain", "3").returncode == 0
    assert cluster.ask("undrain", "3").returncode == 0
    address = f"127.0.0.1:{cluster.port}"
    words = [*COMMAND, "spread", "--at-once", "1", "--timeout", "3", "--bootstrap-server", address]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as spreading:
        assert spreading.stdout is not None
        assert spreading.stdout.readline() == "1 of 40 partitions moved\n"
        drained = cluster.ask("drain", "3")
        told = spreading.stdout.read()
    assert drained.returncode == 0, (drained, told)
    assert cluster.led()[3] == 0, (drained, told)
    assert spreading.returncode == 1, told


def test_two_drains_at_once_give_each_other_nothing(cluster: Started) -> None:
    """The one that began first was to give half of all to the broker that the other one drains."""
    with Client(f"127.0.0.1:{cluster.port}") as client:
        client.create("orders", 120)
    address = f"127.0.0.1:{cluster.port}"
    words = [*COMMAND, "drain", "3", "--at-once", "1", "--bootstrap-server", address]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as draining:
        assert draining.stdout is not None
        while "1 of 40" not in draining.stdout.readline():
            assert draining.poll() is None
        other = cluster.ask("drain", "2", "--at-once", "40")
        told = draining.stdout.read()
    assert (other.returncode, draining.returncode) == (0, 0), (other, told)
    assert cluster.led()[1] == 120, (other, told)


def test_without_a_majority_the_brokers_tell_what_they_know(tmp_path: Path) -> None:
    with LiveCombined(tmp_path, 3, QUICK) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create("orders", 3)
        port = cluster.brokers[1]._overrides["listeners"].rpartition(":")[2]
        words = [*COMMAND, "status", "--bootstrap-server", f"127.0.0.1:{port}"]
        found = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert (found.returncode, "not a controller's" in found.stderr) == (2, True), found
        for node_id in (2, 3):
            cluster.brokers[node_id].kill()
        asked = [*COMMAND, "status", "--bootstrap-server", cluster.addresses[0]]
        told: list[str] = []

        def is_noticed() -> bool:  # who leads without a majority resigns after a fetch timeout
            found = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            told.append(found.stdout)
            return found.returncode == 1

        until(is_noticed, "the majority's end is not told")
        assert "quorum: nobody leads; a majority of the controllers has to run" in told[-1]
        assert "3 nodes, 3 partitions" in told[-1]


def test_what_is_refused(cluster: Started, tmp_path: Path) -> None:
    for words, code, said in (
        (("move", "orders", "--to", "1"), 2, "the cluster has no orders"),
        (("move", "orders", "--to", "9"), 2, "no broker 9 serves: there are 1, 2, 3"),
        (("drain", "9"), 2, "the cluster has no broker 9"),
        (("undrain", "9"), 2, "the cluster has no broker 9"),
    ):
        refused = cluster.ask(*words)
        assert (refused.returncode, said in refused.stderr) == (code, True), refused
    for words, said in (
        (("status", "--bootstrap-server", "127.0.0.1:1"), "127.0.0.1:1: Connection refused"),
        (("status", "--bootstrap-server", "nowhere"), "is not HOST:PORT"),
        (("status", "--bootstrap-server", ","), "it is empty"),
        (("drain", "1", "--timeout", "-1"), "'-1' is not a number of seconds above 0"),
        (("spread", "--timeout", "nan"), "'nan' is not a number of seconds above 0"),
        (("drain", str(1 << 31)), f"'{1 << 31}' is no node's id, 0 to {(1 << 31) - 1}"),
        (("move", "orders", "--to", "x"), f"'x' is no node's id, 0 to {(1 << 31) - 1}"),
        (("add-voter", "4", "--at", "h:1", "--timeout", "26"), "'26' is more than 25 seconds"),
        (("start", "--nodes", "2"), "two have no majority"),
        (
            ("start", "--nodes", "4", "--override", "node.id=1", "--data-dir", str(tmp_path)),
            "node.id follows",
        ),
        (("start", "--port", "1000", "--data-dir", str(cluster.folder / "cluster")), "that stays"),
    ):
        found = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
        assert (found.returncode, said in found.stderr) == (2, True), found


def test_a_second_cluster_in_the_folder_cannot_start(cluster: Started) -> None:
    """Its nodes say so, and it ends with code 1; the first goes on."""
    second = subprocess.run(
        [*COMMAND, "start", "--data-dir", str(cluster.folder / "cluster")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert second.returncode == 1, second
    assert second.stdout.count("ended with code 1") == NODES, second.stdout
    assert cluster.ask("status").returncode == 0


def test_a_terminal_shows_a_table_and_ctrl_c_stops_all(tmp_path: Path) -> None:
    """It is drawn again in place; the interrupt of the terminal reaches the command alone."""
    ours, theirs = pty.openpty()
    own = ["--data-dir", str(tmp_path / "cluster"), "--port", str(free_ports())]
    process = subprocess.Popen(
        [*COMMAND, "start", *own, "--override", "s3.wal.capacity=64MiB"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen = b""

    def shows(pattern: bytes) -> bool:
        nonlocal seen
        while select.select([ours], [], [], 0)[0]:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # its side is closed
                break
        return re.search(pattern, seen) is not None

    try:
        until(lambda: shows(rb"3 of 3 nodes serve. Ctrl-C stops all"), "the table does not say it")
        until(
            lambda: shows(
                rb"controller \(leads\) +127.0.0.1:\d+ +\d+ +0 led +[\d.]+ [KM]?i?B +0 behind +ready"
            ),
            "no row",
        )
        assert b"\x1b[" in seen
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert shows(rb"ended with code 0")
    finally:
        if process.poll() is None:
            process.kill()
        os.close(ours)
