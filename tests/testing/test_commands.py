"""`millrace test` and `millrace dev` as processes: what their commands see, their exit codes, and that nothing stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.testing.test_isolation import END_S, is_alive

COMMAND = """
import os, sys
from kafka import KafkaConsumer
address = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
assert os.environ["KAFKA_BROKERS"] == os.environ["SPRING_KAFKA_BOOTSTRAP_SERVERS"] == address
consumer = KafkaConsumer("orders", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest")
record = next(consumer)
print(record.value.decode(), len(consumer.partitions_for_topic("orders")))
sys.exit(7)
"""


def millrace(*words: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "millrace.broker", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )


def test_a_command_has_the_broker_that_it_was_promised(tmp_path: Path) -> None:
    """Its address in each variable, topics and records in it; output and exit code are the command's, and no folder stays."""
    seed = tmp_path / "seed.jsonl"
    seed.write_text('{"topic": "orders", "value": "seeded"}\n')
    folder = tmp_path / "tmp"
    folder.mkdir()
    names = ["--env", "KAFKA_BROKERS", "--env", "SPRING_KAFKA_BOOTSTRAP_SERVERS"]
    words = ["test", *names, "--topic", "orders:3", "--seed", str(seed), "--", sys.executable, "-c", COMMAND]
    process = millrace(*words, folder=folder)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, "seeded 3\n"), err
    assert "nothing is kept" in err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["test"], 2, "there is no command to run"),
        (["test", "--topic", "a:0", "--", "true"], 2, "--topic a:0: is not NAME or NAME:PARTITIONS"),
        (["test", "--override", "a", "--", "true"], 2, "--override a: is not KEY=VALUE"),
        (["test", "--override", "num.partitions=x", "--", "true"], 125, "num.partitions"),
        (["test", "--", "no-such-command"], 127, "there is no command 'no-such-command'"),
        (["test", "--", "/"], 126, "'/' cannot be run"),
        (["test", "--seed", "no-such-file", "--", "true"], 125, "no-such-file"),
        (["test", "--", "sh", "-c", "kill -9 $$"], 137, ""),
        (["dev", "--port", "-1"], 2, "--port is none of"),
        (["dev", "--topic", "a:b"], 2, "--topic a:b"),
    ],
)
def test_each_end_has_its_exit_code(words: list[str], code: int, text: str, tmp_path: Path) -> None:
    """Mistakes, brokers that do not start, commands that are not there or are killed; nothing stays."""
    process = millrace(*words, folder=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert text in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_all_of_it(number: signal.Signals, tmp_path: Path) -> None:
    """kill -9 of `millrace test` ends broker and command, and its folder goes; SIGTERM is passed on to the command."""
    process = millrace("test", "--", "sh", "-c", "echo $$; exec sleep 1000", folder=tmp_path)
    assert process.stdout is not None
    command = int(process.stdout.readline())
    (folder,) = tmp_path.iterdir()
    process.send_signal(number)
    assert process.wait(60) == (-number if number is signal.SIGKILL else 128 + number)
    deadline = time.monotonic() + END_S
    while (is_alive(command) or folder.exists()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(command)
    assert not folder.exists(), "the guard removes it behind the broker's end"
    process.stdout.close()
    process.communicate()


def test_dev_serves_until_a_signal(tmp_path: Path) -> None:
    """With its topics and records, on the port it was told; a second one on that port says so and leaves nothing."""
    seed = tmp_path / "seed.jsonl"
    seed.write_text('{"topic": "orders", "value": 1}\n{"topic": "orders", "value": 2}\n')
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    process = millrace("dev", "--port", "0", "--topic", "orders:3", "--seed", str(seed), folder=folder)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "; 2 records; nothing is kept" in line
    assert process.stdout.readline() == "  orders\n"
    address = line.split("Kafka at ")[1].split(";")[0]
    host, _, port = address.partition(":")
    socket.create_connection((host, int(port))).close()
    second = millrace("dev", "--port", port, folder=folder)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1
    assert port in err
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert list(folder.iterdir()) == []
