"""Traffic: producers and a group at work on a real cluster while it is troubled.

    traffic = Traffic(cluster.addresses, "topic", partitions=6)
    traffic.start(); ...; traffic.finish()      waits until the group has read all that was acknowledged
    traffic.check()                             reads the topic anew, and judges (history.py)

Values are numbers of their producer, which their remainder tells; the last remainder is of who probes
(probe.py). Not here: what is done to the cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from tests.live.history import Found, Told, judge
from tests.patience import PATIENCE_S, until

GROUP = "traffic"
PAUSE_S = 0.005
POLL_MS = 200
# What kafka-python tells an application that commits while a group moves, or its coordinator is gone.
TOLD_TO_MEMBERS = ("CommitFailedError", "RebalanceInProgressError", "KafkaConnectionError")
IN_TIME_S = 120.0  # of a batch, by kafka-python's own bound


class Traffic:
    def __init__(
        self, addresses: Sequence[str], topic: str, partitions: int, producers: int = 2, members: int = 2
    ) -> None:
        self._addresses = list(addresses)
        self._topic = topic
        self._partitions = partitions
        self.prober = producers
        self.lanes = producers + 1
        self._is_over = threading.Event()
        self._is_read = threading.Event()
        self.lock = threading.Lock()  # of what clients were told
        self.told = Told([{} for _ in range(partitions)])
        self._sending = [
            threading.Thread(target=self._produce, args=(number,), name=f"producer {number}")
            for number in range(producers)
        ]
        self._reading = [
            threading.Thread(target=self._consume, name=f"member {number}") for number in range(members)
        ]

    def start(self) -> None:
        for thread in (*self._sending, *self._reading):
            thread.start()

    def finish(self) -> None:
        """Stops the producers, then the group once it has read all. Always to be called."""
        self._is_over.set()
        try:
            for thread in self._sending:
                thread.join(IN_TIME_S + PATIENCE_S)
                assert not thread.is_alive(), f"{thread.name} waits for ever"
            until(self._has_read_all, "the group has not read all that was acknowledged")
        finally:
            self._is_read.set()
            for thread in self._reading:
                thread.join(PATIENCE_S)

    def _has_read_all(self) -> bool:
        with self.lock:
            return self.told.has_read_all()

    def _error(self, error: BaseException) -> None:
        with self.lock:
            self.told.errors.append(f"{threading.current_thread().name}: {error!r}")

    def _produce(self, number: int) -> None:
        producer = KafkaProducer(bootstrap_servers=self._addresses, enable_idempotence=True, linger_ms=0)
        value = number
        while not self._is_over.is_set():
            began = time.monotonic()
            sent = []
            for partition in range(self._partitions):
                payload = b"%d" % value
                sent.append((value, partition, producer.send(self._topic, payload, partition=partition)))
                value += self.lanes
            for one, partition, future in sent:
                try:
                    offset = future.get(IN_TIME_S).offset
                except Exception as error:  # whatever an application is told
                    self._error(error)
                    continue
                with self.lock:
                    self.told.acknowledged[partition][one] = offset
            self.told.send_s.append(time.monotonic() - began)
            time.sleep(PAUSE_S)
        producer.close()

    def _consume(self) -> None:
        consumer = KafkaConsumer(
            self._topic, bootstrap_servers=self._addresses, group_id=GROUP, auto_offset_reset="earliest",
            enable_auto_commit=False, session_timeout_ms=10_000,
        )  # fmt: skip
        while not self._is_read.is_set():
            try:
                polled = consumer.poll(timeout_ms=POLL_MS)
                assigned = sorted(place.partition for place in consumer.assignment())
                self.told.assigned[threading.current_thread().name] = assigned
                if not polled:
                    continue
                now_s = time.monotonic()
                with self.lock:
                    self.told.read_at_s.append(now_s)
                    for place, records in polled.items():
                        for record in records:
                            self.told.show(place.partition, record.offset, int(record.value))
                ends = {place: records[-1].offset + 1 for place, records in polled.items()}
                consumer.commit({place: OffsetAndMetadata(end, "", -1) for place, end in ends.items()})
                with self.lock:
                    for place, end in ends.items():
                        at = place.partition
                        self.told.committed[at] = max(self.told.committed.get(at, 0), end)
            except Exception as error:
                if type(error).__name__ not in TOLD_TO_MEMBERS:
                    self._error(error)
        consumer.close()

    def move_to(self, addresses: Sequence[str]) -> None:
        """What is checked is there."""
        self._addresses = list(addresses)

    def check(self) -> int:
        """How many records were acknowledged. Raises AssertionError for what must not be."""
        return judge(self.told, self.found(), self.lanes, self.prober)

    def found(self) -> Found:
        """What is there now."""
        consumer = KafkaConsumer(bootstrap_servers=self._addresses, group_id=GROUP, enable_auto_commit=False)
        try:
            places = [TopicPartition(self._topic, partition) for partition in range(self._partitions)]
            records = [self._read(consumer, partition) for partition in range(self._partitions)]
            return Found(records, [consumer.committed(place) or 0 for place in places])
        finally:
            consumer.close()

    def _read(self, consumer: KafkaConsumer, partition: int) -> list[tuple[int, int]]:
        """Offsets and values, from the beginning to the end."""
        place = TopicPartition(self._topic, partition)
        end = consumer.end_offsets([place])[place]
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        found: list[tuple[int, int]] = []

        def is_all() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                found.extend((record.offset, int(record.value)) for record in records)
            return not end or (bool(found) and found[-1][0] >= end - 1)

        until(is_all, f"partition {partition} cannot be read to its end, {end}")
        return found
