"""For how long partitions take no writes, while nodes of a cluster go, come and hand over.

    with probing(addresses, topic, partitions) as gaps:
        ...                             what is measured; every partition takes writes before and after
    gaps.longest_s()                    by partition

One connection a partition and node, all in a thread of its own. A partition that takes writes is written to
every `EVERY_S`; one that does not is asked for again after `RETRY_S`, at the node that the refusal names
(KIP-951), or else at the next one: no metadata is asked for, which would cost a cluster of thousands of
partitions more than what is measured. A gap is the time between two acknowledgements, so `EVERY_S` at the
least. Clients' own back-off comes on top of it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Protocol

import uvloop

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.live.client import batch_of
from tests.patience import until

EVERY_S = 0.02
RETRY_S = 0.005
ANSWER_S = 2.0  # after which a node that says nothing is given up
QUIET_S = 0.5  # of acknowledgements before and after what is measured
VERSION = 12  # of Produce: topics by name, refusals name who leads
VALUE = b"x" * 100


class Connection:
    """To one node, for one partition: one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def write(self, frame: bytes) -> tuple[int, int]:
        """The error code, and who leads, where the refusal names somebody; else -1."""
        self._writer.write(frame)
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        _, response = decode_response(NAMED["Produce"], VERSION, await self._reader.readexactly(size))
        (answer,) = response.responses[0].partition_responses
        return answer.error_code, answer.current_leader.leader_id

    def close(self) -> None:
        self._writer.close()


class PartitionProbe:
    """Writes to one partition until cancelled. `acknowledged`: when, on the monotonic clock."""

    def __init__(self, addresses: Mapping[int, str], topic: str, index: int) -> None:
        self._addresses = dict(addresses)
        self._nodes = list(addresses)
        self._target = self._nodes[index % len(self._nodes)]
        self._connections: dict[int, Connection] = {}
        data = PartitionProduceData(index, memoryview(batch_of([VALUE])))
        request = ProduceRequest(
            None, -1, int(ANSWER_S * 1000), [TopicProduceData(topic, partition_data=[data])]
        )
        self._frame = encode_request(NAMED["Produce"], VERSION, 1, "gaps", request)
        self.acknowledged: list[float] = []

    async def run(self) -> None:
        try:
            while True:
                is_written = await self._write()
                await asyncio.sleep(EVERY_S if is_written else RETRY_S)
        finally:
            for connection in self._connections.values():
                connection.close()

    async def _write(self) -> bool:
        node_id = self._target
        try:
            async with asyncio.timeout(ANSWER_S):
                code, leader = await (await self._connected(node_id)).write(self._frame)
        except (OSError, EOFError, TimeoutError):
            self._drop(node_id)
            code, leader = -1, -1
        if not code:
            self.acknowledged.append(time.monotonic())
            return True
        is_told = leader in self._addresses and leader != node_id
        self._target = leader if is_told else self._after(node_id)
        return False

    async def _connected(self, node_id: int) -> Connection:
        if node_id not in self._connections:
            host, port = self._addresses[node_id].rsplit(":", 1)
            self._connections[node_id] = Connection(*await asyncio.open_connection(host, int(port)))
        return self._connections[node_id]

    def _drop(self, node_id: int) -> None:
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()

    def _after(self, node_id: int) -> int:
        return self._nodes[(self._nodes.index(node_id) + 1) % len(self._nodes)]


class WriteGaps(threading.Thread):
    """Probes of some partitions, from `start` to `finish`."""

    def __init__(self, addresses: Mapping[int, str], topic: str, partitions: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._probes = {index: PartitionProbe(addresses, topic, index) for index in partitions}
        self._is_over = threading.Event()

    def run(self) -> None:
        uvloop.run(self._run())

    async def _run(self) -> None:
        tasks = [asyncio.create_task(probe.run()) for probe in self._probes.values()]
        while not self._is_over.is_set():  # noqa: ASYNC110  (set by another thread)
            await asyncio.sleep(EVERY_S)
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended

    def finish(self) -> None:
        self._is_over.set()
        self.join()

    def wait_written(self) -> None:
        """Returns when every partition has taken a write that was acknowledged after the call."""
        since_s = time.monotonic()
        probes = self._probes.values()
        until(
            lambda: all(probe.acknowledged and probe.acknowledged[-1] > since_s for probe in probes),
            "a partition takes no writes",
        )

    def gaps_s(self, index: int) -> list[float]:
        return [after - before for before, after in pairwise(self._probes[index].acknowledged)]

    def longest_s(self) -> list[float]:
        """By partition."""
        return [max(self.gaps_s(index)) for index in self._probes]

    def cost(self) -> str:
        return ""


class Watch(Protocol):
    """What a probe has found, behind its block."""

    def longest_s(self) -> list[float]:
        """By partition, the longest time without writes."""
        ...

    def cost(self) -> str:
        """What the probe itself costs, in words; "" where that is next to nothing."""
        ...


@contextmanager
def probing(addresses: Mapping[int, str], topic: str, partitions: Sequence[int]) -> Iterator[WriteGaps]:
    """What is done within comes between times at which all partitions take writes."""
    gaps = WriteGaps(addresses, topic, partitions)
    gaps.start()
    try:
        gaps.wait_written()
        time.sleep(QUIET_S)
        yield gaps
        gaps.wait_written()
        time.sleep(QUIET_S)
    finally:
        gaps.finish()


def quantile_ms(seconds: Sequence[float], fraction: float) -> float:
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]
