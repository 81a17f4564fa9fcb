"""Files as Hadoop's file systems have them: on this machine, in HDFS, in S3. Only what the pipelines touch themselves; Spark does the rest."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


class Files:
    """Paths are folders and URLs as Spark takes them, or what `below` gave."""

    def __init__(self, session: SparkSession) -> None:
        self._java: Any = session.sparkContext._jvm
        self._configuration: Any = session.sparkContext._jsc.hadoopConfiguration()

    def below(self, folder: str, name: str) -> str:
        return str(self._java.org.apache.hadoop.fs.Path(folder, name).toString())

    def full_name(self, path: str) -> str:
        """With the scheme, and where it is relative with the folder it is relative to."""
        files, place = self._open(path)
        return str(files.makeQualified(place).toString())

    def exists(self, path: str) -> bool:
        files, place = self._open(path)
        return bool(files.exists(place))

    def names(self, folder: str) -> list[str]:
        """What is in a folder; nothing where there is none."""
        files, place = self._open(folder)
        return [str(found.getPath().getName()) for found in files.listStatus(place)] if files.exists(place) else []

    def text(self, path: str) -> str:
        """Of the whole file; nothing where there is none."""
        files, place = self._open(path)
        if not files.exists(place):
            return ""
        stream = files.open(place)
        text = str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        stream.close()
        return text

    def make_folder(self, path: str) -> None:
        files, place = self._open(path)
        files.mkdirs(place)

    def write_whole(self, path: str, text: str) -> None:
        """Written beside and renamed: killed anywhere, there is all of the file or none.

        An empty file in its place is removed, since HDFS and S3 rename over nothing. A file that another process put there meanwhile stays
        where the file system renames over nothing, and is replaced where it does: read it again to know whose it is.
        """
        files, place = self._open(path)
        beside = place.suffix(".new")
        stream = files.create(beside, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        if files.exists(place) and not files.getFileStatus(place).getLen():
            files.delete(place, False)
        files.rename(beside, place)

    def _open(self, path: str) -> tuple[Any, Any]:
        place = self._java.org.apache.hadoop.fs.Path(path)
        return place.getFileSystem(self._configuration), place
