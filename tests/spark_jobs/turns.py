"""Drivers that share a folder, one call at a time in an order that is drawn: each call of each may come
before or after any of the others'.

Their clock is the drivers' waiting: nobody waits for real.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from millrace.spark_jobs.lease import Lease
from millrace.spark_jobs.processes import Process
from tests.patience import PATIENCE_S

CHANGES = 0.2  # how often another driver has the next turn: the others stand still long enough to be followed


class SharedFolder:
    """The folder's storage. `run` starts a thread for each driver; one has the turn, until its next call."""

    def __init__(self, seed: int) -> None:
        self.texts: dict[str, str] = {}
        self.now = 0.0
        self.failures: list[BaseException] = []
        self._chance = random.Random(seed)
        self._waiting: dict[str, threading.Event] = {}
        self._has_stopped = threading.Semaphore(0)  # released by the driver that had the turn

    def run(self, drivers: dict[str, Callable[[], None]]) -> None:
        for name, drive in drivers.items():
            threading.Thread(target=self._drive, args=(name, drive), daemon=True).start()
            assert self._has_stopped.acquire(timeout=PATIENCE_S)
        name = ""
        while self._waiting:
            if name not in self._waiting or self._chance.random() < CHANGES:
                name = self._chance.choice(sorted(self._waiting))
            self._waiting.pop(name).set()
            assert self._has_stopped.acquire(timeout=PATIENCE_S)

    def _drive(self, name: str, drive: Callable[[], None]) -> None:
        try:
            self.turn(name)
            drive()
        except BaseException as error:
            self.failures.append(error)
        finally:
            self._has_stopped.release()

    def turn(self, name: str) -> None:
        self._waiting[name] = turn = threading.Event()
        self._has_stopped.release()
        assert turn.wait(PATIENCE_S)

    def lease(self, name: str, expires_s: float) -> Lease:
        """Of a driver on a machine of its own."""

        def wait(seconds: float) -> None:
            self.turn(name)
            self.now += seconds

        return Lease(
            FolderOf(self, name),
            "/checkpoint",
            Process(name, 1),
            expires_s=expires_s,
            is_running=lambda _: None,
            now=lambda: self.now,
            wait=wait,
            draw=lambda: f"{self._chance.getrandbits(64):016x}",
        )


class FolderOf:
    """As one driver calls it."""

    def __init__(self, turns: SharedFolder, name: str) -> None:
        self._turns, self._name = turns, name

    def child(self, folder: str, name: str) -> str:
        return f"{folder}/{name}"

    def make_folder(self, path: str) -> None:
        pass

    def names(self, folder: str) -> list[str]:
        self._turns.turn(self._name)
        return sorted(
            path.removeprefix(f"{folder}/") for path in self._turns.texts if path.startswith(f"{folder}/")
        )

    def texts(self, folder: str) -> dict[str, str]:
        found = {}
        for name in self.names(folder):
            self._turns.turn(self._name)
            found[name] = self._turns.texts.get(f"{folder}/{name}", "")
        return found

    def put(self, path: str, text: str) -> None:
        self._turns.turn(self._name)
        self._turns.texts[path] = text

    def remove(self, path: str) -> None:
        self._turns.turn(self._name)
        self._turns.texts.pop(path, None)
