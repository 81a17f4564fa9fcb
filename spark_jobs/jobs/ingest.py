"""`ingest`: Kafka topics to a partitioned Parquet table, each record once.

Runs as `millrace pipeline run ingest --config FILE [--once]`, or by plain spark-submit with this file. Stopped or killed anywhere, the next run
goes on where the last finished batch ended (see sinks.py for why nothing repeats). One line of progress a batch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.spark_jobs.config import ConfigError, IngestSettings, read_settings

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.spark_jobs.ending import Ending


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="millrace pipeline run ingest", description="Kafka topics to a Parquet table, each record once."
    )
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="TOML file; see spark_jobs/config.py or the docs"
    )
    parser.add_argument("--once", action="store_true", help="take what is there now, then end")
    given = parser.parse_args(arguments)
    try:
        settings = read_settings(given.config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return run(settings, once=given.once)


def run(settings: IngestSettings, *, once: bool) -> int:
    from millrace.spark_jobs.ending import Ending
    from millrace.spark_jobs.session import build_session
    from millrace.spark_jobs.table_owner import TableOwned, claim_table

    print(f"ingest: starting Spark; {settings.bootstrap_servers} -> {settings.table_path}", flush=True)
    session = build_session("millrace-ingest", settings.spark)
    session.sparkContext.setLogLevel("ERROR")
    ending = Ending()
    ending.listen()
    try:
        claim_table(session, settings.table_path, settings.checkpoint)
    except TableOwned as error:
        print(error, file=sys.stderr)
        return 2
    return follow(start(session, settings, ending, once=once), ending)


def start(session: Any, settings: IngestSettings, ending: Ending, *, once: bool) -> StreamingQuery:
    from millrace.spark_jobs.sinks import parquet_batches
    from millrace.spark_jobs.sources import kafka_stream
    from millrace.spark_jobs.transforms.kafka_records import to_ingested

    writer = (
        to_ingested(kafka_stream(session, settings))
        .writeStream.queryName("ingest")
        .option("checkpointLocation", settings.checkpoint)
        .foreachBatch(ending.between_batches(parquet_batches(settings.table_path)))
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger_interval_s} seconds").start()


def follow(query: StreamingQuery, ending: Ending) -> int:
    """Prints each batch as it ends; returns when the query does: 0 when stopped or done, 1 when it failed."""
    seen, rows = -1, 0
    while True:
        try:
            ended = ending.wait(query)
        except Exception as error:  # the JVM's own exception classes
            print(f"ingest: failed: {error}", file=sys.stderr)
            return 1
        for progress in query.recentProgress:
            if progress["batchId"] > seen and progress["numInputRows"]:
                seen = progress["batchId"]
                rows += progress["numInputRows"]
                rate = progress["processedRowsPerSecond"]
                print(
                    f"ingest: batch {seen}: {progress['numInputRows']} records, {rate:,.0f}/s, {rows} in all",
                    flush=True,
                )
        if ended:
            print(f"ingest: done, {rows} records in this run", flush=True)
            return 0


if __name__ == "__main__":
    raise SystemExit(main())
