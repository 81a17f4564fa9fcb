"""Many hostile clients in one thread: each is given its turn every PERIOD_S, and whoever is cut off connects
anew."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from abc import abstractmethod

from tests.attack.background import Background
from tests.live import LiveBroker
from tests.patience import PATIENCE_S

PERIOD_S = 0.1
ADDRESSES_A_NET = 250


class Attacker:
    """One connection of a crowd. `sent_bytes`: since it connected, at `began_s`."""

    def __init__(self, made: socket.socket) -> None:
        self.socket = made
        self.began_s = time.monotonic()
        self.sent_bytes = 0


class Crowd(Background):
    """`count` of them from `addresses` addresses of this machine, other ones than the tests' own clients have
    where the system has all of 127.0.0.0/8, as Linux does."""

    def __init__(self, broker: LiveBroker, count: int, addresses: int = 1, window_bytes: int = 0) -> None:
        super().__init__()
        self._target = ("127.0.0.1", broker.port)
        self._count = count
        self._addresses = addresses
        # what their systems take of what they do not read; 0 for as much as they like
        self._window_bytes = window_bytes
        self._made_count = 0
        self.cut_count = 0

    @abstractmethod
    def _begin(self, one: Attacker) -> None:
        """It is connected, and its socket does not block."""

    @abstractmethod
    def _go_on(self, one: Attacker, elapsed_s: float) -> None:
        """Its turn. OSError: it was cut off."""

    def _connect(self) -> Attacker:
        made = socket.socket()
        try:
            if self._window_bytes:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._window_bytes)
            if sys.platform == "linux":
                place = self._made_count % self._addresses
                made.bind((f"127.0.{1 + place // ADDRESSES_A_NET}.{1 + place % ADDRESSES_A_NET}", 0))
            made.settimeout(PATIENCE_S)
            made.connect(self._target)
            made.setblocking(False)
        except OSError:
            made.close()
            raise
        self._made_count += 1
        return Attacker(made)

    def _fill(self, clients: list[Attacker]) -> None:
        while len(clients) < self._count and not self._is_over.is_set():
            with contextlib.suppress(OSError):
                clients.append(self._connect())
                with contextlib.suppress(BlockingIOError):
                    self._begin(clients[-1])

    def _run(self) -> None:
        clients: list[Attacker] = []
        last_s = time.monotonic()
        try:
            while not self._is_over.wait(PERIOD_S):
                self._fill(clients)
                self._has_begun.set()
                now_s = time.monotonic()
                elapsed_s, last_s = now_s - last_s, now_s
                for one in list(clients):
                    try:
                        with contextlib.suppress(BlockingIOError):
                            self._go_on(one, elapsed_s)
                    except OSError:
                        self.cut_count += 1
                        clients.remove(one)
                        one.socket.close()
        finally:
            for one in clients:
                one.socket.close()
