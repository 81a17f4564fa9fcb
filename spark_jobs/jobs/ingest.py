"""`ingest`: Kafka topics to a partitioned Parquet table, each record once.

Runs as `millrace pipeline run ingest --config FILE [--once] [--trace]`, or by plain spark-submit with this
file. Stopped or killed anywhere, the next run goes on where the last finished batch ended (see sinks.py for
why nothing repeats). One line of progress a batch.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.spark_jobs.config import ConfigError, IngestSettings, read_settings
from millrace.spark_jobs.refusal import FAILED, REFUSED, Refused, Stopped

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.spark_jobs.ending import Ending, WriteBatch
    from millrace.spark_jobs.taking import Taking


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="millrace pipeline run ingest", description="Kafka topics to a Parquet table, each record once."
    )
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE",
        help="TOML file; docs/pipelines.md has its settings",
    )
    parser.add_argument("--once", action="store_true", help="take what is there now, then end")
    parser.add_argument("--trace", action="store_true", help="show what Spark and Kafka say of an error")
    given = parser.parse_args(arguments)
    try:
        settings = read_settings(given.config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return REFUSED
    return run(settings, once=given.once, trace=given.trace)


def run(settings: IngestSettings, *, once: bool, trace: bool) -> int:
    """The exit code. Whatever it refuses or fails with is one sentence on stderr."""
    from millrace.spark_jobs.ending import Ending
    from millrace.spark_jobs.failures import causes_of, failure_of
    from millrace.spark_jobs.session import build_session

    # While Spark starts, SIGINT ends the process as SIGTERM does: with Python's own handler the start would
    # be waited for, and leave a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print(f"ingest: starting Spark; {settings.bootstrap_servers} -> {settings.table_path}", flush=True)
    try:
        session = build_session("millrace-ingest", settings.spark)
    except BaseException as met:
        if is_interrupt(met):  # by the handler that the session's context sets
            return 128 + signal.SIGINT
        raise
    session.sparkContext.setLogLevel("ERROR" if trace else "OFF")
    if not trace:
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    ending = Ending()
    ending.listen()
    try:
        return take(session, settings, ending, once=once)
    except Refused as refused:
        error: Exception = refused
        sentence, code = str(refused), refused.exit_code
    except Exception as failed:  # the JVM's own exception classes
        error = failed
        folders = f"{settings.table_path} or {settings.checkpoint}"
        sentence, code = failure_of(causes_of(failed), settings.bootstrap_servers, folders)
    if trace:
        logging.getLogger("millrace.ingest").error("what it failed with", exc_info=error)
    print(f"ingest: {sentence}", file=sys.stderr)
    return code


def is_interrupt(error: BaseException | None) -> bool:
    """Or was met while one was handled: a call into the JVM that is interrupted fails in ways of its own."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or is_interrupt(error.__context__))


def take(session: Any, settings: IngestSettings, ending: Ending, *, once: bool) -> int:
    """Until the end, or an error. A query that failed for a reason that the policies allow is begun again
    from where they say."""
    from millrace.spark_jobs.taking import Taking

    taking = Taking(session, settings, ending.is_asked)
    try:
        taking.open()
        while True:
            taking.prepare()
            query = start(session, settings, ending, once=once, taking=taking)
            try:
                return follow(query, ending, taking.stop_if_lost)
            except Exception as error:  # the JVM's own exception classes
                query.stop()
                if not taking.prepare():  # which says what was wrong, if that can be seen
                    raise (taking.failure or error) from None
    except Stopped:
        return 0 if ending.has_read else stopped_early(ending)
    finally:
        taking.close()


def start(
    session: Any, settings: IngestSettings, ending: Ending, *, once: bool, taking: Taking | None = None
) -> StreamingQuery:
    from millrace.spark_jobs.sinks import parquet_batches
    from millrace.spark_jobs.sources import kafka_stream
    from millrace.spark_jobs.transforms.kafka_records import to_ingested

    write: WriteBatch = parquet_batches(settings.table_path)
    if taking:
        write = taking.around_batches(write)
    writer = (
        to_ingested(kafka_stream(session, settings))
        .writeStream.queryName("ingest")
        .option("checkpointLocation", settings.checkpoint)
        .foreachBatch(ending.between_batches(write))
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger_interval_s} seconds").start()


def follow(query: StreamingQuery, ending: Ending, look: Callable[[], None] = lambda: None) -> int:
    """Prints each batch as it ends; returns the exit code when the query has ended, raises what it failed
    with. `look` is asked each second, and may raise."""
    seen, rows, has_ended = -1, 0, False
    while not has_ended:
        look()
        has_ended = ending.wait(query)
        for progress in query.recentProgress:
            if progress["batchId"] > seen and progress["numInputRows"]:
                seen = progress["batchId"]
                rows += progress["numInputRows"]
                rate = progress["processedRowsPerSecond"]
                print(
                    f"ingest: batch {seen}: {progress['numInputRows']} records, {rate:,.0f}/s, {rows} in all",
                    flush=True,
                )
    if ending.has_left_batch:
        print(
            "ingest: the batch under way is left; the next start runs it again from its beginning", flush=True
        )
    if ending.signal and not ending.has_read:
        return stopped_early(ending)
    print(f"ingest: done, {rows} records in this run", flush=True)
    return 0


def stopped_early(ending: Ending) -> int:
    """As shells tell the end by a signal: 128 and its number."""
    print("ingest: stopped before anything was read", file=sys.stderr)
    return 128 + ending.signal if ending.signal else FAILED


if __name__ == "__main__":
    raise SystemExit(main())
