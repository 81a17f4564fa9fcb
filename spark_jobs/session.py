"""The only builder of a SparkSession for the pipelines.

Adds Spark's Kafka connector: the jars that `make jars` put beside this file when they are there, else the
connector's Maven coordinates, which Spark resolves itself. Jars and packages of the settings come beside it.
Under spark-submit the session that exists is used, with the jars it was given.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
JARS = Path(__file__).resolve().parent / "jars"


def build_session(name: str, settings: dict[str, str]) -> SparkSession:
    """A session in UTC, so that a record's date does not depend on where the pipeline runs."""
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if not _is_submitted():
        builder = builder.master(settings.get("spark.master", "local[*]")).config("spark.ui.enabled", "false")
        settings = with_connector(settings, sorted(str(path) for path in JARS.glob("*.jar")))
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def with_connector(settings: dict[str, str], jars: list[str]) -> dict[str, str]:
    """The settings, the connector added to what they give: as `jars`, or where there are none by its
    coordinates."""
    key, added = ("spark.jars", jars) if jars else ("spark.jars.packages", [CONNECTOR])
    given = [name.strip() for name in settings.get(key, "").split(",") if name.strip()]
    return {**settings, key: ",".join([*given, *(name for name in added if name not in given)])}


def _is_submitted() -> bool:
    """True under spark-submit, which sets this for the Python driver it starts."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
