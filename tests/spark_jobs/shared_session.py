"""The one SparkSession of a test run: the pipelines' own builder, small, started when the first test asks for it."""

from __future__ import annotations

import shutil
from functools import cache
from typing import Any

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@cache
def shared_session() -> Any:
    assert shutil.which("java"), "java is missing: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless)"
    from millrace.spark_jobs.session import JARS, build_session

    assert list(JARS.glob("spark-sql-kafka-*.jar")), "Spark's Kafka connector is missing: run `make jars`"
    session = build_session("millrace-tests", SETTINGS)
    session.sparkContext.setLogLevel("ERROR")
    return session


def stop_session() -> None:
    if shared_session.cache_info().currsize:
        shared_session().stop()
        shared_session.cache_clear()
