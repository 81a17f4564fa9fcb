"""A first start of `ingest` by its command, and what a kill at each of its calls to the file system would
have left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.live import LiveBroker
from tests.live.client import Client
from tests.patience import PATIENCE_S
from tests.spark_jobs.shared_session import SETTINGS
from tests.spark_jobs.table import Row, rows_of

PARTITIONS = 3
RECORDER = Path(__file__).parent / "java" / "Recorder.java"
RECORDED = {
    "spark.hadoop.fs.file.impl": "Recorder$Local",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "Recorder$Context",
}


@dataclass(frozen=True)
class FirstStart:
    """`records`: copies of `lake`, one before each call that changed something in it, oldest first. `rows`:
    of the table at its end."""

    lake: Path
    records: list[Path]
    config: Path
    topic: str
    sent: list[Row]
    rows: list[Row]
    done: subprocess.CompletedProcess[str]

    @property
    def table(self) -> Path:
        return self.lake / "table"

    @property
    def checkpoint(self) -> Path:
        return self.lake / "checkpoint"

    def go_back(self, record: Path) -> None:
        """To what a kill at that call leaves."""
        shutil.rmtree(self.lake)
        shutil.copytree(record, self.lake)


def pipeline_command(config: Path, *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "millrace.broker",
        "pipeline",
        "run",
        "ingest",
        "--config",
        str(config),
        *words,
    ]


def write_config(
    path: Path, address: str, topic: str, lake: Path, spark: dict[str, str], batch: int = 1000
) -> Path:
    lines = [
        f'[kafka]\nbootstrap_servers = "{address}"\ntopics = ["{topic}"]\nmax_offsets_per_trigger = {batch}',
        f'[table]\npath = "{lake}/table"\ncheckpoint = "{lake}/checkpoint"\n[run]\ntrigger_interval_s = '
        "1\n[spark]",
        *(f'"{key}" = "{value}"' for key, value in spark.items()),
    ]
    path.write_text("\n".join(lines))
    return path


def send(address: str, topic: str, count: int) -> list[Row]:
    """So many records to each partition of a new topic."""
    with Client(address) as client:
        client.create(topic, PARTITIONS)
        for partition in range(PARTITIONS):
            client.produce(topic, [b"%d" % offset for offset in range(count)], partition)
    return [
        (topic, partition, offset, b"%d" % offset)
        for partition in range(PARTITIONS)
        for offset in range(count)
    ]


def record_first_start(broker: LiveBroker, folder: Path, topic: str) -> FirstStart:
    lake, records, classes = folder / "lake", folder / "records", folder / "classes"
    for made in (lake, records):
        made.mkdir()
    compile_recorder(classes)
    sent = send(broker.address, topic, 2)
    spark = {**SETTINGS, **RECORDED, "spark.driver.extraClassPath": str(classes)}
    config = write_config(folder / "recorded.toml", broker.address, topic, lake, spark)
    done = subprocess.run(
        pipeline_command(config, "--once"),
        env={**os.environ, "RECORDED": str(lake), "RECORDS": str(records)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    return FirstStart(lake, sorted(records.iterdir()), config, topic, sent, rows_of(lake / "table"), done)


def compile_recorder(classes: Path) -> None:
    import pyspark

    assert shutil.which("javac"), (
        "javac is missing: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless)"
    )
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    subprocess.run(
        ["javac", "-nowarn", "-d", str(classes), "-cp", str(jars), str(RECORDER)],
        check=True,
        timeout=PATIENCE_S,
    )
