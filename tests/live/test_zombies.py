"""A process that is stopped while it owns a log, and goes on after another process has taken it: it
acknowledges nothing more, and ends by itself. Without a controller, a bucket or anything of a broker: each
kind's own fence alone (wal_owner.py)."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.live.wal_owner import FAKE
from tests.patience import PATIENCE_S, until

TAKEN = {
    "claim": "0@file://{folder}/wal?capacity=16MiB&fencing=claim",
    "objects": "0@file://{folder}/logs/?kind=object",
    "reservation": "0@fake://{folder}/device?capacity=16MiB&fencing=reservation",
}
BEFORE = [f"before-{number}" for number in range(5)]
WOKEN = [f"woken-{number}" for number in range(5)]


@contextmanager
def held(path: Path | None) -> Iterator[None]:
    """The lock of that file, where there is one."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class WalOwnerProcess:
    def __init__(self, address: str, epoch: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.live.wal_owner", address, str(epoch)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        path = address.partition("://")[2].partition("?")[0]
        self._device = Path(path + ".device") if address.startswith(FAKE) else None
        self.acknowledged: list[str] = []
        self.reason = ""

    def next(self) -> tuple[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        word, value = json.loads(line) if line else ("gone", "")
        if word == "acknowledged":
            self.acknowledged.append(value)
        if word == "ended":
            self.reason = value
        return word, value

    def recovered(self) -> list[str]:
        word, value = self.next()
        assert word == "recovered", (word, value)
        return list(value)

    def ask(self, records: list[str]) -> None:
        """To append these."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{record}\n" for record in records))
        self.process.stdin.flush()

    def feed(self, records: list[str]) -> None:
        """As `ask`, for as long as it reads."""
        with suppress(BrokenPipeError):
            self.ask(records)

    def send(self, records: list[str]) -> None:
        """All are acknowledged on return."""
        self.ask(records)
        while records[-1] not in self.acknowledged:
            word, value = self.next()
            assert word == "acknowledged", (word, value)

    def end(self) -> int:
        """By itself; what it acknowledged until then is in `acknowledged`."""
        while self.next()[0] != "gone":
            pass
        return self.process.wait(PATIENCE_S)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def halt(self) -> None:
        """Stops it wherever it is, but with the lock of what stands for a device: no machine that stands
        still would hold that."""
        with held(self._device):
            self.signal(signal.SIGSTOP)
            until(self._is_stopped, "it does not stop")

    def _is_stopped(self) -> bool:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # what it did not read
                    stream.close()


class Owners:
    def __init__(self, address: str) -> None:
        self.address = address
        self.started: list[WalOwnerProcess] = []

    def open(self) -> WalOwnerProcess:
        """One more, in the next epoch."""
        self.started.append(WalOwnerProcess(self.address, len(self.started) + 1))
        return self.started[-1]


@pytest.fixture
def owners(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Owners]:
    made = Owners(request.param.format(folder=tmp_path))
    yield made
    for process in made.started:
        process.kill()


@pytest.mark.parametrize("owners", TAKEN.values(), ids=TAKEN, indirect=True)
def test_a_zombie_acknowledges_nothing(owners: Owners) -> None:
    """It finds records to append when it wakes, and a log that is another's: it says so and ends. What both
    acknowledged in their time is there."""
    old = owners.open()
    assert old.recovered() == []
    old.send(BEFORE)
    old.halt()
    old.ask(WOKEN)
    new = owners.open()
    assert new.recovered() == BEFORE
    new.send(["new"])
    old.signal(signal.SIGCONT)
    assert old.end() == 3
    assert old.acknowledged == BEFORE
    print(old.reason)
    assert any(name in old.reason for name in ("WalFenced", "DiskTaken"))
    new.send(["newer"])
    new.kill()
    assert owners.open().recovered() == [*BEFORE, "new", "newer"]


@pytest.mark.parametrize("owners", TAKEN.values(), ids=TAKEN, indirect=True)
def test_one_that_is_stopped_at_work_acknowledges_what_is_recovered(owners: Owners) -> None:
    """Stopped amid thousands of appends, wherever it is: all that it acknowledged, before and after it was
    woken, is what the other recovered."""
    old = owners.open()
    assert old.recovered() == []
    records = [f"{number:06d}{'x' * 1000}" for number in range(8000)]
    feeder = threading.Thread(target=old.feed, args=[records])
    feeder.start()
    while len(old.acknowledged) < 500:
        old.next()
    old.halt()
    new = owners.open()
    found = new.recovered()
    old.signal(signal.SIGCONT)
    assert old.end() == 3
    feeder.join()
    print(f"acknowledged {len(old.acknowledged)}, recovered {len(found)}: {old.reason}")
    assert 500 <= len(old.acknowledged) < len(records)
    assert found[: len(old.acknowledged)] == old.acknowledged
    new.send(["new"])


@pytest.mark.parametrize("owners", ["0@file://{folder}/wal?capacity=16MiB"], ids=["lock"], indirect=True)
def test_a_zombie_with_the_lock_is_waited_for(owners: Owners) -> None:
    """Nobody opens its log while it is stopped, so all that it acknowledges afterwards counts."""
    old = owners.open()
    assert old.recovered() == []
    old.send(BEFORE)
    old.halt()
    old.ask(WOKEN)
    refused = owners.open()
    assert refused.next() == ("refused", "DiskLocked")
    old.signal(signal.SIGCONT)
    old.send(["last"])
    old.kill()
    assert owners.open().recovered() == [*BEFORE, *WOKEN, "last"]


@pytest.mark.parametrize("owners", [TAKEN["claim"]], ids=["claim"], indirect=True)
def test_a_zombie_without_work_ends_too(owners: Owners) -> None:
    """It learns within some seconds that its log was claimed, though nothing is appended."""
    old = owners.open()
    assert old.recovered() == []
    old.halt()
    assert owners.open().recovered() == []
    old.signal(signal.SIGCONT)
    assert old.end() == 3
    assert "WalFenced" in old.reason


@pytest.mark.parametrize("owners", [TAKEN["claim"]], ids=["claim"], indirect=True)
def test_of_two_that_take_at_once_what_either_acknowledges_is_kept(owners: Owners) -> None:
    """Both open the log of a stopped process: whoever claimed last goes on, the other is refused or ends.
    (Both do where the one of the older epoch claims last, and finds the other's header.)"""
    old = owners.open()
    assert old.recovered() == []
    old.send(BEFORE)
    old.halt()
    both = [owners.open(), owners.open()]
    words = []
    for number, taker in enumerate(both):
        word, value = taker.next()
        words.append(word)
        if word == "recovered":
            assert value[: len(BEFORE)] == BEFORE
            taker.ask([f"by-{number}"])
            taker.next()
    old.signal(signal.SIGCONT)
    assert old.end() == 3
    print(words, [taker.acknowledged or taker.reason for taker in both])
    kept = [record for taker in both for record in taker.acknowledged]
    for taker in both:
        taker.kill()
    assert set(kept) <= set(owners.open().recovered())
