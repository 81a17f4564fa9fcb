"""What pipelines read: Kafka topics through Spark's own connector."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from millrace.spark_jobs.config import IngestSettings


def kafka_stream(session: SparkSession, settings: IngestSettings) -> DataFrame:
    """A stream with headers. Data lost to retention before it was read fails the query rather than passing
    unseen."""
    reader = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("startingOffsets", settings.starting_offsets)
        .option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
    )
    if settings.topics:
        reader = reader.option("subscribe", ",".join(settings.topics))
    else:
        reader = reader.option("subscribePattern", settings.topic_pattern)
    for key, value in settings.kafka_options.items():
        reader = reader.option(key, value)
    return reader.load()
