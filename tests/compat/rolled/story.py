"""Applications of several clients on one cluster, and what came of them while it was troubled.

    with Applications(cluster.addresses, folder, CLIENTS) as applications:
        applications.wait_busy(); ...; applications.finish()
        results = applications.judge(started, ended)

Each client has a topic of its own, one idempotent producer and a group of two. What must hold is
tests/live/history.py's; how it went is a Result.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka import KafkaConsumer, TopicPartition

from tests.compat.jvm import JAVA, java_command
from tests.compat.rolled.events import Heard, Process, longest_s
from tests.live.history import Found, judge
from tests.patience import until

CLIENTS = ("java", "confluent-kafka", "kafka-python", "aiokafka")
PARTITIONS = 6
MEMBERS = 2


@dataclass
class Result:
    """Of one client. Times are seconds, gaps of all its partitions together, and of the one with the
    longest."""

    client: str
    acknowledged: int
    errors: Counter[str]
    texts: dict[str, str]
    notices: Counter[str]
    write_gap_s: tuple[float, float]
    read_gap_s: tuple[float, float]
    slowest_s: float
    reread: int


class Applications:
    """`folder` must be there, and the topics (`topic_of`) with PARTITIONS partitions."""

    def __init__(self, addresses: Sequence[str], folder: Path, clients: Sequence[str] = CLIENTS) -> None:
        self._addresses = list(addresses)
        self._folder = folder
        self.heard = {client: Heard(PARTITIONS) for client in clients}
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> Self:
        try:
            for client in self.heard:
                self._processes[client] = self._begun(client)
        except BaseException:
            self._kill()
            raise
        return self

    def _begun(self, client: str) -> Process:
        words = [",".join(self._addresses), topic_of(client), str(PARTITIONS), str(MEMBERS)]
        if client == "java":
            command = java_command(str(JAVA / "Application.java"), *words)
        else:
            command = [sys.executable, "-m", "tests.compat.rolled.application", client, *words]
        return Process(command, self.heard[client], self._folder / f"{client}.log")

    def wait_busy(self) -> None:
        """Until each has written to every partition, and its group has read from it."""
        for client, heard in self.heard.items():
            self._wait(client, heard.is_busy, "it does not come to work")
        self.check_running()

    def check_running(self) -> None:
        gone = [client for client, process in self._processes.items() if not process.is_running()]
        assert not gone, f"{gone} ended:\n" + "\n".join(map(self.said, gone))

    def said(self, client: str) -> str:
        heard = self.heard[client]
        told = f"{len(heard.acknowledged)} acknowledged, {len(heard.read)} read, {heard.texts}\n"
        return told + self._processes[client].said()

    def finish(self) -> None:
        """Ends the producers, and the members once they have read all that was acknowledged."""
        self.check_running()
        for process in self._processes.values():
            process.end_sending()
        for client, heard in self.heard.items():
            self._wait(client, lambda heard=heard: heard.is_sent, "its producer does not end")  # type: ignore[misc]
            self._wait(client, heard.has_read_all, "its group misses records")
        for process in self._processes.values():
            process.end()
        for process in self._processes.values():
            process.wait_end()

    def _wait(self, client: str, is_true: Callable[[], bool], what: str) -> None:
        """`what` is said where it never comes to be, with what the client said."""
        try:
            until(is_true)
        except AssertionError:
            raise AssertionError(f"{client}: {what}:\n{self.said(client)}") from None

    def judge(self, start: float, end: float) -> list[Result]:
        """Raises AssertionError for what must not be: lost, doubled, out of order, a commit that is gone.
        `start`, `end`: the time that gaps are looked for in, by the monotonic clock."""
        results = []
        for client, heard in self.heard.items():
            found = found_in(self._addresses, topic_of(client))
            try:
                count = judge(heard.told, found, producers=1, sends_anew=0 if heard.errors else -1)
            except AssertionError as wrong:
                raise AssertionError(f"{client}: {wrong}\ntold: {heard.texts}") from None
            written = longest_s(heard.acknowledged, start, end)
            read = longest_s(heard.read, start, end)
            told = (heard.errors, heard.texts, heard.notices)
            results.append(
                Result(client, count, *told, written, read, heard.slowest_s(start), heard.reread())
            )
        return results

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()


def topic_of(client: str) -> str:
    return f"rolled-{client}"


def found_in(addresses: Sequence[str], topic: str) -> Found:
    """All that is in a topic, and what the group of its name has committed."""
    consumer = KafkaConsumer(bootstrap_servers=list(addresses), group_id=topic, enable_auto_commit=False)
    try:
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        records: dict[TopicPartition, list[tuple[int, int]]] = {place: [] for place in places}

        def is_all() -> bool:
            for place, polled in consumer.poll(timeout_ms=1_000).items():
                records[place] += [(each.offset, int(each.value)) for each in polled]
            return all(not ends[place] or records[place][-1:] >= [(ends[place] - 1, 0)] for place in places)

        until(is_all, f"{topic} cannot be read to its ends, {ends}")
        committed = [consumer.committed(place) or 0 for place in places]
        return Found([records[place] for place in places], committed)
    finally:
        consumer.close()
