"""A consumer group of librdkafka's that never rests: three members on threads, one of which leaves and comes
back again and again."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from confluent_kafka import Consumer, KafkaException

from tests.patience import PATIENCE_S

MEMBERS = 3
STAY_S = 3.0
COUNT = 2000


class Group:
    """`with Group(address, topic) as group`; `failure` is raised at the end if a member met one. `rejoins`:
    how often the one that goes came back and was given records."""

    def __init__(self, address: str, topic: str) -> None:
        self._settings = {
            "bootstrap.servers": address,
            "group.id": "soak",
            "auto.offset.reset": "latest",
            "auto.commit.interval.ms": 500,
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 500,
            "log_level": 2,
            "queued.max.messages.kbytes": 4096,
        }
        self._topic = topic
        self._is_over = False
        self._lock = threading.Lock()
        self.consumed = 0
        self.rejoins = 0
        self.failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._member, args=(number,), daemon=True) for number in range(MEMBERS)
        ]

    def _member(self, number: int) -> None:
        stays = 0
        try:
            while not self._is_over:
                is_given = self._stay(STAY_S if number == 0 else float("inf"))
                self.rejoins += bool(is_given and stays)
                stays += 1
        except BaseException as error:
            self.failure = error

    def _stay(self, seconds: float) -> bool:
        """For so long after the first record; whether there was one."""
        consumer = Consumer(self._settings)
        consumer.subscribe([self._topic])
        came_s, first_s = time.monotonic(), 0.0
        try:
            while not self._is_over and not (first_s and time.monotonic() - first_s >= seconds):
                messages = consumer.consume(COUNT, 0.5)
                for message in messages:
                    error = message.error()
                    if error is not None and not error.retriable():
                        raise KafkaException(error)
                read_count = sum(message.error() is None for message in messages)
                first_s = first_s or (time.monotonic() if read_count else 0.0)
                assert first_s or time.monotonic() - came_s < PATIENCE_S, (
                    "a member came and was given nothing"
                )
                with self._lock:
                    self.consumed += read_count
        finally:
            consumer.close()
        return first_s > 0

    def __enter__(self) -> Group:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(PATIENCE_S)
        if kind is None:
            assert not any(thread.is_alive() for thread in self._threads), "a member did not end"
            if self.failure is not None:
                raise self.failure
