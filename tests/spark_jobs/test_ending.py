"""How a query is ended that has a long batch under way."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from millrace.spark_jobs.ending import Ending
from millrace.spark_jobs.jobs.ingest import follow


@pytest.mark.parametrize(("slow_batch", "code"), [(0, 128 + signal.SIGTERM), (1, 0)])
def test_a_batch_that_takes_too_long_is_left(
    spark: Any, capsys: pytest.CaptureFixture[str], slow_batch: int, code: int
) -> None:
    """To the next start, which is said; the end is in order, but where nothing was read before."""
    ending, has_begun = Ending(batch_wait_s=0), threading.Event()

    def write(frame: Any, batch: int) -> None:
        if batch == slow_batch:
            has_begun.set()
            slept = frame.sparkSession.range(1).selectExpr(
                "reflect('java.lang.Thread', 'sleep', bigint(120000))"
            )
            slept.write.format("noop").mode("append").save()

    rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    query = rows.writeStream.foreachBatch(ending.between_batches(write)).start()
    while not has_begun.wait(0.1):
        assert not ending.wait(query)
    ending.signal = signal.SIGTERM
    assert follow(query, ending) == code
    assert "the batch under way is left; the next start runs it again" in capsys.readouterr().out
