"""Who may drive a checkpoint, when several want to: by claims in a folder that they share, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError

from millrace.spark_jobs.claims import Claim, Watch, claim_name, decode_claim, encode_claim, epoch_of
from millrace.spark_jobs.lease import Lease
from millrace.spark_jobs.processes import Process, is_running, process_of
from millrace.spark_jobs.refusal import Refused
from tests.patience import PATIENCE_S
from tests.spark_jobs.turns import SharedFolder

GOLDEN = Path(__file__).parent.parent / "golden" / "pipeline_claim_v1.txt"
ELSEWHERE = Process("far", 12, "boot", "pid:[1]", "99")
EXPIRES_S = 2.0
CLAIM = Claim(ELSEWHERE, renewals=3)
NAME = claim_name(2, "a")


def never() -> bool:
    return False


def unknown(_: Process) -> None:
    return None


class Holders:
    """All who took the lease, one after the other, and until when nobody else may."""

    def __init__(self, turns: SharedFolder) -> None:
        self.turns, self.names, self.epochs, self.safe_until = turns, list[str](), [0], 0.0

    def driver(self, name: str) -> Callable[[], None]:
        """Takes the lease, and asks for it again and again."""

        def drive() -> None:
            lease = self.turns.lease(name, EXPIRES_S)
            try:
                lease.take(never, lambda _: None, wait_s=30)
                assert self.turns.now >= self.safe_until, f"{name} did not wait for {self.names}"
                assert lease.epoch > self.epochs[-1], (
                    "one that stands still since then would have a higher one"
                )
                self.names.append(name)
                self.epochs.append(lease.epoch)
                for _ in range(6):
                    holder, asked = self.names[-1], self.turns.now
                    lease.hold()
                    assert holder == name, f"{name} goes on although {holder} has taken over"
                    self.safe_until = asked + EXPIRES_S
            except Refused:
                self.safe_until = 0.0 if lease.is_lost else self.safe_until  # it writes nothing more
                return
            self.safe_until = 0.0
            lease.give_back()

        return drive


def test_never_two() -> None:
    """In whatever order the calls of three drivers come, and however long one of them stands still: who has
    taken the lease ends all others, nobody is followed before it expired, and in the end somebody had it."""
    taken_over = 0
    for seed in range(400):
        turns = SharedFolder(seed)
        holders = Holders(turns)
        turns.run({name: holders.driver(name) for name in "abc"})
        assert not turns.failures, (seed, turns.failures)
        assert holders.names, seed
        taken_over += len(holders.names) > 1
    assert taken_over > 30


@pytest.mark.parametrize("held", [encode_claim(CLAIM), "", "{"])
def test_a_driver_of_which_nothing_is_known(held: str) -> None:
    """Has the lease as long as its claim changes; it expires by this driver's clock, whatever the other one's
    says."""
    watch = Watch(expires_s=40)
    assert watch.look({NAME: held}, 1000, unknown).held
    assert not watch.look({NAME: held}, 1000, unknown).is_alive
    assert watch.look({NAME: held}, 1039, unknown).held
    assert watch.look({NAME: held + " "}, 1041, unknown).is_alive
    assert watch.look({NAME: held + " "}, 1080, unknown).held
    assert not watch.look({NAME: held + " "}, 1081, unknown).held


def test_a_driver_of_this_machine() -> None:
    """Is over at once when its process is gone, and never while it runs, be it ever so still."""
    found = {NAME: encode_claim(CLAIM)}
    assert not Watch(40).look(found, 0, lambda _: False).held
    watch = Watch(40)
    assert watch.look(found, 0, lambda _: True).is_alive
    assert watch.look(found, 1000, lambda _: True).held == ("process 12 on far",)
    assert not watch.look({NAME: encode_claim(replace(CLAIM, is_given_back=True))}, 1000, lambda _: True).held


def test_a_claim_is_written_and_read() -> None:
    """Byte for byte as version 1 has it; what is not whole is nobody's word."""
    assert GOLDEN.read_text() == encode_claim(CLAIM)
    assert decode_claim(encode_claim(CLAIM)) == CLAIM
    for end in range(len(encode_claim(CLAIM)) - 1):
        assert decode_claim(encode_claim(CLAIM)[:end]) is None
    assert [epoch_of(name) for name in (NAME, "lost+found", "-", "")] == [2, 0, 0, 0]


def test_a_process_that_ended() -> None:
    """Is known to have ended also before its parent has waited for it, and where its number was given to
    another; of other machines and containers nothing is known."""
    assert is_running(process_of(os.getpid())) is True
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = process_of(child.pid)
        assert is_running(found) is True
        assert is_running(replace(found, started="1")) is False
        assert is_running(replace(found, boot="other")) is None
        assert is_running(replace(found, namespace="pid:[1]")) is None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_running(found) is False
    assert is_running(found) is False


def test_a_system_that_says_nothing_of_processes(tmp_path: Path) -> None:
    """Leaves all drivers unknown."""
    assert is_running(process_of(os.getpid(), tmp_path), tmp_path) is None


class Folder:
    """A driver's folder, until `failure` is what each call meets."""

    def __init__(self) -> None:
        self.found = dict[str, str]()
        self.failure: Exception | None = None
        self.has_failed = threading.Event()

    def child(self, folder: str, name: str) -> str:
        return name

    def make_folder(self, path: str) -> None: ...

    def names(self, folder: str) -> list[str]:
        return list(self.found)

    def texts(self, folder: str) -> dict[str, str]:
        return dict(self.found)

    def put(self, path: str, text: str) -> None:
        if self.failure:
            self.has_failed.set()
            raise self.failure
        self.found[path] = text

    def remove(self, path: str) -> None: ...


@pytest.mark.parametrize(
    "failure", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("empty")]
)
def test_a_jvm_that_ended_is_told_once(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever waits for the query: the renewing thread ends without a trace, and giving back hides no
    other error."""
    escaped: list[object] = []
    monkeypatch.setattr(threading, "excepthook", escaped.append)
    folder = Folder()
    lease = Lease(folder, "/checkpoint", ELSEWHERE)
    lease.take(never, lambda _: None)
    folder.failure = failure
    lease.keep(renew_s=0)
    assert folder.has_failed.wait(PATIENCE_S)
    lease.give_back()
    assert escaped == []


def test_a_process_that_the_system_hides(tmp_path: Path) -> None:
    """One of another user under hidepid is not in /proc, and runs all the same: it is no process that
    ended."""
    for place in ("sys/kernel/random/boot_id", "self/ns/pid"):
        (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("boot\n")
    (tmp_path / "self/ns/pid").symlink_to("pid:[1]")
    hidden = Process("here", os.getpid(), "boot", "pid:[1]", "12")
    assert is_running(hidden, tmp_path) is None
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert is_running(replace(hidden, pid=child.pid), tmp_path) is False
