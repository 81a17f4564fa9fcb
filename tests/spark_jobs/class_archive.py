"""Keeps what Spark's JVM loads in a run of `ingest`, for the JVMs of the tests to map: a start takes half the
CPU. `python -m tests.spark_jobs.class_archive`, a part of the set-up.

A JVM that does not find it, or has other jars, loads its classes as ever (shared_session.py).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from millrace.spark_jobs.config import IngestSettings
from millrace.spark_jobs.ending import Ending
from millrace.spark_jobs.jobs import ingest
from millrace.spark_jobs.session import build_session
from tests.live import LiveBroker
from tests.spark_jobs.first_start import send
from tests.spark_jobs.shared_session import ARCHIVE, JAVA_OPTIONS, SETTINGS, s3_jars

DUMP_S = 600.0


def main() -> None:
    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    options = f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:disable"
    settings = {**SETTINGS, "spark.jars": s3_jars(), "spark.driver.extraJavaOptions": options}
    session: Any = build_session("millrace-class-archive", settings)
    session.sparkContext.setLogLevel("ERROR")
    gateway = session.sparkContext._gateway
    with tempfile.TemporaryDirectory() as name, LiveBroker(Path(name), wal="64MiB") as broker:
        send(broker.address, "kept", 4)
        places = f"{name}/table", f"{name}/checkpoint"
        ingest.take(session, IngestSettings(broker.address, ("kept",), "", *places), Ending(), once=True)
        session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends when this does, and writes the archive before it has ended
    gateway.proc.wait(DUMP_S)


if __name__ == "__main__":
    main()
