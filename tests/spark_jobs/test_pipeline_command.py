"""`millrace pipeline run` as its users run it: against a live broker, from start to end. tests/compat/full has spark-submit."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.config import read_settings
from millrace.spark_jobs.ending import Ending
from millrace.spark_jobs.jobs import ingest
from tests.live import LiveBroker
from tests.spark_jobs.first_start import FirstStart, pipeline_command, send, write_config
from tests.spark_jobs.shared_session import SETTINGS
from tests.spark_jobs.table import rows_of

pytestmark = pytest.mark.timeout(600)


def test_once(first_start: FirstStart) -> None:
    """What the topic holds is in the table, each record once; the exit code is 0, and the output says how many."""
    assert first_start.done.returncode == 0, first_start.done.stderr
    assert "ingest: done, 6 records in this run" in first_start.done.stdout.splitlines()
    assert first_start.rows == first_start.sent


def test_stopped_then_gone_on_with(spark: Any, broker: LiveBroker, tmp_path: Path) -> None:
    """SIGTERM to the command in the midst of the work ends it with 0; the next start takes the rest, and nothing repeats."""
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


def test_interrupted_while_spark_starts(tmp_path: Path) -> None:
    """It ends by the signal, and leaves no traceback."""
    config = write_config(tmp_path / "config.toml", "127.0.0.1:1", "none", tmp_path, SETTINGS)
    with subprocess.Popen(
        pipeline_command(config), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        assert started.stdout.readline().startswith("ingest: starting Spark")
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
