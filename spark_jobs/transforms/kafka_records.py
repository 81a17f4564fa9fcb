"""Rows of Spark's Kafka source to rows of the ingested table. A function from DataFrame to DataFrame; no
session, no I/O."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def to_ingested(source: DataFrame) -> DataFrame:
    """Names the columns of `schemas.INGESTED` in order; `date` is the record timestamp's day in the session's
    zone."""
    return source.select(
        F.col("topic"),
        F.col("partition"),
        F.col("offset"),
        F.col("timestamp"),
        F.col("timestampType").alias("timestamp_type"),
        F.col("key"),
        F.col("value"),
        F.col("headers"),
        F.to_date(F.col("timestamp")).alias("date"),
    )
