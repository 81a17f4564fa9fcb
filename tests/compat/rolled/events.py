"""What the process of one client's application prints (application.py), and what is measured of it.

Not here: whether it can be (tests/live/history.py).
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter, deque
from itertools import pairwise
from pathlib import Path

from tests.live.history import Told
from tests.patience import PATIENCE_S

Moment = tuple[int, float]  # a partition, and when


class Heard:
    """What a producer and the members of its group told, as it comes."""

    def __init__(self, partitions: int) -> None:
        self.lock = threading.Lock()
        self.partitions = partitions
        self.told = Told([{} for _ in range(partitions)])
        self.errors: Counter[str] = Counter()
        self.texts: dict[str, str] = {}  # of each error the first text
        self.notices: Counter[str] = Counter()
        self.acknowledged: list[Moment] = []
        self.read: list[Moment] = []
        self.is_sent = False  # the producer has ended
        self.waited: list[tuple[float, float]] = []  # a record's sending and acknowledgement

    def hear(self, line: str) -> None:
        kind, *event = json.loads(line)
        with self.lock:
            getattr(self, f"_on_{kind}")(*event)

    def _on_acked(self, partition: int, offset: int, value: int, sent: float, at: float) -> None:
        before = self.told.acknowledged[partition].setdefault(value, offset)
        assert before == offset, f"{value} was acknowledged at {before} and {offset} of {partition}"
        self.acknowledged.append((partition, at))
        self.waited.append((sent, at))

    def _on_read(self, at: float, records: list[tuple[int, int, int]]) -> None:
        for partition, offset, value in records:
            self.told.show(partition, offset, value)
            self.read.append((partition, at))

    def _on_committed(self, at: float, ends: dict[str, int]) -> None:
        for partition, end in ends.items():
            known = self.told.committed.get(int(partition), 0)
            self.told.committed[int(partition)] = max(known, end)

    def _on_error(self, at: float, where: str, name: str, text: str) -> None:
        self.errors[f"{where}: {name}"] += 1
        self.texts.setdefault(f"{where}: {name}", text)

    def _on_sent(self) -> None:
        self.is_sent = True

    def _on_notice(self, at: float, name: str, text: str) -> None:
        self.notices[name] += 1

    def is_busy(self) -> bool:
        """Every partition's records are acknowledged, and read by the group."""
        with self.lock:
            acknowledged = {partition for partition, _ in self.acknowledged}
            return len(acknowledged) == len({partition for partition, _ in self.read}) == self.partitions

    def has_read_all(self) -> bool:
        with self.lock:
            return self.told.has_read_all()

    def slowest_s(self, start: float) -> float:
        """From sending to the acknowledgement, of what was sent since `start`."""
        return max(at - sent for sent, at in self.waited if sent >= start)

    def reread(self) -> int:
        """How many records the group was given more than once."""
        return sum(1 for count in self.told.read.values() if count > 1)


def longest_s(moments: list[Moment], start: float, end: float) -> tuple[float, float]:
    """The longest time without one in `start` to `end`, seconds: of all partitions together, and of the one
    of which it is longest."""
    alike = sorted(at for _, at in moments)
    each: dict[int, list[float]] = {}
    for partition, at in moments:
        each.setdefault(partition, []).append(at)
    return gap_s(alike, start, end), max(gap_s(sorted(one), start, end) for one in each.values())


def gap_s(times: list[float], start: float, end: float) -> float:
    within = [start, *(at for at in times if start < at < end), end]
    return max(later - sooner for sooner, later in pairwise(within))


class Process:
    """An application, whose lines go to `heard`; its other output to a file."""

    def __init__(self, command: list[str], heard: Heard, errors: Path) -> None:
        self.command = command
        self._heard = heard
        self._errors = errors
        self._refused: deque[str] = deque(maxlen=3)  # lines that could not be heard
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._heard.hear(line)
            except Exception as error:
                self._refused.append(f"{line[:300]}: {error!r}")

    def is_running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        return self._errors.read_text(errors="replace")[-3000:]

    def end_sending(self) -> None:
        """Its producer flushes, which may take a while, and ends."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Its members leave, and it ends in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait_end(self) -> None:
        """Raises AssertionError where it does not end well, or printed what cannot be heard."""
        try:
            code = self._process.wait(2 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.command} does not end:\n{self.said()}") from None
        self._reader.join(PATIENCE_S)
        assert code == 0, f"{self.command} ended with code {code}:\n{self.said()}"
        assert not self._refused, list(self._refused)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
