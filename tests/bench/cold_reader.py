"""What a reader of history costs those at the tail, and how fast it reads itself: `python -m tests.bench.cold_reader`.

    python -m tests.bench.cold_reader [--folder DIR] [--store file|s3] [--mib N] [--rounds N]

A broker process with a topic several times its memory in objects. Rounds without and with a reader of that topic at full speed alternate, beside a
paced producer and a consumer at the tail of another topic, so that a neighbour's load hits both alike; what counts is the ratio of their
99th percentiles. Then the reader alone, by turns with a plain client that asks the store itself for the same bytes. Both run in
processes of their own. Nothing here fails by time: a missed target is a word in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from millrace.protocol.apis import API
from millrace.protocol.batches import iter_headers
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.bench.cold_load import FETCH_VERSION, ColdReader
from tests.bench.produce_load import ProduceLoad, ask, batch_of, make_topic, produce_frame
from tests.bench.report import OthersCpu, Row, table
from tests.live import LiveBroker
from tests.live.s3_server import S3Server

MIB = 1 << 20
HOT, COLD = "hot", "cold"
PACE_S = 0.01  # a batch of 10 KB each: 1 MB/s


class TailProbe:
    """A producer at a pace, and a consumer at the tail: acknowledgements and arrivals, in seconds since the send."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._batch = batch_of(10, 1000)
        self._sent: dict[int, float] = {}
        self.acks: list[float] = []
        self.arrivals: list[float] = []
        self._offset = 0
        self._is_stopping = False

    async def __aenter__(self) -> TailProbe:
        self._tasks = [asyncio.create_task(self._produce()), asyncio.create_task(self._consume())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_stopping = True
        await asyncio.gather(*self._tasks)

    async def measure(self, seconds: float) -> tuple[float, float]:
        """The 99th percentiles of both in that stretch, in milliseconds."""
        self.acks, self.arrivals = [], []
        await asyncio.sleep(seconds)
        return quantile_ms(self.acks, 0.99), quantile_ms(self.arrivals, 0.99)

    async def _produce(self) -> None:
        """Sends when a batch is due, whatever is not answered yet; what waits behind a late answer counts as late."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        frame, due, offset = produce_frame(HOT, 0, self._batch), time.perf_counter(), 0
        in_flight: asyncio.Queue[float] = asyncio.Queue()
        answering = asyncio.create_task(self._take_acks(reader, in_flight))
        while not self._is_stopping:
            due += PACE_S
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self._sent[offset + 9] = due
            in_flight.put_nowait(due)
            writer.write(frame)
            offset += 10
        in_flight.put_nowait(0.0)
        await answering
        writer.close()

    async def _take_acks(self, reader: asyncio.StreamReader, in_flight: asyncio.Queue[float]) -> None:
        while due := await in_flight.get():
            size = int.from_bytes(await reader.readexactly(4), "big")
            await reader.readexactly(size)
            self.acks.append(time.perf_counter() - due)

    async def _consume(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while not self._is_stopping:
            wanted = FetchPartition(0, -1, self._offset, partition_max_bytes=MIB)
            topics = [FetchTopic(HOT, partitions=[wanted])]
            request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=MIB, session_epoch=-1, topics=topics)
            writer.write(encode_request(API[1], FETCH_VERSION, 1, "tail", request))
            size = int.from_bytes(await reader.readexactly(4), "big")
            _, response = decode_response(API[1], FETCH_VERSION, await reader.readexactly(size))
            [answer] = response.responses[0].partitions
            now = time.perf_counter()
            for _, header in iter_headers(memoryview(answer.records or b"")):
                self._offset = header.last_offset + 1
                sent = self._sent.pop(header.last_offset, None)
                if sent is not None:
                    self.arrivals.append(now - sent)
        writer.close()


class Beside:
    """A reader process, from `with` to its end; `rate` is what it read in bytes a second."""

    def __init__(self, *words: str) -> None:
        self._words = [sys.executable, "-m", "tests.bench.cold_load", *words]
        self.rate = 0.0

    def __enter__(self) -> Beside:
        self._process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._first = self._process.stdout.readline().split()  # it is under way
        return self

    def __exit__(self, *_: object) -> None:
        output, _ = self._process.communicate()
        lines = [line.split() for line in output.splitlines()]
        if lines:
            self.rate = (int(lines[-1][0]) - int(self._first[0])) / (float(lines[-1][1]) - float(self._first[1]))


class ColdBench:
    def __init__(self, folder: Path, address: str, mib: int, rounds: int) -> None:
        settings = {"memory.max.bytes": "256MiB", "s3.wal.upload.threshold": "64MiB", "s3.data.buckets": address}
        self.broker = LiveBroker(folder, settings, wal="512MiB")
        self._address = address
        self._mib = mib
        self._rounds = rounds
        self.rows: list[Row] = []

    def add(self, *row: str | bool | None) -> None:
        self.rows.append(Row(*row))  # type: ignore[arg-type]
        print(".", end="", flush=True, file=sys.stderr)

    async def run(self) -> None:
        self.broker.start()
        await self.fill()
        self.broker.restart()  # uploads the rest; nothing is cached
        await self.first_byte()
        await self.hot()
        await self.cold()

    async def fill(self) -> None:
        port = self.broker.port
        await make_topic(port, HOT, 1)
        await make_topic(port, COLD, 1)
        load = await ProduceLoad(port, [produce_frame(COLD, 0, batch_of(64, 1000))], 8).start()
        left = self._mib
        while left > 0:
            left -= (await load.measure(0.1)).bytes_count / MIB
        await load.stop()

    async def first_byte(self) -> None:
        """The first fetch of an open partition, somewhere in the middle: what it asked of the store, and how long that took beside its GETs."""
        reader = ColdReader(self.broker.port, COLD)
        latest = ListOffsetsTopic(COLD, [ListOffsetsPartition(0, -1, -1)])
        await ask(self.broker.port, 2, 7, ListOffsetsRequest(-1, 0, [latest]))  # opens it
        reader.offset = self._mib * 500 // 64 * 64  # about half of the records
        before = self.broker.metrics()
        began = time.perf_counter()
        reader.fetch(64 << 10)
        took_ms = 1000 * (time.perf_counter() - began)
        after = self.broker.metrics()
        gets = gets_of(after) - gets_of(before)
        spent = 'millrace_store_seconds_sum{operation="get"}'
        spent_ms = 1000 * (after.get(spent, 0.0) - before.get(spent, 0.0))
        beside = f"{took_ms:.1f} ms, of which {spent_ms:.1f} in GETs"
        self.add("first byte of a cold read", f"{gets:.0f} GETs", beside, "2 GETs", gets <= 2)

    async def hot(self) -> None:
        alone: list[tuple[float, float]] = []
        beside: list[tuple[float, float]] = []
        rates: list[float] = []
        others = OthersCpu([self.broker.pid])
        async with TailProbe(self.broker.port) as probe:
            await probe.measure(2)
            for _ in range(self._rounds):
                alone.append(await probe.measure(4))
                reader = Beside("fetch", str(self.broker.port), COLD)
                await asyncio.to_thread(reader.__enter__)
                beside.append(await probe.measure(4))
                await asyncio.to_thread(reader.__exit__)
                rates.append(reader.rate)
        for place, what in enumerate(("acks=all", "arrival at the tail")):
            before = statistics.median(pair[place] for pair in alone)
            after = statistics.median(pair[place] for pair in beside)
            ratio = statistics.median(b[place] / a[place] for a, b in zip(alone, beside, strict=True))
            text = f"{before:.2f} ms without, {after:.2f} ms with a cold reader"
            self.add(f"p99 of {what}, ratio", f"{ratio:.2f}", text, "1.5", ratio < 1.5)
        self.add(
            "  the reader meanwhile",
            f"{statistics.median(rates) / 1e6:.0f} MB/s",
            f"others {others.percent():.0f} % of the machine",
        )

    async def cold(self) -> None:
        own: list[float] = []
        plain: list[float] = []
        cpu_s = 0.0
        for _ in range(self._rounds):
            for rates, words in ((plain, ("store", self._address)), (own, ("fetch", str(self.broker.port), COLD))):
                before = self.broker.cpu_seconds()
                with Beside(*words) as reader:
                    await asyncio.sleep(4)
                rates.append(reader.rate)
                cpu_s += self.broker.cpu_seconds() - before if rates is own else 0.0
        rate, store = statistics.median(own), statistics.median(plain)
        ratio = statistics.median(a / b for a, b in zip(own, plain, strict=True))
        text = f"a plain client of the store {store / 1e6:.0f} MB/s"
        self.add("cold read of one stream", f"{rate / 1e6:.0f} MB/s", text)
        self.add("  of the plain client's", f"{100 * ratio:.0f} %", "", "80 %", ratio >= 0.8)
        self.add("  broker CPU a MiB", f"{1e3 * cpu_s / (sum(own) * 4 / MIB):.2f} ms", "", "")
        self.add("  broker memory", f"{self.broker.memory_bytes() / MIB:.0f} MiB", "of 256 MiB set")


def gets_of(metrics: dict[str, float]) -> float:
    return sum(
        value for name, value in metrics.items() if name.startswith('millrace_store_requests_total{operation="get"')
    )


def quantile_ms(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the broker keeps its data; a temporary folder otherwise")
    parser.add_argument(
        "--store", choices=("file", "s3"), default="file", help="s3: the tests' own S3 server beside it"
    )
    parser.add_argument("--mib", type=int, default=768, help="size of the topic that is read cold")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cold-", dir=options.folder))
    try:
        if options.store == "file":
            run(folder, f"0@file://{folder}/objects", options.mib, options.rounds)
        else:
            with S3Server(folder / "s3") as server:
                server.make("lake")
                run(folder, server.address("lake"), options.mib, options.rounds)
    finally:
        shutil.rmtree(folder)


def run(folder: Path, address: str, mib: int, rounds: int) -> None:
    bench = ColdBench(folder / "broker", address, mib, rounds)
    try:
        asyncio.run(bench.run())
    finally:
        bench.broker.kill()
    print(f"\n{table(bench.rows)}")


if __name__ == "__main__":
    main()
