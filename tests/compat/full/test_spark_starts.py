"""`ingest` killed in its first start, at every call to the file system; ended by Ctrl-C; started by
spark-submit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.config import read_settings
from millrace.spark_jobs.ending import Ending
from millrace.spark_jobs.jobs import ingest
from tests.live import LiveBroker
from tests.spark_jobs.first_start import pipeline_command, record_first_start, send, write_config
from tests.spark_jobs.shared_session import SETTINGS, shared_session, stop_session
from tests.spark_jobs.table import rows_of

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    yield shared_session()
    stop_session()


def test_killed_anywhere_in_its_first_start(spark: Any, broker: LiveBroker, tmp_path: Path) -> None:
    """From what a kill at each call leaves, the next start ends with what was sent, each record once."""
    first = record_first_start(broker, tmp_path, "first-start")
    assert first.done.returncode == 0, first.done.stderr
    settings = read_settings(first.config)
    assert len(first.records) > 60
    for record in first.records:
        first.go_back(record)
        assert ingest.take(spark, settings, Ending(), once=True) == 0
        assert rows_of(first.table) == first.sent, record.name


def test_ended_by_ctrl_c_then_gone_on_with_by_spark_submit(broker: LiveBroker, tmp_path: Path) -> None:
    """A terminal sends SIGINT to the command, to the pipeline and to its JVM: in order all the same. The rest
    comes once, by plain spark-submit."""
    sent = send(broker.address, "interrupted", 90)
    config = write_config(
        tmp_path / "config.toml", broker.address, "interrupted", tmp_path, SETTINGS, batch=15
    )
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(
            pipeline_command(config), stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        ) as pipeline,
    ):
        assert pipeline.stdout is not None
        for line in pipeline.stdout:
            if line.startswith("ingest: batch 1:"):
                os.killpg(pipeline.pid, signal.SIGINT)
    assert pipeline.returncode == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
    config = write_config(tmp_path / "rest.toml", broker.address, "interrupted", tmp_path, {})
    done = subprocess.run(spark_submit_command(config), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert rows_of(tmp_path / "table") == sent


def spark_submit_command(config: Path) -> list[str]:
    """As docs/pipelines.md has it, with the jars that are here in place of the packages."""
    from millrace.spark_jobs.session import JARS

    submit = str(Path(sys.executable).with_name("spark-submit"))
    settings = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    jars = ",".join(str(jar) for jar in JARS.glob("*.jar"))
    program = [
        "env",
        f"PYSPARK_PYTHON={sys.executable}",
        submit,
        "--jars",
        jars,
        *settings,
        str(ingest.__file__),
    ]
    return [*program, "--config", str(config), "--once"]
