"""What an operator reads when a pipeline is refused: one sentence with what to do, an exit code, and the
trace where it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.jobs import ingest
from tests.live import LiveBroker
from tests.live.client import Client
from tests.spark_jobs.first_start import write_config

pytestmark = pytest.mark.usefixtures("signals")
UNWRITABLE = "/sys/kernel"  # for root, too


@pytest.fixture
def shared(spark: Any) -> Any:
    """The pipeline finds the session, and turns its log off."""
    yield spark
    spark.sparkContext.setLogLevel("ERROR")


def run(capsys: pytest.CaptureFixture[str], config: Path, *words: str) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr."""
    capsys.readouterr()
    code = ingest.main(["--config", str(config), "--once", *words])
    return code, capsys.readouterr().err.splitlines()


@pytest.fixture(scope="module")
def told(broker: LiveBroker) -> str:
    with Client(broker.address) as client:
        client.create("told")
    return "told"


@pytest.mark.parametrize(
    ("address", "topic", "table", "code", "said"),
    [
        ("", "untold", "", 2, "has no topic untold: create it, or take it out of [kafka] topics"),
        ("none.invalid:9092", "told", "", 3, "no host of none.invalid:9092 has an address: check "
                                             "bootstrap_servers and the resolver"),
        ("", "told", f"{UNWRITABLE}/lake", 2, "cannot be made: let the pipeline's user write in the folder "
                                              "above it"),
        ("", "told", UNWRITABLE, 2, "is not writable: let the pipeline's user write there, or name another "
                                    "folder"),
    ],
)  # fmt: skip
def test_refused_at_the_start(
    shared: Any,
    broker: LiveBroker,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    address: str,
    topic: str,
    table: str,
    code: int,
    said: str,
) -> None:
    """A missing topic, an unknown host, a folder that cannot be made or written: with the cause named, and no
    more than that."""
    config = write_config(tmp_path / "c.toml", address or broker.address, topic, tmp_path, {})
    text = config.read_text()
    config.write_text(text.replace(f'path = "{tmp_path}/table"', f'path = "{table}"') if table else text)
    found, lines = run(capsys, config)
    assert (found, len(lines)) == (code, 1), lines
    assert lines[0].startswith("ingest: ")
    assert said in lines[0]


def test_retention_passed_the_checkpoint(
    shared: Any, broker: LiveBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The offsets are named, and the setting that goes on."""
    config = write_config(tmp_path / "c.toml", broker.address, "passed", tmp_path, {})
    with Client(broker.address) as client:
        client.create("passed")
        client.produce("passed", [b"x"] * 5)
        assert run(capsys, config) == (0, [])
        client.produce("passed", [b"x"] * 5)
        client.delete_records("passed", 8)
    sentence = (
        "ingest: passed-0: retention or a deletion removed 5 to 7 before they were read: "
        'on_lost_records = "skip" goes on from 8'
    )
    assert run(capsys, config) == (2, [sentence])


@pytest.mark.parametrize(
    ("address", "table", "trace"),
    [
        ("none.invalid:9092", "", "No resolvable bootstrap urls"),
        ("", UNWRITABLE, "java.io.FileNotFoundException"),
    ],
)
def test_the_trace_on_request(
    shared: Any,
    broker: LiveBroker,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    address: str,
    table: str,
    trace: str,
) -> None:
    """The same sentence, and what the JVM says of it."""
    config = write_config(tmp_path / "c.toml", address or broker.address, told, tmp_path, {})
    if table:
        config.write_text(config.read_text().replace(f'path = "{tmp_path}/table"', f'path = "{table}"'))
    assert len(run(capsys, config)[1]) == 1
    assert trace not in caplog.text
    assert len(run(capsys, config, "--trace")[1]) >= 1
    assert trace in caplog.text
    assert "\tat " in caplog.text
