"""One sentence and an exit code for each failure that can be foreseen."""

from __future__ import annotations

import pytest

from millrace.spark_jobs.failures import failure_of

KAFKA = "org.apache.kafka.common.errors."


@pytest.mark.parametrize(
    ("name", "message", "said", "code"),
    [
        (
            f"{KAFKA}TimeoutException",
            "Timed out waiting.\nmore",
            "b:1 was not reached: Timed out waiting.",
            3,
        ),
        (
            "org.apache.kafka.common.config.ConfigException",
            "No resolvable bootstrap urls given",
            "no host of b:1 has",
            3,
        ),
        (
            "org.apache.kafka.common.config.ConfigException",
            "Invalid value x",
            "[kafka.options]: Invalid value x",
            2,
        ),
        (
            "java.lang.IllegalArgumentException",
            "Kafka option 'auto.offset.reset' is not supported.",
            "[kafka.options]: Kafka option 'auto.offset.reset' is not supported.",
            2,
        ),
        (f"{KAFKA}SaslAuthenticationException", "no", "b:1 refused the user or the password", 2),
        (f"{KAFKA}TopicAuthorizationException", "no", "b:1 allows this user no access to the topics", 2),
        (
            "java.io.FileNotFoundException",
            "/t/x (Permission denied)",
            "t is not writable: let the pipeline's user write there, or name another folder (/t/x "
            "(Permission denied))",
            2,
        ),
        (
            "java.io.IOException",
            "No space left on device",
            "t is on a full disk: make room on it (No space left on device)",
            2,
        ),
        (
            "org.apache.hadoop.fs.s3a.AWSBadRequestException",
            "Forbidden (Service: S3, Status Code: 403)",
            "t is in S3, which refuses the access key or its rights: check the key",
            2,
        ),
        (
            "a.UnknownStoreException",
            "`s3a://lake/': NoSuchBucket",
            "t is in a bucket that does not exist: create it",
            2,
        ),
        (
            "a.b.Other",
            "NoAwsCredentials",
            "t is in S3, and no credentials were found: docs/pipelines.md shows",
            2,
        ),
        (
            "java.io.IOException",
            "Mkdirs failed to create file:/t",
            "t cannot be made: let the pipeline's user",
            2,
        ),
        ("java.io.IOException", "Read-only file system", "t is on a read-only file system: name another", 2),
        ("java.io.IOException", "Not a directory", "t cannot be made, for a file is in its way", 2),
        (
            "a.UnsupportedFileSystemException",
            'No FileSystem for scheme "gs"',
            "t is of a kind that Spark has no jar",
            2,
        ),
        (
            "java.lang.ClassNotFoundException",
            "Class o.a.h.fs.s3a.S3AFileSystem not found",
            "t is in S3, and Spark",
            2,
        ),
        (
            "org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException",
            "no end",
            "t: the store was not reached (no end): check",
            3,
        ),
        (
            "ConnectionRefusedError",
            "[Errno 111] Connection refused",
            "Spark's JVM does not answer: it was killed",
            1,
        ),
        ("a.b.Other", "first\nat line\n" * 700, "Other: first; --trace shows all of it", 1),
        ("a.b.Other", "", "Other: no reason given; --trace shows all of it", 1),
        ("a.b.Other", "x" * 5000, "Other: xxx", 1),
    ],
)
def test_one_sentence(name: str, message: str, said: str, code: int) -> None:
    """By the deepest cause, whatever is around it; never longer than a few lines of a screen."""
    sentence, found = failure_of(
        [("o.a.s.StreamingQueryException", "[STREAM_FAILED] long\n" * 400), (name, message)], "b:1", "t"
    )
    assert (sentence[: len(said)], found) == (said, code)
    assert len(sentence.splitlines()) == 1
    assert len(sentence) < 400
