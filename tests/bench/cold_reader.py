"""What a reader of history costs those at the tail, and how fast it reads itself: `python -m
tests.bench.cold_reader`.

    python -m tests.bench.cold_reader [--folder DIR] [--store memory|disk|s3] [--mib N] [--rounds N]

A broker process with a topic several times its memory in objects. What is measured, and against what:

  the tail   A paced producer and a consumer at the tail of another topic, in rounds without and with a reader
             of the large topic at full speed, by turns, so that a neighbour's load hits both alike; compared
             are the medians of the rounds' 99th percentiles. In life clients have processors of their own.
             Here they share two with the broker: the probe runs before all others where the system lets it
             (it measures the broker's delay, not its own), and the reader's client in some rounds behind all
             others, as if it were elsewhere, in some as their equal. Beside it stands a plain stream: a
             process that GETs as many bytes from the store and sends them to another, and does nothing else:
             what the machine does to the tail for so many bytes, whoever serves them.
  the turns  How long turns of the broker's event loop held who came meanwhile (loop_probe.py): work of the
             loop's own thread, neighbours not counted. This is the broker's own part of the above.
  the engine The reader alone, by Stream.fetch, in one process with the store's client, by turns with a plain
  client that asks the store itself for
             the same bytes, one GET after another and several at once. The plain client fills memory that it
             has and does nothing with it: no checksum, no second copy. The block cache is what a broker as it
             is installed has, and what one with 256 MiB in all has.
  the wire   The same through the broker, beside the plain stream at no pace: both GET and send to another
             process.
  far        The same with a store as far away as in life (20 ms to the first byte, 90 MB/s a connection, 1
             GB/s in all), the plain client with as many connections as the engine used; of the engine's
             passes over the topic the first quarter is left out, where it finds its stride, and told apart.

Where the objects are: `memory`, a directory that the WAL's disk knows nothing of, as a bucket is; `disk`, a
directory on that disk, and what readers leave in the page cache is dropped several times a second, for what
is read cold in life is not there either; `s3`, a server on these two cores, behind all others like the
reader's client. All processes are apart. Exit code 1 when a target was missed, also one that is known to be.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millrace.protocol.apis import API
from millrace.protocol.batches import iter_headers
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.bench import loop_probe
from tests.bench.cold_load import FETCH_VERSION, ColdReader
from tests.bench.produce_load import ProduceLoad, ask, batch_of, make_topic, produce_frame
from tests.bench.report import OthersCpu, Row, exit_code, table
from tests.live import LiveBroker
from tests.live.s3_server import S3Server

MIB = 1 << 20
HOT, COLD = "hot", "cold"
MEMORY = Path("/dev/shm")
QUIET_P99_MS = 10.0  # of a load of 1 MB/s: beyond it a ratio tells of neighbours, and is not judged
ENGINE_CACHE_MIB = 32  # what the broker here has of its 256
DEFAULT_CACHE_MIB = 160  # what a broker as it is installed has on a machine of 4 GiB
FORGET_S = 0.15
ROUND_S = 5.0
PACE_S = 0.01  # a batch of 10 KB each: 1 MB/s


class TailProbe:
    """A producer at a pace, and a consumer at the tail: acknowledgements and arrivals, in seconds since the
    send."""

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

    async def measure(self, seconds: float) -> tuple[list[float], list[float]]:
        """Both in that stretch."""
        self.acks, self.arrivals = [], []
        await asyncio.sleep(seconds)
        return self.acks, self.arrivals

    async def _produce(self) -> None:
        """Sends when a batch is due, whatever is not answered yet; what waits behind a late answer counts as
        late."""
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
            request = FetchRequest(
                max_wait_ms=500, min_bytes=1, max_bytes=MIB, session_epoch=-1, topics=topics
            )
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
    """A reader process, from `with` to its end, and what it told: bytes a second, CPU seconds a byte, GETs at
    most at once."""

    def __init__(self, *words: str, is_elsewhere: bool = False) -> None:
        """`is_elsewhere`: takes what processors have left."""
        self._words = [sys.executable, "-m", "tests.bench.cold_load", *words]
        self._is_elsewhere = is_elsewhere
        self.rate = self.steady_rate = self.cpu_s_a_mib = 0.0
        self.most_at_once = 0

    def __enter__(self) -> Beside:
        self._process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self._is_elsewhere:
            run_behind_all(self._process.pid)
        assert self._process.stdout is not None
        self._first = self._process.stdout.readline().split()  # it is under way
        return self

    def __exit__(self, *_: object) -> None:
        output = self._process.communicate()[0]
        lines = [line.split() for line in output.splitlines()]
        if not lines:
            return
        size, seconds, cpu, steady_size, steady_s = (
            float(last) - float(first) for first, last in zip(self._first[:5], lines[-1][:5], strict=True)
        )
        self.rate = size / seconds
        self.steady_rate = steady_size / steady_s if steady_s else 0.0
        self.cpu_s_a_mib = cpu / (size / MIB)
        self.most_at_once = int(lines[-1][5])


def run_behind_all(pid: int) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


def run_before_all() -> bool:
    """This process alone, not those it starts. Whether the system lets it."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        return False
    return True


def forget(folder: Path) -> None:
    """Takes the folder's files out of the page cache; meanwhile some come, and some go."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError), open(os.path.join(place, name), "rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class ProbedBroker(LiveBroker):
    """With a probe on its loop."""

    @property
    def probe_file(self) -> Path:
        return self.folder / "turns.json"

    def command(self) -> list[str]:
        python, _, _, *words = super().command()
        return [python, "-m", "tests.bench.loop_probe", str(self.probe_file), *words]


@dataclass
class Round:
    """One stretch of the tail's load: acknowledgements and arrivals, in seconds."""

    acks: list[float]
    arrivals: list[float]
    turn_ms: float
    longest_turn_ms: float
    rate: float = 0.0


class ColdBench:
    def __init__(self, folder: Path, address: str, mib: int, rounds: int, forgotten: Path | None) -> None:
        """`forgotten`: a folder that is kept out of the page cache. What compaction replaces stays, for those
        who list the bucket and read on."""
        settings = {
            "memory.max.bytes": "256MiB",
            "s3.wal.upload.threshold": "64MiB",
            "s3.data.buckets": address,
            "s3.object.delete.retention.minutes": "60",
        }
        self.broker = ProbedBroker(folder, settings, wal="512MiB")
        self._address = address
        self._forgotten = forgotten
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
        await self.far()

    async def fill(self) -> None:
        port = self.broker.port
        await make_topic(port, HOT, 1)
        await make_topic(port, COLD, 1)
        load = await ProduceLoad(port, [produce_frame(COLD, 0, batch_of(64, 1000))], 8).start()
        left: float = self._mib
        while left > 0:
            left -= (await load.measure(0.1)).bytes_count / MIB
        await load.stop()

    async def first_byte(self) -> None:
        """The first fetch of an open partition, somewhere in the middle: what it asked of the store, and how
        long that took beside its GETs."""
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
        spent = 'millrace_store_request_duration_seconds_sum{operation="get"}'
        spent_ms = 1000 * (after.get(spent, 0.0) - before.get(spent, 0.0))
        beside = f"{took_ms:.1f} ms, of which {spent_ms:.1f} in GETs"
        self.add("first byte of a cold read", f"{gets:.0f} GETs", beside, "2 GETs", gets <= 2)

    async def hot(self) -> None:
        others = OthersCpu([self.broker.pid])
        cold = ("fetch", str(self.broker.port), COLD)
        rounds: dict[str, list[Round]] = {"alone": [], "elsewhere": [], "equal": [], "stream": []}
        is_before_all = run_before_all()
        async with TailProbe(self.broker.port) as probe:
            await probe.measure(2)
            for _ in range(self._rounds):
                rounds["alone"].append(await self.one_round(probe, None))
                rounds["elsewhere"].append(await self.one_round(probe, Beside(*cold, is_elsewhere=True)))
                rounds["equal"].append(await self.one_round(probe, Beside(*cold)))
                plain = Beside("stream", self._address, str(rounds["equal"][-1].rate / 1e6))
                rounds["stream"].append(await self.one_round(probe, plain))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        for kind, client in (
            ("elsewhere", "cold reader"),
            ("equal", "cold reader, its client an equal"),
            ("stream", "plain stream as quick"),
        ):
            for name, what in (("acks", "acks=all"), ("arrivals", "arrival at the tail")):
                before, after = p99_ms(rounds["alone"], name), p99_ms(rounds[kind], name)
                text = f"{before:.2f} ms without, {after:.2f} ms with it"
                is_idle = before <= QUIET_P99_MS
                target: tuple[str, bool | None] = ("", None)
                if kind != "stream":
                    target = "1.5 x", after < 1.5 * before if is_idle else None
                self.add(
                    f"p99 of {what}, {client}",
                    f"{after / before:.2f} x",
                    text if is_idle else f"{text}: too busy a machine",
                    *target,
                )
            rate = statistics.median(one.rate for one in rounds[kind])
            self.add("  at", f"{rate / 1e6:.0f} MB/s")
        self.add("  the probe runs before all others", "yes" if is_before_all else "no, not permitted")
        for name, what in (("turn_ms", "p99 of the loop's turns"), ("longest_turn_ms", "the longest turn")):
            before, after = (
                statistics.median(getattr(one, name) for one in rounds[kind])
                for kind in ("alone", "elsewhere")
            )
            self.add(f"{what}, work alone", f"{after:.2f} ms", f"{before:.2f} ms without a cold reader")
        self.add(
            "  other processes meanwhile",
            f"{others.percent():.0f} %",
            "of the machine, this bench's own among them",
        )

    async def one_round(self, probe: TailProbe, reader: Beside | None) -> Round:
        """Without a reader of history, or with one."""
        if reader is not None:
            await asyncio.to_thread(reader.__enter__)
        await asyncio.to_thread(loop_probe.ask, self.broker.pid, self.broker.probe_file)
        forgetting = asyncio.create_task(self.pass_cold(ROUND_S + 0.2))
        await asyncio.sleep(0.2)
        acks, arrivals = await probe.measure(ROUND_S)
        await forgetting
        _, worked_us = await asyncio.to_thread(loop_probe.ask, self.broker.pid, self.broker.probe_file)
        if reader is not None:
            await asyncio.to_thread(reader.__exit__)
        turn_ms = worked_us[len(worked_us) * 99 // 100] / 1000
        return Round(acks, arrivals, turn_ms, worked_us[-1] / 1000, reader.rate if reader else 0.0)

    async def pass_cold(self, seconds: float) -> None:
        """So much time, in which what is read from a directory comes from its disk."""
        until = time.perf_counter() + seconds
        while (left_s := until - time.perf_counter()) > 0:
            if self._forgotten is not None:
                await asyncio.to_thread(forget, self._forgotten)
            await asyncio.sleep(min(left_s, FORGET_S))

    async def cold(self) -> None:
        """Through the broker and by the engine alone, by turns with the plain client."""
        kinds: dict[str, tuple[str, ...]] = {
            "plain": ("store", self._address, "1"),
            "wide": ("store", self._address, "4"),
            "engine": ("engine", self._address, str(ENGINE_CACHE_MIB)),
            "roomy": ("engine", self._address, str(DEFAULT_CACHE_MIB)),
            "wire": ("fetch", str(self.broker.port), COLD),
            "served": ("stream", self._address, "1000000"),
        }
        runs: dict[str, list[Beside]] = {kind: [] for kind in kinds}
        cpu_s = read_mib = 0.0
        for _ in range(self._rounds):
            for kind, words in kinds.items():
                before = self.broker.cpu_seconds()
                with Beside(*words) as reader:
                    await self.pass_cold(4)
                runs[kind].append(reader)
                if kind == "wire":
                    cpu_s += self.broker.cpu_seconds() - before
                    read_mib += reader.rate * 4 / MIB
        best = [max(a.rate, b.rate) for a, b in zip(runs["plain"], runs["wide"], strict=True)]
        self.add_plain("a plain client of the store, one GET at a time", runs["plain"])
        self.add_plain("  four at a time", runs["wide"])
        for kind, what in (
            ("roomy", "cold read of one stream, by the engine"),
            ("engine", f"  with a block cache of {ENGINE_CACHE_MIB} MiB"),
            ("wire", "  through the broker"),
        ):
            ratio = statistics.median(run.rate / rate for run, rate in zip(runs[kind], best, strict=True))
            text = f"{median_rate(runs[kind]):.0f} MB/s beside the quicker of the two"
            target: tuple[str, bool | None] = ("80 %", ratio >= 0.8) if kind == "roomy" else ("", None)
            self.add(what, f"{100 * ratio:.0f} %", text, *target)
        ratio = statistics.median(a.rate / b.rate for a, b in zip(runs["wire"], runs["served"], strict=True))
        text = f"{median_rate(runs['served']):.0f} MB/s at no pace"
        self.add(
            "  through the broker, beside the plain stream",
            f"{100 * ratio:.0f} %",
            text,
            "80 %",
            ratio >= 0.8,
            True,
        )
        engine_ms = 1e3 * statistics.median(run.cpu_s_a_mib for run in runs["engine"])
        self.add("  CPU a MiB: the engine's process", f"{engine_ms:.2f} ms", "the store's client in it")
        self.add(
            "  CPU a MiB: the broker's process",
            f"{1e3 * cpu_s / read_mib:.2f} ms",
            "with requests and replies",
        )
        self.add("  broker memory", f"{self.broker.memory_bytes() / MIB:.0f} MiB", "of 256 MiB set")

    async def far(self) -> None:
        for cache_mib in (ENGINE_CACHE_MIB, 4 * ENGINE_CACHE_MIB):
            own, plain = [], []
            for _ in range(max(1, self._rounds // 2)):
                with Beside("engine", self._address, str(cache_mib), "far") as reader:
                    await asyncio.sleep(8)
                own.append(reader)
                with Beside("store", self._address, str(reader.most_at_once), "far") as reader:
                    await asyncio.sleep(4)
                plain.append(reader)
            ratio = statistics.median(a.steady_rate / b.rate for a, b in zip(own, plain, strict=True))
            steady = statistics.median(run.steady_rate for run in own) / 1e6
            beside = f"{steady:.0f} of {median_rate(plain):.0f} MB/s, {own[-1].most_at_once} connections each"
            beside += f"; whole passes {median_rate(own):.0f}"
            self.add(
                f"far store, block cache of {cache_mib} MiB",
                f"{100 * ratio:.0f} %",
                beside,
                "80 %",
                ratio >= 0.8,
            )

    def add_plain(self, what: str, runs: list[Beside]) -> None:
        cpu_ms = 1e3 * statistics.median(run.cpu_s_a_mib for run in runs)
        self.add(what, f"{median_rate(runs):.0f} MB/s", f"{cpu_ms:.2f} ms of CPU a MiB")


def p99_ms(rounds: list[Round], name: str) -> float:
    """The median of the rounds': one stall of the machine is one round's."""
    stretches: list[list[float]] = [getattr(one, name) for one in rounds]
    return statistics.median(1000 * sorted(values)[len(values) * 99 // 100] for values in stretches)


def median_rate(runs: list[Beside]) -> float:
    """In MB/s."""
    return statistics.median(run.rate for run in runs) / 1e6


def gets_of(metrics: dict[str, float]) -> float:
    return sum(
        value
        for name, value in metrics.items()
        if name.startswith('millrace_store_requests_total{operation="get"')
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, help="where the broker keeps its data; a temporary folder otherwise"
    )
    parser.add_argument(
        "--store", choices=("memory", "disk", "s3"), default="memory", help="where the objects are"
    )
    parser.add_argument("--mib", type=int, default=768, help="size of the topic that is read cold")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cold-", dir=options.folder))
    objects = Path(tempfile.mkdtemp(prefix="cold-", dir=MEMORY if options.store == "memory" else folder))
    try:
        if options.store != "s3":
            forgotten = objects if options.store == "disk" else None
            return run(
                ColdBench(folder / "broker", f"0@file://{objects}", options.mib, options.rounds, forgotten)
            )
        with S3Server(objects / "s3") as server:
            server.make("lake")
            run_behind_all(server.pid)
            return run(
                ColdBench(folder / "broker", server.address("lake"), options.mib, options.rounds, None)
            )
    finally:
        shutil.rmtree(objects)
        shutil.rmtree(folder)


def run(bench: ColdBench) -> int:
    try:
        asyncio.run(bench.run())
    finally:
        bench.broker.kill()
    print(f"\n{table(bench.rows)}")
    return exit_code(bench.rows)


if __name__ == "__main__":
    sys.exit(main())
