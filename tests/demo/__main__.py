"""`make demo`: the whole of the product on real data, in one go; ends with a table of what was done and
measured.

    pass 1   more than 1 GB of this machine's own files through two client libraries into two topics; read
             back by a consumer group, then, after a restart that leaves all caches empty, from the beginning
             by another library; ingested by Spark; digests compared
    pass 2   as much on new topics with kill -9 of the broker now and then through all of it, and of the
             pipeline too

A digest covers key, value, time and headers of every record, and the order within partitions (digest.py).
Bigger than the caches: the broker's whole process is held to 256 MiB in each of its lives, shared libraries
and all. Exit code 1 if any digest differs, memory was more, or anything that is told of here did not happen:
too little was produced, nobody was killed, nothing was read from objects. Sizes in MB by DEMO_MB (1100) and
DEMO_KILL_MB (as DEMO_MB), each at least DEMO_LEAST_MB (1000).
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.bench.report import Row, exit_code, table
from tests.demo.table import table_digests
from tests.demo.victim import kill_between_batches
from tests.live import LiveBroker

MB, MIB = 1_000_000, 1 << 20
MEMORY_MIB = 256
CLIENTS = ("confluent", "kafka-python")
# Of service between kills: once every client is at work, while they produce, while they read, while the
# pipeline runs.
FIRST_KILL_S, PRODUCE_KILL_S, READ_KILL_S, INGEST_KILL_S = 1.0, 8.0, 3.0, 20.0
MB_A_KILL = 400  # while they produce: no fewer than this
BATCHES = 10  # of the pipeline, or a few more: it is killed between them
SOURCES = ("log_cache", "block_cache", "objects")


class Demo:
    def __init__(self, folder: Path) -> None:
        overrides = {
            "num.partitions": "4",
            "memory.max.bytes": f"{MEMORY_MIB}MiB",
            "s3.wal.upload.interval.ms": "5000",
            "offsets.topic.num.partitions": "4",
        }
        self.folder = folder
        self.broker = LiveBroker(folder / "broker", overrides)
        self.peak_mib = 0.0  # of the lives that were
        self.past_reads: Counter[str] = Counter()  # theirs, too, by where they found what was asked for
        self.rows: list[Row] = []

    def run(self) -> int:
        self.broker.start()
        resident = f"{self.broker.memory_bytes() / MB:.0f} MB resident"
        self.add(Row("broker ready", f"{self.broker.ready_seconds:.2f} s", resident))
        try:
            least = int(os.environ.get("DEMO_LEAST_MB", "1000"))
            megabytes = int(os.environ.get("DEMO_MB", "1100"))
            self.one_pass("pass1", megabytes, least, kills=False)
            self.one_pass("pass2", int(os.environ.get("DEMO_KILL_MB", megabytes)), least, kills=True)
        finally:
            self.broker.kill()
        print(f"\n{table(self.rows)}")
        return exit_code(self.rows)

    def one_pass(self, name: str, megabytes: int, least: int, *, kills: bool) -> None:
        print(f"\n{name}: {megabytes} MB{', killing the broker now and then' if kills else ''}", flush=True)
        topics = [f"{name}-{client}" for client in CLIENTS]
        produced = self.produce(name, topics, megabytes, least, kills=kills)
        self.read(name, topics, produced, kills=kills)
        self.ingest(name, topics, produced, kills=kills)
        self.judge_memory(f"{name}: memory, history and ingest")

    def produce(
        self, name: str, topics: Sequence[str], megabytes: int, least: int, *, kills: bool
    ) -> list[str]:
        """The digest of each topic."""
        started = time.monotonic()
        commands = [
            (
                "tests.demo.produce",
                client,
                self.broker.address,
                topic,
                str(megabytes * MB // 2),
                str(share),
                "2",
            )
            for share, (client, topic) in enumerate(zip(CLIENTS, topics, strict=True))
        ]
        outputs, kill_count = self.run_together(commands, PRODUCE_KILL_S if kills else None)
        produced = [digest_of(output) for output in outputs]
        total = sum(int(digest.split(":")[1]) for digest in produced)
        seconds = time.monotonic() - started
        who = f"{name}: produce by {' and '.join(CLIENTS)}"
        self.add(Row(who, f"{total / seconds / MB:.0f} MB/s", f"{seconds:.1f} s"))
        self.add(at_least(f"{name}: produced", total / MB, least, "MB"))
        if kills:
            self.add_kills(f"{name}: produced", kill_count, max(1, megabytes // MB_A_KILL))
        return produced

    def read(self, name: str, topics: Sequence[str], produced: Sequence[str], *, kills: bool) -> None:
        """By a group as it is; then, when the caches are empty, from the beginning."""
        self.read_back(name, "group", topics, produced, kills=kills)
        self.judge_memory(f"{name}: memory, produce and read")
        self.end_life()
        self.broker.restart()
        self.add(Row(f"{name}: restart, caches empty", f"{self.broker.ready_seconds:.2f} s"))
        reads = self.read_back(name, "beginning", topics, produced, kills=kills)
        self.add(at_least(f"{name}: of it from objects", reads["objects"], 1, "reads"))

    def judge_memory(self, what: str) -> None:
        self.note_memory()
        beside, is_met = "whole process, in all its lives", self.peak_mib < MEMORY_MIB
        self.add(Row(what, f"{self.peak_mib:.0f} MiB", beside, f"below {MEMORY_MIB} MiB", is_met))

    def note_memory(self) -> None:
        self.peak_mib = max(self.peak_mib, self.broker.peak_memory_bytes() / MIB)

    def end_life(self) -> None:
        """Before it ends, for its peak and its counts end with it."""
        self.note_memory()
        self.past_reads = self.reads()

    def reads(self) -> Counter[str]:
        """Those of all lives so far."""
        metrics = self.broker.metrics()
        now = {
            source: int(metrics[f'millrace_storage_reads_total{{source="{source}"}}']) for source in SOURCES
        }
        return Counter({source: self.past_reads[source] + count for source, count in now.items()})

    def read_back(
        self, name: str, mode: str, topics: Sequence[str], produced: Sequence[str], *, kills: bool
    ) -> Counter[str]:
        """Compares what is read; the broker's reads meanwhile, by where it found what was asked for."""
        before = self.reads()
        started = time.monotonic()
        commands = [
            ("tests.demo.consume", mode, self.broker.address, topic, f"{name}-readers") for topic in topics
        ]
        outputs, kill_count = self.run_together(commands, READ_KILL_S if kills else None)
        seconds = time.monotonic() - started
        after = self.reads()
        reads = Counter({source: after[source] - before[source] for source in SOURCES})
        words = ", ".join(f"{source} {reads[source]}" for source in SOURCES)
        read = [digest_of(output) for output in outputs]
        self.check(f"{name}: read by {mode}, {seconds:.1f} s", read, produced, f"reads: {words}")
        if kills:
            self.add_kills(f"{name}: read by {mode}", kill_count, 1)
        return reads

    def ingest(self, name: str, topics: Sequence[str], produced: Sequence[str], *, kills: bool) -> None:
        lake, config = self.folder / f"lake-{name}", self.folder / f"{name}.toml"
        checkpoint = self.folder / f"checkpoint-{name}"
        names = ", ".join(f'"{topic}"' for topic in topics)
        count = sum(int(digest.split(":")[0]) for digest in produced)
        config.write_text(
            f'[kafka]\nbootstrap_servers = "{self.broker.address}"\ntopics = [{names}]\n'
            f"max_offsets_per_trigger = {count // BATCHES + 1}\n"
            f'[table]\npath = "{lake}"\ncheckpoint = "{checkpoint}"\n'
            '[spark]\n"spark.driver.memory" = "2g"\n"spark.master" = "local[2]"\n'
        )
        words = ("--config", str(config), "--once")
        started = time.monotonic()
        if kills:
            batches = kill_between_batches(
                [sys.executable, "-m", "millrace.spark_jobs", "ingest", *words], checkpoint
            )
            done = f"{batches} batches were written" if batches is not None else "it had ended by itself"
            self.add(at_least(f"{name}: kill -9 of the pipeline", int(batches is not None), 1, "kills", done))
        command = ("millrace.broker", "pipeline", "run", "ingest", *words)
        _, kill_count = self.run_together([command], INGEST_KILL_S if kills else None)
        seconds = time.monotonic() - started
        self.check(f"{name}: ingest to Parquet, {seconds:.1f} s", table_digests(lake, topics), produced, "")
        if kills:
            self.add_kills(f"{name}: ingest", kill_count, 1)

    def add_kills(self, what: str, count: int, least: int) -> None:
        self.add(at_least(f"{what} through kill -9 of the broker", count, least, "kills"))

    def run_together(
        self, commands: Sequence[Sequence[str]], kill_every_s: float | None
    ) -> tuple[list[str], int]:
        """Runs them side by side, showing what they print; meanwhile kills the broker now and then if asked
        to. What each printed, and the kills."""
        processes = [
            subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
            for command in commands
        ]
        outputs: list[list[str]] = [[] for _ in processes]
        readers = [threading.Thread(target=show, args=pair) for pair in zip(processes, outputs, strict=True)]
        for reader in readers:
            reader.start()
        try:
            kill_count = (
                0 if kill_every_s is None else self.kill_now_and_then(processes, outputs, kill_every_s)
            )
            for reader in readers:
                reader.join()
        finally:
            for process in processes:
                process.kill()
        for command, process in zip(commands, processes, strict=True):
            if process.wait():
                raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
        return ["".join(output) for output in outputs], kill_count

    def kill_now_and_then(
        self, processes: Sequence[subprocess.Popen[str]], outputs: Sequence[list[str]], every_s: float
    ) -> int:
        """Once all have something to tell, kills and restarts the broker again and again until the processes
        end."""
        kill_count, next_kill = 0, math.inf
        while any(process.poll() is None for process in processes):
            time.sleep(0.05)
            if next_kill == math.inf and all(outputs):
                next_kill = time.monotonic() + FIRST_KILL_S
            if time.monotonic() >= next_kill:
                self.end_life()
                self.broker.kill()
                self.broker.start()
                kill_count += 1
                next_kill = time.monotonic() + every_s
                print(f"  broker killed and back in {self.broker.ready_seconds:.2f} s", flush=True)
        return kill_count

    def check(self, what: str, found: Sequence[str], expected: Sequence[str], note: str) -> None:
        same = list(found) == list(expected)
        verdict = "digests equal" if same else f"DIGESTS DIFFER: {list(found)} for {list(expected)}"
        self.add(Row(what, verdict, note, "equal", same))

    def add(self, row: Row) -> None:
        self.rows.append(row)
        print("  ".join((f"{row.what}: {row.figure}", row.beside, row.verdict)).rstrip(), flush=True)


def at_least(what: str, count: float, least: int, unit: str, beside: str = "") -> Row:
    return Row(what, f"{count:,.0f} {unit}", beside, f"{least:,} {unit}", count >= least)


def show(process: subprocess.Popen[str], output: list[str]) -> None:
    """Passes on what a process prints while it prints it, and keeps it."""
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line)
        if line.startswith(("  ", "ingest:")):
            print(line, end="", flush=True)


def digest_of(output: str) -> str:
    return next(line.split()[1] for line in reversed(output.splitlines()) if line.startswith("digest "))


def main() -> int:
    parent = os.environ.get("DEMO_DIR")
    folder = Path(tempfile.mkdtemp(prefix="millrace-demo-", dir=parent))
    print(f"demo under {folder}", flush=True)
    try:
        return Demo(folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
