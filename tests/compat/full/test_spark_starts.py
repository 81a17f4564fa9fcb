"""`ingest` killed in its first start, at every call to the file system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.config import read_settings
from millrace.spark_jobs.jobs.ingest import start
from millrace.spark_jobs.table_owner import claim_table
from tests.live import LiveBroker
from tests.spark_jobs.first_start import record_first_start
from tests.spark_jobs.shared_session import shared_session, stop_session
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
        start(spark, settings, once=True).awaitTermination()
        assert rows_of(first.table) == first.sent, record.name
