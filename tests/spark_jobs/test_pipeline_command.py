"""`millrace pipeline run` as its users run it: against a live broker, from start to end. tests/compat/full
has spark-submit."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.claims import CLAIMS, decode_claim
from millrace.spark_jobs.config import read_settings
from millrace.spark_jobs.ending import Ending
from millrace.spark_jobs.files import Files
from millrace.spark_jobs.jobs import ingest
from millrace.spark_jobs.lease import Lease
from millrace.spark_jobs.processes import Process, is_running
from millrace.spark_jobs.refusal import Refused
from tests.live import LiveBroker
from tests.patience import PATIENCE_S, next_line
from tests.spark_jobs.first_start import FirstStart, pipeline_command, send, write_config
from tests.spark_jobs.shared_session import SETTINGS
from tests.spark_jobs.table import rows_of


def test_once(first_start: FirstStart) -> None:
    """What the topic holds is in the table, each record once; the exit code is 0, and the output says how
    many."""
    assert first_start.done.returncode == 0, first_start.done.stderr
    assert "ingest: done, 6 records in this run" in first_start.done.stdout.splitlines()
    assert first_start.rows == first_start.sent


def test_stopped_then_gone_on_with(spark: Any, broker: LiveBroker, tmp_path: Path) -> None:
    """SIGTERM to the command in the midst of the work ends it with 0; the next start takes the rest, and
    nothing repeats."""
    sent = send(broker.address, "stopped", 90)
    config = write_config(tmp_path / "config.toml", broker.address, "stopped", tmp_path, SETTINGS, batch=15)
    with (tmp_path / "log").open("w+") as log:
        pipeline = subprocess.Popen(pipeline_command(config), stdout=subprocess.PIPE, stderr=log, text=True)
        output = stop_at(pipeline, "ingest: batch 1:")
        log.seek(0)
        errors = log.read()
    assert pipeline.returncode == 0, errors
    assert "StackOverflowError" not in errors, "the batch under way was interrupted"
    assert output[-1].startswith("ingest: done, "), output
    rows = rows_of(tmp_path / "table")
    assert 30 <= len(rows) < len(sent), "it was to end before it had everything"
    settings = replace(read_settings(config), max_offsets_per_trigger=1000)
    ingest.start(spark, settings, Ending(), once=True).awaitTermination()
    assert rows_of(tmp_path / "table") == sent


def test_killed_or_followed(spark: Any, broker: LiveBroker, tmp_path: Path) -> None:
    """kill -9 of the command leaves no driver and no JVM, and the next start goes on at once; one whose lease
    another driver took ends by itself, and says so. Until then each keeps others out."""
    sent = {name: send(broker.address, name, 30) for name in ("killed", "followed")}
    configs = {
        "killed": configured(tmp_path, broker.address, "killed", batch=30),  # in the midst of its work
        "followed": configured(tmp_path, broker.address, "followed"),  # with nothing to do
    }
    with started(configs["killed"]) as killed, started(configs["followed"]) as followed:
        jvms = {}
        for pipeline, name in ((killed, "killed"), (followed, "followed")):
            wait_for(pipeline, "ingest: batch 0:")
            jvms[name] = driver_of(tmp_path / name / "checkpoint")
            with pytest.raises(
                Refused, match=f"another driver runs .* \\(process {jvms[name].pid} on {jvms[name].host}\\)"
            ):
                lease(spark, tmp_path / name).take(lambda: False, print, wait_s=0)
        killed.kill()
        lease(spark, tmp_path / "followed", is_running=lambda _: False).take(lambda: False, print)
        assert followed.wait(PATIENCE_S) == 2
        assert followed.stderr is not None
        assert said(followed.stderr.read()) == [
            f"ingest: another driver took the checkpoint file:{tmp_path}/followed/checkpoint, for this one "
            "did not renew its lease for 40 s: "
            "it writes nothing more; end one of the two"
        ]
        for jvm in jvms.values():
            wait_until_gone(jvm)
    assert killed.returncode == -signal.SIGKILL
    assert ingest.take(spark, read_settings(configs["killed"]), Ending(), once=True) == 0
    assert rows_of(tmp_path / "killed" / "table") == sent["killed"]


def test_brokers_that_do_not_answer(tmp_path: Path) -> None:
    """One sentence and 3 after ten seconds; stopped by Ctrl-C meanwhile (a terminal sends it to the JVM, too)
    the signal's code."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(400)
        waiting = configured(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}", "waiting")
        with started(configured(tmp_path, "127.0.0.1:1", "away")) as away, started(waiting) as stopped:
            with silent.accept()[0]:  # the driver is up, and waits
                os.killpg(stopped.pid, signal.SIGINT)
                assert stopped.wait(PATIENCE_S) == 128 + signal.SIGINT
            assert away.wait(400) == 3
            assert away.stderr is not None
            assert stopped.stderr is not None
            assert said(stopped.stderr.read()) == ["ingest: stopped before anything was read"]
            (sentence,) = said(away.stderr.read())
            assert sentence.startswith("ingest: 127.0.0.1:1 was not reached: ")


def configured(folder: Path, address: str, topic: str, batch: int = 1000) -> Path:
    return write_config(folder / f"{topic}.toml", address, topic, folder / topic, SETTINGS, batch)


@contextmanager
def started(config: Path) -> Iterator[subprocess.Popen[str]]:
    """In a process group of its own, as in a terminal; killed with its JVM where a test fails."""
    command = pipeline_command(config)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as pipeline:
        try:
            yield pipeline
        finally:
            with suppress(ProcessLookupError):
                os.killpg(pipeline.pid, signal.SIGKILL)


def wait_for(pipeline: subprocess.Popen[str], start: str) -> None:
    assert pipeline.stdout is not None
    for line in pipeline.stdout:
        if line.startswith(start):
            return
    assert pipeline.stderr is not None
    raise AssertionError(pipeline.stderr.read())


def said(errors: str) -> list[str]:
    """By the pipeline, in place of traces; Spark's start says things of its own."""
    assert "Traceback" not in errors
    assert "\tat " not in errors
    return [line for line in errors.splitlines() if line.startswith("ingest: ")]


def driver_of(checkpoint: Path) -> Process:
    """The JVM, as its claim names it: read again where it is just being renewed."""
    (path,) = (path for path in (checkpoint / CLAIMS).iterdir() if path.suffix != ".crc")
    deadline = time.monotonic() + PATIENCE_S
    while not (claim := decode_claim(path.read_text())):
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.01)
    assert is_running(claim.process)
    return claim.process


def wait_until_gone(process: Process) -> None:
    """For long, for the sake of slow machines."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        assert not is_running(process) or select.select([handle], [], [], PATIENCE_S)[0], f"{process} runs on"
    finally:
        os.close(handle)


def lease(spark: Any, folder: Path, **edges: Any) -> Lease:
    """Another driver's."""
    return Lease(Files(spark), f"file:{folder}/checkpoint", Process("far", 12), **edges)


def test_interrupted_while_spark_starts(tmp_path: Path) -> None:
    """It ends by the signal, and leaves no traceback."""
    config = write_config(tmp_path / "config.toml", "127.0.0.1:1", "none", tmp_path, SETTINGS)
    with subprocess.Popen(
        pipeline_command(config), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stderr is not None
        assert next_line(started.stdout).startswith("ingest: starting Spark")
        started.send_signal(signal.SIGINT)
        assert "Traceback" not in started.stderr.read()
    assert started.returncode == -signal.SIGINT


def test_an_interrupt_is_seen_behind_what_it_led_to() -> None:
    """A call that it broke off fails with an error of its own."""
    broken_off = ValueError()
    broken_off.__context__ = KeyboardInterrupt()
    assert ingest.is_interrupt(broken_off)
    assert not ingest.is_interrupt(ValueError())


def stop_at(pipeline: subprocess.Popen[str], start: str) -> list[str]:
    """SIGTERM when it prints a line that starts so; all it prints until its end."""
    assert pipeline.stdout is not None
    output = []
    with pipeline:
        try:
            for line in pipeline.stdout:
                output.append(line)
                if line.startswith(start):
                    pipeline.send_signal(signal.SIGTERM)
        except BaseException:
            pipeline.terminate()
            raise
    return output
