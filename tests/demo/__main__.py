"""`make demo`: the whole of the product on real data, in one go; ends with a table of what was done and measured.

    pass 1   more than 1 GB of this machine's own files through two client libraries into two topics; read back by a consumer group, then,
             after a restart that leaves all caches empty, from the beginning by another library; ingested by Spark; digests compared
    pass 2   the same on new topics with kill -9 of the broker in mid-stream, of the pipeline too

Bigger than the caches: the broker's whole process is held to 256 MiB in each of its lives, shared libraries and all. Exit code 1 if any digest
differs, memory was more, or anything that is told of here did not happen: too little was produced, nobody was killed, nothing was read from
objects. Sizes in MB by DEMO_MB (1100) and DEMO_KILL_MB (200); of the first at least DEMO_LEAST_MB (1000).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.report import Row, exit_code, table
from tests.demo.dataset import Digest
from tests.demo.victim import kill_between_batches
from tests.live import LiveBroker

MB, MIB = 1_000_000, 1 << 20
MEMORY_MIB = 256
CLIENTS = ("confluent", "kafka-python")
KILL_EVERY_S = 4.0
# Offsets a batch of the pipeline: a pass with kills has many small ones, to be killed between.
BATCH_OFFSETS, KILLED_BATCH_OFFSETS = 20_000, 5_000


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
        self.rows: list[Row] = []

    def run(self) -> int:
        self.broker.start()
        resident = f"{self.broker.memory_bytes() / MB:.0f} MB resident"
        self.add(Row("broker ready", f"{self.broker.ready_seconds:.2f} s", resident))
        try:
            least = int(os.environ.get("DEMO_LEAST_MB", "1000"))
            self.one_pass("pass1", int(os.environ.get("DEMO_MB", "1100")), least, kills=False)
            megabytes = int(os.environ.get("DEMO_KILL_MB", "200"))
            self.one_pass("pass2", megabytes, megabytes, kills=True)
        finally:
            self.broker.kill()
        print(f"\n{table(self.rows)}")
        return exit_code(self.rows)

    def one_pass(self, name: str, megabytes: int, least: int, *, kills: bool) -> None:
        print(f"\n{name}: {megabytes} MB{', killing the broker in mid-stream' if kills else ''}", flush=True)
        topics = [f"{name}-{client}" for client in CLIENTS]
        produced = self.produce(name, topics, megabytes, least, kills=kills)
        self.read(name, topics, produced)
        self.ingest(name, topics, produced, kills)
        self.judge_memory(f"{name}: memory, history and ingest")

    def produce(self, name: str, topics: Sequence[str], megabytes: int, least: int, *, kills: bool) -> list[str]:
        """The digest of each topic."""
        started = time.monotonic()
        commands = [
            ("tests.demo.produce", client, self.broker.address, topic, str(megabytes * MB // 2), str(share), "2")
            for share, (client, topic) in enumerate(zip(CLIENTS, topics, strict=True))
        ]
        outputs, kill_count = self.run_together(commands, kills)
        produced = [digest_of(output) for output in outputs]
        total = sum(int(digest.split(":")[1]) for digest in produced)
        seconds = time.monotonic() - started
        who = f"{name}: produce by {' and '.join(CLIENTS)}"
        self.add(Row(who, f"{total / seconds / MB:.0f} MB/s", f"{seconds:.1f} s"))
        self.add(at_least(f"{name}: produced", total / MB, least, "MB"))
        if kills:
            self.add(at_least(f"{name}: kill -9 of the broker meanwhile", kill_count, 1, "kills"))
        return produced

    def read(self, name: str, topics: Sequence[str], produced: Sequence[str]) -> None:
        """By a group as it is; then, when the caches are empty, from the beginning."""
        self.read_back(name, "group", topics, produced)
        self.judge_memory(f"{name}: memory, produce and read")
        self.broker.restart()
        self.add(Row(f"{name}: restart, caches empty", f"{self.broker.ready_seconds:.2f} s"))
        reads = self.read_back(name, "beginning", topics, produced)
        self.add(at_least(f"{name}: of it from objects", reads["objects"], 1, "reads"))

    def judge_memory(self, what: str) -> None:
        self.note_memory()
        beside, is_met = "whole process, in all its lives", self.peak_mib < MEMORY_MIB
        self.add(Row(what, f"{self.peak_mib:.0f} MiB", beside, f"below {MEMORY_MIB} MiB", is_met))

    def note_memory(self) -> None:
        """Before a life ends, for its peak ends with it."""
        self.peak_mib = max(self.peak_mib, self.broker.peak_memory_bytes() / MIB)

    def read_back(self, name: str, mode: str, topics: Sequence[str], produced: Sequence[str]) -> dict[str, int]:
        """Compares what is read; the broker's reads meanwhile, by where it found what was asked for."""
        before = self.broker.metrics()
        started = time.monotonic()
        commands = [
            ("tests.demo.consume", mode, self.broker.address, topic, f"{name}-readers", digest.split(":")[0])
            for topic, digest in zip(topics, produced, strict=True)
        ]
        outputs, _ = self.run_together(commands, False)
        seconds = time.monotonic() - started
        read = [digest_of(output) for output in outputs]
        reads = reads_between(before, self.broker.metrics())
        words = ", ".join(f"{source} {count}" for source, count in reads.items())
        self.check(f"{name}: read by {mode}, {seconds:.1f} s", read, produced, f"reads: {words}")
        return reads

    def ingest(self, name: str, topics: Sequence[str], produced: Sequence[str], kills: bool) -> None:
        lake, config = self.folder / f"lake-{name}", self.folder / f"{name}.toml"
        checkpoint = self.folder / f"checkpoint-{name}"
        names = ", ".join(f'"{topic}"' for topic in topics)
        config.write_text(
            f'[kafka]\nbootstrap_servers = "{self.broker.address}"\ntopics = [{names}]\n'
            f"max_offsets_per_trigger = {KILLED_BATCH_OFFSETS if kills else BATCH_OFFSETS}\n"
            f'[table]\npath = "{lake}"\ncheckpoint = "{checkpoint}"\n'
            '[spark]\n"spark.driver.memory" = "2g"\n"spark.master" = "local[2]"\n'
        )
        command = [
            sys.executable,
            "-m",
            "millrace.broker",
            "pipeline",
            "run",
            "ingest",
            "--config",
            str(config),
            "--once",
        ]
        started = time.monotonic()
        if kills:
            batches = kill_between_batches([sys.executable, "-m", "millrace.spark_jobs", *command[5:]], checkpoint)
            done = f"{batches} batches were written" if batches is not None else "it had ended by itself"
            self.add(at_least(f"{name}: kill -9 of the pipeline", int(batches is not None), 1, "kills", done))
        subprocess.run(command, check=True)
        seconds = time.monotonic() - started
        self.check(f"{name}: ingest to Parquet, {seconds:.1f} s", table_digests(lake, topics), produced, "")

    def run_together(self, commands: Sequence[Sequence[str]], kills: bool) -> tuple[list[str], int]:
        """Runs them side by side, showing what they print; meanwhile kills the broker now and then if asked to."""
        processes = [
            subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
            for command in commands
        ]
        outputs: list[list[str]] = [[] for _ in processes]
        readers = [threading.Thread(target=show, args=pair) for pair in zip(processes, outputs, strict=True)]
        for reader in readers:
            reader.start()
        try:
            kill_count = self.kill_now_and_then(processes) if kills else 0
            for reader in readers:
                reader.join()
        finally:
            for process in processes:
                process.kill()
        for command, process in zip(commands, processes, strict=True):
            if process.wait():
                raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
        return ["".join(output) for output in outputs], kill_count

    def kill_now_and_then(self, processes: Sequence[subprocess.Popen[str]]) -> int:
        """Kills and restarts the broker until the processes end, eight times at most."""
        kill_count = 0
        next_kill = time.monotonic() + 1.0
        while any(process.poll() is None for process in processes):
            time.sleep(0.1)
            if time.monotonic() >= next_kill and kill_count < 8:
                self.note_memory()
                self.broker.kill()
                self.broker.start()
                kill_count += 1
                next_kill = time.monotonic() + KILL_EVERY_S
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
        if line.startswith("  "):
            print(line, end="", flush=True)


def digest_of(output: str) -> str:
    return next(line.split()[1] for line in reversed(output.splitlines()) if line.startswith("digest "))


def reads_between(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    names = {source: f'millrace_reads{{source="{source}"}}' for source in ("log_cache", "block_cache", "objects")}
    return {source: int(after[name] - before[name]) for source, name in names.items()}


def table_digests(lake: Path, topics: Sequence[str]) -> list[str]:
    """Of each topic's rows, as any reader of Parquet sees them."""
    import pyarrow.dataset as datasets

    digests = {topic: Digest() for topic in topics}
    columns = ["topic", "key", "value"]
    for batch in datasets.dataset(lake, partitioning="hive").to_batches(columns=columns, batch_size=2000):
        for topic, key, value in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            digests[topic].add(key, value)
    return [str(digest) for digest in digests.values()]


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
