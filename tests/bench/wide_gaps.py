"""For how long each of a thousand partitions takes no writes while its broker ends, seen from a process of
its own.

    python -m tests.bench.wide_gaps '{"addresses": {"1": "host:9092"}, "topic": "t", "partitions": [0, 1]}'

writes until a line comes on standard input: it prints `writing` once every partition has taken a write, and
at the end a line of JSON. `with watching(...) as wide` is that process.

Partitions are written to in requests of SLICE, each slice on connections of its own: a broker answers once
all in a request are opened or refused, so one that opens late holds up few. One that takes writes is written
to every EVERY_S, slices at times of their own; one that is refused, or whose node does not answer, is asked
for again after RETRY_S, where the refusal says. What is counted is the time from the sending of the first
request that was refused to the next acknowledgement: what is away for less than EVERY_S may not be met, and
of a thousand some are always met at once. That keeps the probe from becoming the load; what it costs is told
beside what it found: its own CPU, and its writes a second.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import uvloop

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.bench.write_gaps import ANSWER_S, QUIET_S, RETRY_S, VALUE, VERSION, Watch, probing
from tests.live.client import batch_of

SLICE = 5  # partitions of a request
FEW = 24  # partitions that write_gaps.py watches more closely
EVERY_S = 0.25
LOOK_S = 0.05


@dataclass
class Wide:
    """`away_s`: by partition, the longest time without writes, 0 where none was refused."""

    away_s: list[float] = field(default_factory=list)
    writes_a_second: float = 0.0
    cpu_percent: float = 0.0  # of a processor

    def longest_s(self) -> list[float]:
        return self.away_s

    def cost(self) -> str:
        """Of the probe, in words."""
        return f"the probe: {self.writes_a_second:.0f} writes/s, {self.cpu_percent:.0f} % of a processor"


class SliceProbe:
    """Writes to a few partitions until cancelled."""

    def __init__(self, addresses: Mapping[int, str], topic: str, partitions: Sequence[int]) -> None:
        self._addresses, self._nodes, self._topic = dict(addresses), list(addresses), topic
        self._targets = dict.fromkeys(partitions, self._nodes[0])
        self._refused_s: dict[int, float] = {}  # since when
        self._connections: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._batch = memoryview(batch_of([VALUE]))
        self.away_s = dict.fromkeys(partitions, 0.0)
        self.has_written: set[int] = set()
        self.writes_count = 0
        self.is_counted = False  # from then on; before, leaders are looked for

    async def run(self, starts_in_s: float) -> None:
        await asyncio.sleep(starts_in_s)
        due_s = time.monotonic()
        try:
            while True:
                now_s = time.monotonic()
                if now_s >= due_s:
                    asked, due_s = list(self._targets), now_s + EVERY_S
                else:
                    asked = list(self._refused_s)
                by_node: dict[int, list[int]] = {}
                for partition in asked:
                    by_node.setdefault(self._targets[partition], []).append(partition)
                await asyncio.gather(*(self._write(*one) for one in by_node.items()))
                rest_s = max(0.0, due_s - time.monotonic())
                await asyncio.sleep(min(RETRY_S, rest_s) if self._refused_s else rest_s)
        finally:
            for node_id in list(self._connections):
                self._drop(node_id)

    async def _write(self, node_id: int, partitions: Sequence[int]) -> None:
        sent_s = time.monotonic()
        answers: dict[int, tuple[int, int]] = {}
        try:
            async with asyncio.timeout(ANSWER_S):
                answers = await self._ask(node_id, partitions)
        except (OSError, EOFError, TimeoutError):
            self._drop(node_id)
        now_s = time.monotonic()
        for partition in partitions:
            code, leader = answers.get(partition, (-1, -1))
            if not code:
                self._on_written(partition, now_s)
                continue
            self._refused_s.setdefault(partition, sent_s)
            is_told = leader in self._addresses and leader != node_id
            self._targets[partition] = leader if is_told else self._after(node_id)

    def _on_written(self, partition: int, now_s: float) -> None:
        refused_s = self._refused_s.pop(partition, None)
        self.has_written.add(partition)
        self.writes_count += self.is_counted
        if refused_s is not None and self.is_counted:
            self.away_s[partition] = max(self.away_s[partition], now_s - refused_s)

    async def _ask(self, node_id: int, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """By partition the error code, and who leads, where the refusal names somebody; else -1."""
        if node_id not in self._connections:
            host, port = self._addresses[node_id].rsplit(":", 1)
            self._connections[node_id] = await asyncio.open_connection(host, int(port))
        reader, writer = self._connections[node_id]
        data = [PartitionProduceData(partition, self._batch) for partition in partitions]
        topic = TopicProduceData(self._topic, partition_data=data)
        request = ProduceRequest(None, -1, int(ANSWER_S * 1000), [topic])
        writer.write(encode_request(NAMED["Produce"], VERSION, 1, "wide", request))
        size = int.from_bytes(await reader.readexactly(4), "big")
        _, response = decode_response(NAMED["Produce"], VERSION, await reader.readexactly(size))
        answers = response.responses[0].partition_responses
        return {one.index: (one.error_code, one.current_leader.leader_id) for one in answers}

    def _drop(self, node_id: int) -> None:
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection[1].close()

    def _after(self, node_id: int) -> int:
        return self._nodes[(self._nodes.index(node_id) + 1) % len(self._nodes)]


async def until_written(slices: Sequence[SliceProbe]) -> None:
    """Returns when every partition has taken a write that was acknowledged after the call."""
    for one in slices:
        one.has_written.clear()
    while any(len(one.has_written) < len(one.away_s) for one in slices):  # noqa: ASYNC110  (many tell)
        await asyncio.sleep(LOOK_S)


async def probe(addresses: Mapping[int, str], topic: str, partitions: Sequence[int]) -> Wide:
    over = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    slices = [
        SliceProbe(addresses, topic, partitions[start : start + SLICE])
        for start in range(0, len(partitions), SLICE)
    ]
    tasks = [
        asyncio.create_task(one.run(number * EVERY_S / len(slices))) for number, one in enumerate(slices)
    ]
    await until_written(slices)
    for one in slices:
        one.is_counted = True
    print("writing", flush=True)
    began_s, cpu_s = time.monotonic(), time.process_time()
    while not over.is_set():  # noqa: ASYNC110  (set by another thread)
        await asyncio.sleep(LOOK_S)
    await until_written(slices)
    spent_s = time.monotonic() - began_s
    cpu_percent = 100 * (time.process_time() - cpu_s) / spent_s
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(ended, asyncio.CancelledError), ended
    away_s = [seconds for one in slices for seconds in one.away_s.values()]
    return Wide(away_s, sum(one.writes_count for one in slices) / spent_s, cpu_percent)


@contextmanager
def watching(addresses: Mapping[int, str], topic: str, partitions: Sequence[int]) -> Iterator[Wide]:
    """What is done within comes between times at which all partitions take writes. What was found is there
    behind the block."""
    given = {"addresses": dict(addresses), "topic": topic, "partitions": list(partitions)}
    command = [sys.executable, "-m", "tests.bench.wide_gaps", json.dumps(given)]
    wide = Wide()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
            time.sleep(QUIET_S)
            yield wide
            told, _ = process.communicate("\n")
            vars(wide).update(json.loads(told))
        finally:
            process.kill()


@contextmanager
def watching_all(addresses: Mapping[int, str], topic: str, partitions: Sequence[int]) -> Iterator[Watch]:
    """By whichever probe is no load with so many."""
    probes = probing if len(partitions) <= FEW else watching
    with probes(addresses, topic, partitions) as found:
        yield found


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    by_id = {int(node_id): address for node_id, address in given["addresses"].items()}
    print(json.dumps(asdict(uvloop.run(probe(by_id, given["topic"], given["partitions"])))))
