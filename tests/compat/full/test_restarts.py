"""Each client's producer goes on through kill -9 of the broker: what it calls acknowledged is there, once
where it is idempotent, in order."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.compat.jvm import java_command
from tests.compat.wire import Wire
from tests.live import LiveBroker

COUNT = 3000
KILLS = 3


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka", "confluent-kafka", "java"])
def test_a_producer_outlives_the_broker(tmp_path: Path, client: str) -> None:
    """Values count up; every one is there once, and the log has them in order."""
    with LiveBroker(tmp_path) as broker:
        with Wire(broker.address) as wire:
            wire.create("kept")
        output = tmp_path / "producer"
        with output.open("w") as file:
            producer = subprocess.Popen(
                command(client, broker.address, tmp_path), stdout=file, stderr=subprocess.STDOUT
            )
        for _ in range(KILLS):
            time.sleep(2.0)
            broker.kill()
            time.sleep(0.3)
            broker.start()
        code = producer.wait(400)
        assert code == 0, output.read_text()[-3000:]
        with Wire(broker.address) as wire:
            values = [
                int(record.value or b"-1") for batch in wire.batches("kept") for record in batch.records
            ]
        assert values == list(range(COUNT))


def command(client: str, address: str, folder: Path) -> list[str]:
    if client == "java":
        settings = folder / "settings"
        settings.write_text(
            "retries=2147483647\nreconnect.backoff.max.ms=500\n"
        )  # it retries nothing unless told
        words = [
            "--bootstrap-server",
            address,
            "--topic",
            "kept",
            "--max-messages",
            str(COUNT),
            "--throughput",
            "400",
        ]
        return java_command(
            "org.apache.kafka.tools.VerifiableProducer", *words, "--command-config", str(settings)
        )
    return [sys.executable, "-m", "tests.compat.sender", client, address, "kept", str(COUNT)]
