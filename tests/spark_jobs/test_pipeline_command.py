"""The pipeline by the commands that its users have: `millrace pipeline run` and spark-submit, against a live broker, from start to end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.spark_jobs.jobs import ingest
from tests.live import LiveBroker
from tests.spark_jobs.first_start import FirstStart, pipeline_command, send, write_config
from tests.spark_jobs.shared_session import SETTINGS
from tests.spark_jobs.table import rows_of

pytestmark = pytest.mark.timeout(400)


def test_once(first_start: FirstStart) -> None:
    """What the topic holds is in the table, each record once; the exit code is 0, and the output says how many."""
    assert first_start.done.returncode == 0, first_start.done.stderr
    assert "ingest: done, 6 records in this run" in first_start.done.stdout.splitlines()
    assert first_start.rows == first_start.sent


def test_stopped_then_gone_on_with_by_spark_submit(broker: LiveBroker, tmp_path: Path) -> None:
    """SIGTERM to the command in the midst of the work ends it with 0; spark-submit with the same table takes the rest, and nothing repeats."""
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
    config = write_config(tmp_path / "rest.toml", broker.address, "stopped", tmp_path, {})
    done = subprocess.run(spark_submit_command(config), capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert rows_of(tmp_path / "table") == sent


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


def spark_submit_command(config: Path) -> list[str]:
    """As docs/pipelines.md has it, with the jars that are here in place of the packages."""
    from millrace.spark_jobs.session import JARS

    submit = str(Path(sys.executable).with_name("spark-submit"))
    settings = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    jars = ",".join(str(jar) for jar in JARS.glob("*.jar"))
    program = ["env", f"PYSPARK_PYTHON={sys.executable}", submit, "--jars", jars, *settings, str(ingest.__file__)]
    return [*program, "--config", str(config), "--once"]
