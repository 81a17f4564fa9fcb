"""`ingest` killed in its first start, at every call to the file system, and ended by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.config import read_settings
from millrace.spark_jobs.ending import Ending
from millrace.spark_jobs.jobs.ingest import start
from millrace.spark_jobs.table_owner import claim_table
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
        claim_table(spark, settings.table_path, settings.checkpoint)
        start(spark, settings, Ending(), once=True).awaitTermination()
        assert rows_of(first.table) == first.sent, record.name


def test_ended_by_ctrl_c(broker: LiveBroker, tmp_path: Path) -> None:
    """A terminal sends SIGINT to the command, to the pipeline and to its JVM: in order all the same, without a trace of an exception."""
    sent = send(broker.address, "interrupted", 90)
    config = write_config(tmp_path / "config.toml", broker.address, "interrupted", tmp_path, SETTINGS, batch=15)
    command = pipeline_command(config)
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True) as pipeline,
    ):
        assert pipeline.stdout is not None
        for line in pipeline.stdout:
            if line.startswith("ingest: batch 1:"):
                os.killpg(pipeline.pid, signal.SIGINT)
    assert pipeline.returncode == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
    subprocess.run([*command, "--once"], check=True, timeout=600)
    assert rows_of(tmp_path / "table") == sent
