"""One driver a checkpoint: a lock on a file in it, held by Spark's JVM, which is what writes.

The operating system gives it back when the JVM ends, however it ends; a driver that was killed keeps the next one out only while its JVM lives.
Local file systems alone have such locks; elsewhere nothing is locked, and Spark itself notices two at their first common batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from millrace.spark_jobs.failures import JAVA_ERRORS, causes_of
from millrace.spark_jobs.refusal import Refused

LEASE_FILE = "_millrace_lease"
JVM_ENDS_WITHIN_S = 10.0  # of a driver that was killed


class Lease:
    """`checkpoint`: by its full name; the folder is there."""

    def __init__(self, session: SparkSession, checkpoint: str) -> None:
        context: Any = session.sparkContext
        self._java = context._jvm
        self._place: Any = self._java.java.net.URI(checkpoint.replace(" ", "%20"))
        self._checkpoint = checkpoint
        self._file: Any = None

    def take(self, is_stopped: Callable[[], bool], wait_s: float = JVM_ENDS_WITHIN_S) -> None:
        """Raises Refused where another driver has it."""
        if str(self._place.getScheme()) != "file":
            return
        path = f"{self._place.getPath()}/{LEASE_FILE}"
        self._file = self._java.java.io.RandomAccessFile(path, "rw")
        until = time.monotonic() + wait_s
        while not self._is_locked():
            if is_stopped() or time.monotonic() > until:
                self.give_back()
                raise Refused(
                    f"another driver runs with the checkpoint {self._checkpoint}: end it, or give this one its own"
                )
            time.sleep(0.2)

    def _is_locked(self) -> bool:
        try:
            return self._file.getChannel().tryLock() is not None
        except JAVA_ERRORS as error:
            if "OverlappingFileLock" not in causes_of(error)[0][0]:
                raise
            return False  # by another query of this JVM

    def give_back(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
