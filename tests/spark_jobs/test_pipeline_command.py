"""The pipeline by the commands that its users have, against a live broker, from start to end."""

from __future__ import annotations

import pytest

from tests.spark_jobs.first_start import FirstStart

pytestmark = pytest.mark.timeout(400)


def test_once(first_start: FirstStart) -> None:
    """What the topic holds is in the table, each record once; the exit code is 0, and the output says how many."""
    assert first_start.done.returncode == 0, first_start.done.stderr
    assert "ingest: done, 6 records in this run" in first_start.done.stdout.splitlines()
    assert first_start.rows == first_start.sent
