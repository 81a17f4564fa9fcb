"""The one SparkSession of a test run: the pipelines' own builder, small, started when the first test asks for
it. It has S3's jars, too."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

S3_JARS = Path(__file__).parent / "s3" / "jars"
ARCHIVE = Path(__file__).resolve().parent / ".build" / "spark.jsa"  # class_archive.py writes it
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# Without a word where there is none, or one of other jars: then a start takes longer.
MAPPED = f"-Xshare:auto -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds*=off"
SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {MAPPED}",
}


@cache
def shared_session() -> Any:
    assert shutil.which("java"), (
        "java is missing: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless)"
    )
    from millrace.spark_jobs.session import JARS, build_session

    assert list(JARS.glob("spark-sql-kafka-*.jar")), "Spark's Kafka connector is missing: run `make jars`"
    session = build_session("millrace-tests", {**SETTINGS, "spark.jars": s3_jars()})
    session.sparkContext.setLogLevel("ERROR")
    return session


def s3_jars() -> str:
    """As "spark.jars" takes them."""
    found = sorted(str(path) for path in S3_JARS.glob("*.jar"))
    assert found, "hadoop-aws is missing: run `make jars`"
    return ",".join(found)


def stop_session() -> None:
    if shared_session.cache_info().currsize:
        shared_session().stop()
        shared_session.cache_clear()
