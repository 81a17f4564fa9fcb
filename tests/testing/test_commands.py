"""`millrace test` and `millrace dev` as processes: what their commands see, their exit codes, and that
nothing stays."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tests.patience import PATIENCE_S, next_line
from tests.testing.test_isolation import is_alive

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


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def none_is_left_by_a_failure() -> Iterator[None]:
    """Commands that a test did not come to end."""
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()


def millrace(*words: str, folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "millrace.broker", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,  # without the terminal that the tests may run at
    )
    STARTED.append(process)
    return process


def test_a_command_has_the_broker_that_it_was_promised(tmp_path: Path) -> None:
    """Its address in each variable, topics and records in it; output and exit code are the command's, and no
    folder stays."""
    seed = tmp_path / "seed.jsonl"
    seed.write_text('{"topic": "orders", "value": "seeded"}\n')
    folder = tmp_path / "tmp"
    folder.mkdir()
    names = ["--env", "KAFKA_BROKERS", "--env", "SPRING_KAFKA_BOOTSTRAP_SERVERS"]
    words = ["test", *names, "--topic", "orders:3", "--seed", str(seed), "--", sys.executable, "-c", COMMAND]
    process = millrace(*words, folder=folder)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (7, "seeded 3\n"), err
    assert "nothing is kept" in err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["test"], 2, "there is no command to run"),
        (["test", "--topic", "a:0", "--", "true"], 2, "--topic a:0: is not NAME or NAME:PARTITIONS"),
        (["test", "--env", "A=B", "--", "true"], 2, "--env A=B: is no name of a variable"),
        (["test", "--override", "listeners=PLAINTEXT://:1", "--", "true"], 2, "listeners cannot be set"),
        (["test", "--override", "a", "--", "true"], 2, "--override a: is not KEY=VALUE"),
        (["test", "--override", "num.partitions=x", "--", "true"], 125, "num.partitions"),
        (
            ["test", "--override", "num.partition=3", "--", "true"],
            0,
            "no effect; did you mean num.partitions?",
        ),
        (["test", "--", "no-such-command"], 127, "there is no command 'no-such-command'"),
        (["test", "--", "/"], 126, "'/' cannot be run"),
        (
            ["test", "--seed", "no-such-file", "--", "true"],
            125,
            "millrace: --seed no-such-file: No such file or directory",
        ),
        (
            ["test", "--seed", sys.executable, "--", "true"],
            125,
            f"--seed {sys.executable}: line 1 or near it: is not UTF-8",
        ),
        (["test", "--topic", f"a:{1 << 31}", "--", "true"], 2, "is not NAME or NAME:PARTITIONS"),
        (["test", "--", "sh", "-c", "kill -9 $$"], 137, ""),
        (["dev", "--port", "-1"], 2, "--port is none of"),
        (["dev", "--topic", "a:b"], 2, "--topic a:b"),
    ],
)
def test_each_end_has_its_exit_code(words: list[str], code: int, text: str, tmp_path: Path) -> None:
    """Mistakes, brokers that do not start, commands that are not there or are killed; nothing stays."""
    process = millrace(*words, folder=tmp_path)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, err
    assert text in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_all_of_it(number: signal.Signals, tmp_path: Path) -> None:
    """kill -9 of `millrace test` ends broker and command, and its folder goes; SIGTERM is passed on to the
    command."""
    process = millrace("test", "--", "sh", "-c", "echo $$; exec sleep 1000", folder=tmp_path)
    assert process.stdout is not None
    command = int(next_line(process.stdout))
    (folder,) = tmp_path.iterdir()
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == (-number if number is signal.SIGKILL else 128 + number)
    wait_gone([command], folder)
    process.stdout.close()
    process.communicate()


def test_dev_serves_until_a_signal(tmp_path: Path) -> None:
    """With its topics and records, on the port it was told; a second one on that port says so and leaves
    nothing."""
    seed = tmp_path / "seed.jsonl"
    seed.write_text('{"topic": "orders", "value": 1}\n{"topic": "orders", "value": 2}\n')
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    process = millrace("dev", "--port", "0", "--topic", "orders:3", "--seed", str(seed), folder=folder)
    assert process.stdout is not None
    line = next_line(process.stdout)
    assert "; 2 records; nothing is kept" in line
    assert next_line(process.stdout) == "  orders\n"
    address = line.split("Kafka at ")[1].split(";")[0]
    host, _, port = address.partition(":")
    socket.create_connection((host, int(port))).close()
    second = millrace("dev", "--port", port, folder=folder)
    _, err = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 1
    assert err == f"millrace: something else listens on {address} already; port 0 takes a free one\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert list(folder.iterdir()) == []


def test_grandchildren_end_with_a_killed_runner(tmp_path: Path) -> None:
    """kill -9 of `millrace test`: what its command started ends too, also what left its session; others go
    on."""
    script = "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; exec sh -c 'echo $$; sleep 1000; true'"
    other = subprocess.Popen(["sleep", "1000"])
    process = millrace("test", "--", "sh", "-c", script, folder=tmp_path)
    assert process.stdout is not None
    started = [int(next_line(process.stdout)) for _ in range(3)]
    process.kill()
    process.wait()
    (folder,) = tmp_path.iterdir()
    wait_gone(started, folder)
    assert other.poll() is None
    other.kill()
    other.wait()
    process.communicate()


def wait_gone(pids: list[int], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (any(map(is_alive, pids)) or folder.exists()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [pid for pid in pids if is_alive(pid)] == []
    assert not folder.exists(), "the guard removes it behind the broker's end"


COUNTS_INTERRUPTS = """
import signal, sys, time
seen = []
def end(number, frame):
    print(f"{len(seen)} interrupts", flush=True)
    sys.exit(5)
signal.signal(signal.SIGINT, lambda number, frame: (seen.append(number), print("interrupted", flush=True)))
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def test_an_interrupt_of_it_alone_is_passed_on(tmp_path: Path) -> None:
    """As CI sends it, where there is no terminal."""
    process = millrace("test", "--", sys.executable, "-c", COUNTS_INTERRUPTS, folder=tmp_path)
    assert process.stdout is not None
    assert next_line(process.stdout) == "ready\n"
    process.send_signal(signal.SIGINT)
    assert next_line(process.stdout) == "interrupted\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE_S)[0] == "1 interrupts\n"
    assert process.returncode == 5


def test_an_interrupt_by_the_terminal_comes_once(tmp_path: Path) -> None:
    """Ctrl-C goes to the whole foreground group: the command has it without our help."""
    words = [sys.executable, "-m", "millrace.broker", "test", "--", sys.executable, "-c", COUNTS_INTERRUPTS]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TMPDIR"] = str(tmp_path)
        os.execv(sys.executable, words)
    with os.fdopen(terminal, errors="replace") as screen:
        until("ready", screen)
        os.write(terminal, b"\x03")
        until("interrupted", screen)
        time.sleep(0.1)  # a second one would be here by now
        os.kill(pid, signal.SIGTERM)
        assert until(" interrupts", screen) == "1 interrupts\n"
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    assert list(tmp_path.iterdir()) == []


def until(text: str, lines: TextIO) -> str:
    """The next line that has it."""
    return next(line for line in lines if text in line)


def test_a_hangup_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """As under nohup: the command goes on."""
    words = [
        sys.executable,
        "-m",
        "millrace.broker",
        "test",
        "--",
        "sh",
        "-c",
        "echo ready; read line; exit 4",
    ]
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    assert next_line(process.stdout) == "ready\n"
    process.send_signal(signal.SIGHUP)
    process.communicate("go on\n", timeout=PATIENCE_S)
    assert process.returncode == 4
