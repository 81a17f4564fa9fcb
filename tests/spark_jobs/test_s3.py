"""Table and checkpoint in S3: docs/pipelines.md's example against a real S3 server, and what a checkpoint is
relied on for."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from millrace.spark_jobs.binding import BATCHES
from millrace.spark_jobs.config import IngestSettings
from millrace.spark_jobs.ending import Ending
from millrace.spark_jobs.jobs import ingest
from millrace.spark_jobs.refusal import Refused
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.s3_server import S3Server
from tests.spark_jobs.first_start import pipeline_command, send
from tests.spark_jobs.shared_session import S3_JARS, SETTINGS, s3_jars
from tests.spark_jobs.table import rows_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipelines.md"
BUCKET = "lake"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        server.make(BUCKET)
        yield server


@pytest.fixture
def s3_session(spark: Any, s3: S3Server) -> Any:
    """The shared one, told where the bucket is."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    for bucket, secret in (
        (BUCKET, "secret"),
        ("strange", "wrong"),
        ("missing", "secret"),
        ("away", "secret"),
    ):
        endpoint = "http://127.0.0.1:1" if bucket == "away" else s3.endpoint
        given = {"endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
        for key, value in {**given, "access.key": "test", "secret.key": secret}.items():
            configuration.set(f"fs.s3a.bucket.{bucket}.{key}", value)
    return spark


def example() -> str:
    """The last TOML of the page."""
    return re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)[-1]


def test_the_example_names_what_is_tried_here() -> None:
    """The same coordinates, and nothing beside them."""
    spark = tomllib.loads(example())["spark"]
    space = {"": "http://maven.apache.org/POM/4.0.0"}
    pom = ElementTree.parse(S3_JARS.with_name("pom.xml"))
    values = {
        element.tag.rpartition("}")[2]: element.text for element in pom.iter() if "version" in element.tag
    }
    wanted = [
        ":".join(str(found.findtext(name, namespaces=space)) for name in ("groupId", "artifactId", "version"))
        for found in pom.iterfind("dependencies/dependency", space)
    ]
    resolved = [
        re.sub(r"\$\{(.+?)\}", lambda match: str(values[match[1]]), coordinates) for coordinates in wanted
    ]
    assert spark["spark.jars.packages"].split(",") == resolved
    assert spark["spark.jars.excludes"] == "software.amazon.awssdk:bundle"


def test_the_example(s3: S3Server, broker: LiveBroker, tmp_path: Path) -> None:
    """As it stands, but for the addresses, the key, and the jars, which are here: taken by the command,
    beside the Kafka connector."""
    sent = send(broker.address, "orders", 4)
    given = {
        "bootstrap_servers": broker.address,
        '"spark.hadoop.fs.s3a.endpoint"': s3.endpoint,
        '"spark.hadoop.fs.s3a.endpoint.region"': "us-east-1",
        '"spark.hadoop.fs.s3a.access.key"': "test",
        '"spark.hadoop.fs.s3a.secret.key"': "secret",
    }
    text = example()
    for key, value in given.items():
        text, count = re.subn(rf'^{re.escape(key)} = ".*?"', f'{key} = "{value}"', text, flags=re.MULTILINE)
        assert count == 1, key
    text = re.sub(r'^"spark\.jars\.(packages|excludes)" = .*\n', "", text, flags=re.MULTILINE)
    lines = [f'"{key}" = "{value}"' for key, value in {**SETTINGS, "spark.jars": s3_jars()}.items()]
    config = tmp_path / "s3.toml"
    config.write_text("\n".join([text, *lines]))
    done = subprocess.run(pipeline_command(config, "--once"), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert rows_of(s3.file(BUCKET, "events")) == sent


def test_a_checkpoint_in_s3(s3_session: Any, s3: S3Server, broker: LiveBroker) -> None:
    """Killed with a batch begun, its topics changed and changed back, given another table, older than the
    table: as on disks."""
    settings = IngestSettings(
        broker.address, ("buckets", "pails"), "", f"s3a://{BUCKET}/table", f"s3a://{BUCKET}/checkpoint"
    )
    table, checkpoint = s3.file(BUCKET, "table"), s3.file(BUCKET, "checkpoint")

    def take(**changed: Any) -> int:
        return ingest.take(s3_session, replace(settings, **changed), Ending(), once=True)

    sent = send(broker.address, "buckets", 4) + send(broker.address, "pails", 4)
    assert take() == 0
    (checkpoint / "commits" / "0").unlink()
    before = set(table.rglob("*.parquet"))
    assert take(topics=("buckets",)) == 0
    assert before.isdisjoint(table.rglob("*.parquet")), "the batch that was begun is taken back"
    with pytest.raises(Refused, match="a new table takes a new checkpoint"):
        take(table_path=f"s3a://{BUCKET}/other")
    with Client(broker.address) as client:
        client.delete("buckets")
        client.create("buckets", 3)
    with pytest.raises(Refused, match="buckets was deleted and created anew"):
        take()
    assert take(on_recreated_topic="restart") == 0
    assert rows_of(table) == sorted(sent)
    (last,) = os.listdir(table / BATCHES)
    for name in ("commits", "offsets"):
        (checkpoint / name / last).unlink()
    with pytest.raises(
        Refused, match="the checkpoint s3a://lake/checkpoint is older than the table s3a://lake/table"
    ):
        take(on_recreated_topic="restart")


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        (
            "s3a://away/t",
            3,
            r"the store was not reached \(.*refused.*\): check spark\.hadoop\.fs\.s3a\.endpoint",
        ),
        ("s3a://missing/t", 2, "is in a bucket that does not exist"),
        ("s3a://strange/t", 2, "is in S3, which refuses the access key"),
    ],
)
def test_a_bucket_that_cannot_be_used(
    s3_session: Any, broker: LiveBroker, path: str, code: int, said: str
) -> None:
    """Is one sentence; where the store is away, after seconds, and the code says that the same start may
    do."""
    with Client(broker.address) as client:
        client.create(topic := re.sub(r"\W", "", path))
    settings = IngestSettings(broker.address, (topic,), "", path, f"s3a://{BUCKET}/{topic}")
    with pytest.raises(Refused, match=said) as refused:
        ingest.take(s3_session, settings, Ending(), once=True)
    assert refused.value.exit_code == code
