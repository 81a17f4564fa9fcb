"""Files as Hadoop's file systems have them: on this machine, in HDFS, in S3. Only what the pipelines touch
themselves; Spark does the rest."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import SparkSession

from millrace.spark_jobs.failures import JAVA_ERRORS, causes_of
from millrace.spark_jobs.refusal import Refused

BESIDE = ".new"
PATTERN_LETTERS = re.compile(r"[\\\[\]{}*?^]")  # of Hadoop's, where no \ is before them
S3 = "s3a"
ONE_TRY = {  # of S3's client, whose own tries take four minutes
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "0",
    "fs.s3a.connection.establish.timeout": "5s",
    "fs.s3a.connection.request.timeout": "15s",
}


class Files:
    """Paths are folders and URLs as Spark takes them, or what `child` gave. Of this machine's files Hadoop's
    checksums (.NAME.crc) are left out: what is written here carries its own, and a file may be edited."""

    def __init__(self, session: SparkSession) -> None:
        java: Any = session.sparkContext._jvm
        self._hadoop: Any = java.org.apache.hadoop
        self._path: Any = self._hadoop.fs.Path  # kept, for each name of a package is a question to the JVM
        self._to_text: Any = java.org.apache.commons.io.IOUtils.toString
        self._configuration: Any = session.sparkContext._jsc.hadoopConfiguration()

    def child(self, folder: str, name: str) -> str:
        return str(self._path(folder, name).toString())

    def full_name(self, path: str) -> str:
        """With the scheme, and where it is relative with the folder it is relative to."""
        files, place = self._open(path)
        return str(files.makeQualified(place).toString())

    def check_reached(self, path: str) -> None:
        """Fails within twenty seconds where the store is away; of file systems that are no store nothing is
        asked."""
        place = self._path(path)
        if str(place.toUri().getScheme()) != S3:
            return
        configuration = self._hadoop.conf.Configuration(self._configuration)
        for key, value in ONE_TRY.items():
            configuration.set(key, value)
        files = self._hadoop.fs.FileSystem.newInstance(place.toUri(), configuration)
        try:
            files.exists(place)
        finally:
            files.close()

    def names(self, folder: str) -> list[str]:
        """What is in a folder; nothing where there is none."""
        files, place = self._open(folder)
        return (
            [str(found.getPath().getName()) for found in files.listStatus(place)]
            if files.exists(place)
            else []
        )

    def matching(self, folder: str, pattern: str) -> list[str]:
        """Paths below the folder, which is taken by its letters, by Hadoop's patterns."""
        files, place = self._open(self.child(PATTERN_LETTERS.sub(r"\\\g<0>", folder), pattern))
        return [str(found.getPath().toString()) for found in files.globStatus(place) or ()]

    def text(self, path: str) -> str:
        """Of the whole file; nothing where there is none. What `write_whole` was killed at is read from
        beside it."""
        return self._text(path) or self._text(path + BESIDE)

    def _text(self, path: str) -> str:
        files, place = self._open(path)
        try:
            stream = files.open(place)
        except JAVA_ERRORS as error:
            if causes_of(error)[0][0] != "java.io.FileNotFoundException":
                raise
            return ""
        try:
            return str(self._to_text(stream, "UTF-8"))
        finally:
            stream.close()

    def texts(self, folder: str) -> dict[str, str]:
        """Of the files in a folder, by their names; nothing of those that go meanwhile."""
        return {name: self._text(self.child(folder, name)) for name in self.names(folder)}

    def put(self, path: str, text: str) -> None:
        """Over what is there. Where a file system does not replace files whole, a reader may meet a part of
        it."""
        files, place = self._open(path)
        stream = files.create(place, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def make_folder(self, path: str) -> None:
        """Raises Refused where the file system does not say why it cannot."""
        files, place = self._open(path)
        if not files.mkdirs(place):
            raise Refused(f"{path} cannot be made: let the pipeline's user write in the folder above it")

    def remove(self, path: str) -> None:
        """A file, or a folder with what is in it."""
        files, place = self._open(path)
        files.delete(place, True)

    def write_whole(self, path: str, text: str) -> None:
        """Durable on return where the file system can tell. Written beside, then renamed: killed anywhere,
        `text` finds the old file or the new one.

        HDFS and S3 rename over nothing, so the old file is deleted first, with the new one whole beside it.
        """
        files, place = self._open(path)
        beside = self._path(path + BESIDE)
        stream = files.create(beside, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        files.delete(place if not self._is_local(files) else self._checksum(place), False)
        files.rename(beside, place)

    def _checksum(self, place: Any) -> Any:
        """Where Spark's view of this machine's files would look for one; an old one does not fit what is
        written here."""
        return self._path(place.getParent(), f".{place.getName()}.crc")

    def _is_local(self, files: Any) -> bool:
        return str(files.getUri().getScheme()) == "file"

    def _open(self, path: str) -> tuple[Any, Any]:
        place = self._path(path)
        files = place.getFileSystem(self._configuration)
        return (files.getRaw() if self._is_local(files) else files), place
