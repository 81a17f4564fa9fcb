"""The transform from Spark's Kafka rows to the rows of the ingested table, on small frames."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.spark_jobs.schemas import HEADER, INGESTED
from millrace.spark_jobs.transforms.kafka_records import to_ingested

# What Spark's Kafka source gives with headers, as its guide has it.
KAFKA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(HEADER)),
    ]
)


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


def ingested(spark: Any, rows: list[tuple[Any, ...]]) -> Any:
    return to_ingested(spark.createDataFrame(rows, KAFKA))


def test_columns_are_those_of_the_schema(spark: Any) -> None:
    """Names, order and types, so that the table never depends on the source's."""
    frame = ingested(spark, [])
    assert [(field.name, field.dataType) for field in frame.schema] == [
        (field.name, field.dataType) for field in INGESTED
    ]


def test_everything_of_a_record_is_kept(spark: Any) -> None:
    """Keys, values and headers as bytes; nulls and empty bytes are told apart."""
    when = at(2026, 11, 21, 12, 30)
    rows = [
        (bytearray(b"k"), bytearray(b"v"), "t", 1, 7, when, 0, [("h", bytearray(b"1")), ("h", None)]),
        (None, bytearray(b""), "t", 1, 8, when, 1, None),
        (bytearray(b""), None, "t", 2, 0, when, 0, []),
    ]
    found = ingested(spark, rows).collect()
    assert [(row.key, row.value) for row in found] == [(b"k", b"v"), (None, b""), (b"", None)]
    assert [(row.topic, row.partition, row.offset) for row in found] == [
        ("t", 1, 7),
        ("t", 1, 8),
        ("t", 2, 0),
    ]
    assert [row.timestamp_type for row in found] == [0, 1, 0]
    assert [row.headers and [tuple(header) for header in row.headers] for row in found] == [
        [("h", b"1"), ("h", None)],
        None,
        [],
    ]


def test_a_date_is_the_day_in_utc(spark: Any) -> None:
    """Whatever zone the machine is in: the session's zone is UTC."""
    times = [at(2026, 11, 21), at(2026, 11, 21, 23, 59, 59), at(1969, 12, 31, 23)]
    rows = [(None, None, "t", 0, offset, when, 0, None) for offset, when in enumerate(times)]
    assert [row.date for row in ingested(spark, rows).collect()] == [
        date(2026, 11, 21),
        date(2026, 11, 21),
        date(1969, 12, 31),
    ]
