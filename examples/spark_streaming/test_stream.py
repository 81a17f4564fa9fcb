"""A Spark structured streaming query that reads a topic and writes another: run to its end with
`availableNow`.

It needs pyspark, a JVM and Spark's Kafka connector: the jars named by SPARK_KAFKA_JARS (comma-separated
paths), or else Spark fetches them.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from millrace.testing import Broker

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    jars = os.environ.get("SPARK_KAFKA_JARS")
    session = builder.config(
        *("spark.jars", jars) if jars else ("spark.jars.packages", CONNECTOR)
    ).getOrCreate()
    yield session
    session.stop()


def test_totals_are_published(kafka: Broker, spark: SparkSession, tmp_path: Path) -> None:
    kafka.create_topic("orders", partitions=2)
    for number in range(10):
        kafka.produce("orders", str(number), key=f"customer-{number % 2}")
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    orders = source.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    totals = orders.groupBy(f.col("key")).agg(
        f.sum(f.col("value").cast("string").cast("int")).cast("string").alias("value")
    )
    sink = totals.writeStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    sink = sink.option("topic", "totals").option("checkpointLocation", str(tmp_path)).outputMode("update")
    sink.trigger(availableNow=True).start().awaitTermination(120)
    found = {record.key: record.text for record in kafka.records("totals")}
    assert found == {b"customer-0": "20", b"customer-1": "25"}
