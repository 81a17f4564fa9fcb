"""The ingest pipeline as its users run it: a process of its own, killed at random moments while records come
and the broker is killed, too."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.compat.wire import Wire
from tests.live import LiveBroker
from tests.patience import PATIENCE_S
from tests.spark_jobs.table import rows_of

TOPIC = "orders"
PARTITIONS = 4
KILLS = 4
# What the kills leave over is read at the end, 500 at a time: bounded, so that a slow machine, on which the
# kills take long, can do it.
RECORDS_MAX = 20_000


class Load(threading.Thread):
    """Sends two hundred records a second until told to stop, RECORDS_MAX at most."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.sent: list[tuple[str, int, int, bytes | None]] = []
        self.errors: list[KafkaError] = []
        self.is_stopping = False
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        number = 0
        while not self.is_stopping and number < RECORDS_MAX:
            self._producer.produce(
                TOPIC, b"order %d" % number, partition=number % PARTITIONS, on_delivery=self._on_delivery
            )
            self._producer.poll(0.005)
            number += 1
        assert self._producer.flush(PATIENCE_S) == 0

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        self.sent.append((message.topic(), message.partition(), message.offset(), message.value()))  # type: ignore[arg-type]


@pytest.mark.timeout(1800)
def test_killed_again_and_again(tmp_path: Path) -> None:
    """What was sent is in the table, once: after kill -9 of the pipeline in the middle of its work, and of
    the broker under it."""
    chance = random.Random(7)
    config, table = tmp_path / "ingest.toml", tmp_path / "table"
    with LiveBroker(tmp_path / "broker") as broker:
        with Wire(broker.address) as wire:
            wire.create(TOPIC, PARTITIONS)
        config.write_text(
            f'[kafka]\nbootstrap_servers = "{broker.address}"\ntopics = ["{TOPIC}"]\nmax_offsets_per_trigger '
            "= 500\n"
            f'[table]\npath = "{table}"\ncheckpoint = "{tmp_path}/checkpoint"\n[run]\ntrigger_interval_s = '
            "1\n"
            '[spark]\n"spark.master" = "local[2]"\n"spark.driver.memory" = "1g"\n'
        )
        load = Load(broker.address)
        load.start()
        with (tmp_path / "log").open("wb") as log:
            for kill in range(KILLS):
                pipeline = subprocess.Popen(command(config), stdout=subprocess.PIPE, stderr=log)
                wait_for_batches(pipeline, 2)
                if kill % 2:
                    broker.kill()
                    broker.start()
                time.sleep(3 * chance.random())
                pipeline.kill()
                pipeline.wait()
            load.is_stopping = True
            load.join()
            assert not load.errors, load.errors[0]
            subprocess.run([*command(config), "--once"], stderr=log, check=True, timeout=600)
    assert len(load.sent) > 1000
    assert rows_of(table) == sorted(load.sent)


def command(config: Path) -> list[str]:
    """Not by `millrace pipeline run`, which starts this as a child: a kill must hit the one that works."""
    return [sys.executable, "-m", "millrace.spark_jobs", "ingest", "--config", str(config)]


def wait_for_batches(pipeline: subprocess.Popen[bytes], count: int) -> None:
    assert pipeline.stdout is not None
    for line in pipeline.stdout:
        if line.startswith(b"ingest: batch"):
            count -= 1
        if not count:
            return
    raise AssertionError("the pipeline ended")
