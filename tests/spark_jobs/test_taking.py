"""`ingest` from one start to the next while its configuration and its topics change, against a live broker, in the shared session."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.cluster import Cluster, Stopped
from millrace.spark_jobs.config import IngestSettings
from millrace.spark_jobs.ending import Ending
from millrace.spark_jobs.jobs import ingest
from millrace.spark_jobs.refusal import Refused, Unreachable
from millrace.spark_jobs.taking import Taking
from tests.live import LiveBroker
from tests.live.client import Client
from tests.spark_jobs.table import rows_of

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def settings(broker: LiveBroker, tmp_path: Path) -> IngestSettings:
    return IngestSettings(broker.address, ("one", "two"), "", str(tmp_path / "table"), str(tmp_path / "checkpoint"))


def take(spark: Any, settings: IngestSettings, **changed: Any) -> int:
    return ingest.take(spark, replace(settings, **changed), Ending(), once=True)


def test_topics_come_and_go(spark: Any, broker: LiveBroker, settings: IngestSettings) -> None:
    """Out and in again, deleted and created anew, with records removed: each record that can be had is there once, and the rest is told."""
    table = Path(settings.table_path)
    with Client(broker.address) as client:
        for topic in settings.topics:
            client.create(topic)
            client.produce(topic, [b"first"] * 5)
        assert take(spark, settings) == 0
        client.produce("two", [b"while out"] * 5)
        assert take(spark, settings, topics=("one",)) == 0
        assert Counter(row[0] for row in rows_of(table)) == {"one": 5, "two": 5}
        assert take(spark, settings) == 0
        with pytest.raises(Refused, match="has no topic three, four: create it"):
            take(spark, settings, topics=("one", "three", "four"))
        client.delete("one")
        client.create("one")
        client.produce("one", [b"anew"] * 8)
        with pytest.raises(Refused, match="one was deleted and created anew after offsets 0:5"):
            take(spark, settings)
        client.produce("two", [b"never read"] * 5 + [b"last"])
        client.delete_records("two", 15)
        with pytest.raises(Refused, match="two-0: retention or a deletion removed 10 to 14"):
            take(spark, settings, on_recreated_topic="restart")
        assert take(spark, settings, on_recreated_topic="restart", on_lost_records="skip") == 0
    assert Counter((row[0], row[3]) for row in rows_of(table)) == {
        ("one", b"first"): 5,
        ("one", b"anew"): 8,
        ("two", b"first"): 5,
        ("two", b"while out"): 5,
        ("two", b"last"): 1,
    }


def test_a_topic_is_created_anew_during_a_batch(
    spark: Any, broker: LiveBroker, settings: IngestSettings, tmp_path: Path
) -> None:
    """Before it is written, nothing is; after, it is taken back. Neither counts as done."""
    written = tmp_path / "table" / "topic=racing" / "date=2026-11-24" / "batch=0"

    def write(frame: Any, batch: int) -> None:
        assert frame == "frame"
        written.mkdir(parents=True)
        create_anew()

    def create_anew() -> None:
        with Client(broker.address) as client:
            client.delete("racing")
            client.create("racing")

    with Client(broker.address) as client:
        client.create("racing")
    taking = Taking(spark, replace(settings, topics=("racing",)), lambda: False)
    taking.open()
    try:
        taking.prepare()
        around: Any = taking.around_batches(write)
        with pytest.raises(Refused, match="racing was deleted and created anew while it was read"):
            around("frame", 0)
        assert written.parent.exists()
        assert not written.exists()
        with pytest.raises(Refused, match="racing was deleted and created anew while it was read"):
            around("frame", 0)
        assert not written.exists(), "the second one was not begun"
        assert isinstance(taking.failure, Refused)
    finally:
        taking.close()


def test_a_pattern_s_topics(spark: Any, broker: LiveBroker, settings: IngestSettings) -> None:
    """Those that it matches as Java does; a new one is bound at its first batch; one that is gone is told."""
    pattern = replace(settings, topics=(), topic_pattern=r"shop\..*")
    with Client(broker.address) as client:
        for topic in ("shop.a", "shopxb"):
            client.create(topic)
            client.produce(topic, [b"x"] * 3)
        assert take(spark, pattern) == 0
        client.create("shop.c")
        client.produce("shop.c", [b"x"] * 2)
        assert take(spark, pattern) == 0
        assert Counter(row[0] for row in rows_of(Path(settings.table_path))) == {"shop.a": 3, "shop.c": 2}
        client.delete("shop.c")
        with pytest.raises(Refused, match=r"shop\.c is gone from the brokers"):
            take(spark, pattern)
        assert take(spark, pattern, on_recreated_topic="restart") == 0
        with pytest.raises(Refused, match="is no pattern of Java's: Unclosed group"):
            take(spark, pattern, topic_pattern="(")


@pytest.mark.parametrize(
    ("address", "said"),
    [("no-such-host.invalid:9092", "no host of no-such-host.invalid:9092 has an address"), ("", "was not reached")],
)
def test_brokers_that_are_away(spark: Any, settings: IngestSettings, address: str, said: str) -> None:
    """One sentence, after the time that is given, which is ten seconds for a start."""
    with pytest.raises(Unreachable, match=said) as refused:
        Cluster(
            spark, replace(settings, bootstrap_servers=address or "127.0.0.1:1"), lambda: False, within_ms=1000
        ).cluster_id()
    assert refused.value.exit_code == 3


def test_stopped_while_the_brokers_are_waited_for(
    spark: Any, settings: IngestSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that never read is no success: the code is the signal's."""
    ending = Ending()
    ending.signal = 15
    assert ingest.take(spark, replace(settings, bootstrap_servers="127.0.0.1:1"), ending, once=False) == 128 + 15
    assert capsys.readouterr().err == "ingest: stopped before anything was read\n"
    with pytest.raises(Stopped):
        Cluster(spark, settings, lambda: True).cluster_id()


@pytest.mark.parametrize(("folder", "said"), [("/proc/none", "cannot be made"), ("/etc/passwd/x", "cannot be made")])
def test_folders_that_cannot_be_written(
    spark: Any, broker: LiveBroker, settings: IngestSettings, folder: str, said: str
) -> None:
    """Are told by name, whichever it is."""
    with Client(broker.address) as client:
        client.create(topic := f"folders{len(folder)}")
    for changed in ({"checkpoint": folder}, {"table_path": folder}):
        with pytest.raises(Refused, match=f"{folder}.* {said}"):
            take(spark, settings, topics=(topic,), **changed)
