"""What Spark, Hadoop and Kafka fail with, as one sentence each with what to do. Pure but for `causes_of`,
which reads an exception of the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from millrace.spark_jobs.refusal import FAILED, Refused, Unreachable

JAVA_ERRORS = (Py4JJavaError, PySparkException)  # how an exception of the JVM arrives
# How a call fails that the JVM does not answer. Its own exceptions are Py4JErrors as well: catch JAVA_ERRORS
# before.
JVM_GONE = (Py4JError, OSError)
JVM_ENDED = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")
JVM_SENTENCE = (
    "Spark's JVM does not answer: it was killed, or is short of memory (spark.driver.memory); "
    "start again, nothing is lost"
)
Causes = Sequence[tuple[str, str]]  # class and message, from the outermost to the deepest
DEEPEST = 30
SENTENCE_MAX = 300
# Part of a class's name or of a message in small letters, and the sentence.
KAFKA_REFUSES = (
    ("SaslAuthenticationException", "refused the user or the password: set them in [kafka.options]"),
    ("SslAuthenticationException", "refused the TLS connection, or its certificate is not trusted: set "
                                   "kafka.ssl.* in [kafka.options]"),
    ("TopicAuthorizationException", "allows this user no access to the topics"),
    ("GroupAuthorizationException", "allows this user no access to the group"),
    ("ClusterAuthorizationException", "allows this user no access to the cluster"),
    ("UnsupportedVersionException", "is too old: topic ids came with Kafka 2.8"),
)  # fmt: skip
KAFKA_AWAY = (
    "errors.TimeoutException",
    "DisconnectException",
    "NetworkException",
    "BrokerNotAvailableException",
)
MAY_NOT_WRITE = "is not writable: let the pipeline's user write there, or name another folder"
IN_THE_WAY = "cannot be made, for a file is in its way: name another folder"
NO_JAR = "is of a kind that Spark has no jar for: docs/pipelines.md shows S3's"
NO_BUCKET = "is in a bucket that does not exist: create it, or correct the name"
STORE_AWAY = ("connection refused", "connecttimeout", "apicalltimeout", "unknownhost", "no route to host")
FILES_REFUSE = (
    ("status code: 403", "is in S3, which refuses the access key or its rights: check the key, its secret "
                         "and the bucket's policy"),
    ("permission denied", MAY_NOT_WRITE),
    ("accesscontrolexception", MAY_NOT_WRITE),
    ("accessdenied", MAY_NOT_WRITE),
    ("read-only file system", "is on a read-only file system: name another folder"),
    ("no space left on device", "is on a full disk: make room on it"),
    ("mkdirs failed to create", "cannot be made: let the pipeline's user write in the folder above it"),
    ("parentnotdirectory", IN_THE_WAY),
    ("not a directory", IN_THE_WAY),
    ("no filesystem for scheme", NO_JAR),
    ("unsupportedfilesystem", NO_JAR),
    ("s3afilesystem not found", "is in S3, and Spark has no jar for it: docs/pipelines.md shows which"),
    ("nosuchbucket", NO_BUCKET),
    ("unknownstoreexception", NO_BUCKET),
    ("noawscredentials", "is in S3, and no credentials were found: docs/pipelines.md shows how they are set"),
)  # fmt: skip


def causes_of(error: BaseException) -> list[tuple[str, str]]:
    """Of an exception of py4j or of PySpark; of others their own class alone."""
    found: list[tuple[str, str]] = []
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while thrown is not None and len(found) < DEEPEST:
        found.append((str(thrown.getClass().getName()), str(thrown.getMessage() or "")))
        thrown = thrown.getCause()
    return found or [(type(error).__name__, str(error))]


def sentence_of_kafka(causes: Causes, servers: str) -> Refused | None:
    """Where the brokers are away, or refuse; None where it is something else."""
    for name, message in causes:
        if "No resolvable bootstrap urls" in message:
            return Unreachable(
                f"no host of {servers} has an address: check bootstrap_servers and the resolver"
            )
        if name.endswith("ConfigException") or message.startswith("Kafka option '"):  # Spark's own refusals
            return Refused(f"[kafka.options]: {_short(message)}")
        for part, said in KAFKA_REFUSES:
            if part in name:
                return Refused(f"{servers} {said}")
    if any(part in name for name, _ in causes for part in KAFKA_AWAY):
        return Unreachable(f"{servers} was not reached: {_short(causes[-1][1])}")
    return None


def sentence_of_files(causes: Causes, path: str) -> Refused | None:
    """Where a folder cannot be used; None where it is something else."""
    text = " ".join(f"{name} {message}" for name, message in causes).lower()
    if "s3a" in text and any(part in text for part in STORE_AWAY):
        return Unreachable(
            f"{path}: the store was not reached ({_short(causes[-1][1])}): check spark.hadoop.fs.s3a.endpoint"
        )
    for name, message in causes:
        text = f"{name} {message}".lower()
        for part, said in FILES_REFUSE:
            if part in text:
                return Refused(f"{path} {said} ({_short(message)})")
    return None


def failure_of(causes: Causes, servers: str, folders: str) -> tuple[str, int]:
    """The sentence and the exit code of a query that failed for no reason that a look at topics and folders
    shows."""
    found = sentence_of_kafka(causes, servers) or sentence_of_files(causes, folders)
    if found:
        return str(found), found.exit_code
    name, message = causes[-1]
    if name in JVM_ENDED:
        return JVM_SENTENCE, FAILED
    return f"{name.rsplit('.', 1)[-1]}: {_short(message)}; --trace shows all of it", FAILED


def _short(message: str) -> str:
    line = next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")
    return line if len(line) <= SENTENCE_MAX else line[:SENTENCE_MAX] + "..."
