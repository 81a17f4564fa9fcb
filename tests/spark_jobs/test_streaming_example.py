"""The example of a Spark streaming test, as its reader would run it."""

from __future__ import annotations

from pathlib import Path

from millrace.spark_jobs.session import JARS
from tests.testing.test_examples import PYTEST, run_example


def test_the_streaming_example_passes() -> None:
    """With the connector's jars that are here."""
    jars = ",".join(str(path) for path in sorted(Path(JARS).glob("*.jar")))
    run_example("spark_streaming", (*PYTEST, "--rootdir", ".", "."), {"SPARK_KAFKA_JARS": jars})
