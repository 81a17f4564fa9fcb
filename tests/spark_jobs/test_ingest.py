"""Kafka to Parquet, end to end: stopped, killed in the middle of a batch, killed after it, nothing is lost
and nothing repeats.

A kill is what it leaves behind: a batch whose offsets are written down and which is not recorded as done,
with all, some or none of its files. tests/compat/full kills the process itself.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millrace.spark_jobs.config import IngestSettings
from millrace.spark_jobs.ending import Ending
from millrace.spark_jobs.jobs.ingest import start
from tests.live import LiveBroker
from tests.patience import PATIENCE_S
from tests.spark_jobs.table import Row, rows_of


class Pipeline:
    """One topic's pipeline, and all that was sent to the topic so far."""

    def __init__(self, spark: Any, broker: LiveBroker, topic: str, folder: Path) -> None:
        self.table = folder / "table"
        self.checkpoint = folder / "checkpoint"
        self.sent: list[Row] = []
        self._spark = spark
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": broker.address})
        self._settings = IngestSettings(
            bootstrap_servers=broker.address,
            topics=(topic,),
            topic_pattern="",
            table_path=str(self.table),
            checkpoint=str(self.checkpoint),
            max_offsets_per_trigger=40,
        )

    def send(self, count: int) -> None:
        """Over the topic's three partitions."""
        for number in range(count):
            value = b"%d of %s" % (len(self.sent) + number, self._topic.encode())
            self._producer.produce(self._topic, value, partition=number % 3, on_delivery=self._on_delivery)
        assert self._producer.flush(PATIENCE_S) == 0

    def _on_delivery(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.sent.append((message.topic(), message.partition(), message.offset(), message.value()))

    def run(self) -> None:
        """What is there now, then the end."""
        query = self.start(Ending())
        query.awaitTermination()
        assert query.exception() is None

    def start(self, ending: Ending) -> Any:
        return start(self._spark, self._settings, ending, once=True)

    def batches(self) -> list[int]:
        """Those that are recorded as done."""
        return sorted(
            int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()
        )

    def forget_last(self) -> list[Path]:
        """As if killed before the last batch was recorded as done; gives the batch's files."""
        last = self.batches()[-1]
        for path in (self.checkpoint / "commits").glob(f"*{last}*"):
            path.unlink()
        return sorted(self.table.glob(f"topic=*/date=*/batch={last}/*.parquet"))


@pytest.fixture
def pipeline(spark: Any, broker: LiveBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Pipeline:
    return Pipeline(spark, broker, request.node.name, tmp_path)


def test_stopped_and_started(pipeline: Pipeline) -> None:
    """Each run goes on where the last one ended; a run with nothing to do does nothing."""
    for count in (100, 50, 0):
        pipeline.send(count)
        pipeline.run()
        assert rows_of(pipeline.table) == sorted(pipeline.sent)
    assert len(pipeline.batches()) >= 4


def test_what_has_left_the_cache(pipeline: Pipeline, broker: LiveBroker) -> None:
    """Records that the broker has in objects only, its WAL trimmed and its caches empty, are in the table as
    any others."""
    pipeline.send(100)
    with broker.cold_reads():
        pipeline.run()
    assert rows_of(pipeline.table) == sorted(pipeline.sent)


def test_killed_after_the_files(pipeline: Pipeline) -> None:
    """The files of the last batch are all there, only nobody wrote down that it is done: it replaces
    itself."""
    pipeline.send(100)
    pipeline.run()
    before = pipeline.forget_last()
    assert before
    pipeline.send(30)
    pipeline.run()
    assert rows_of(pipeline.table) == sorted(pipeline.sent)
    assert not any(path.exists() for path in before), "the batch was not run again"


def test_killed_among_the_files(pipeline: Pipeline) -> None:
    """Some of the last batch's files are missing, one is staged and half written: the next run has all of
    them once."""
    pipeline.send(100)
    pipeline.run()
    first, *_ = pipeline.forget_last()
    staged = first.parent / "_temporary" / first.name
    staged.parent.mkdir()
    staged.write_bytes(first.read_bytes()[:100])
    first.unlink()
    pipeline.run()
    assert rows_of(pipeline.table) == sorted(pipeline.sent)


def test_a_batch_that_begins_too_late(pipeline: Pipeline, signals: None) -> None:
    """While a query is being stopped: it writes nothing, the end is no failure for that, and the next start
    has the batch's records, once."""
    ending = Ending()
    ending.listen()
    pipeline.send(30)
    query = pipeline.start(ending)
    query.awaitTermination()
    before = rows_of(pipeline.table)
    signal.raise_signal(signal.SIGTERM)
    assert ending.wait(query)
    pipeline.send(30)
    late = pipeline.start(ending)
    while not ending.wait(late):
        pass
    assert "is left to the next start" in str(late.exception())
    assert rows_of(pipeline.table) == before
    pipeline.run()
    assert rows_of(pipeline.table) == sorted(pipeline.sent)
