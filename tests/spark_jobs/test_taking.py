"""`ingest` from one start to the next while its configuration and its topics change, against a live broker,
in the shared session."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.cluster import Cluster
from millrace.spark_jobs.config import IngestSettings
from millrace.spark_jobs.ending import Ending
from millrace.spark_jobs.files import Files
from millrace.spark_jobs.jobs import ingest
from millrace.spark_jobs.lease import Lease
from millrace.spark_jobs.processes import Process
from millrace.spark_jobs.refusal import Refused, Stopped, Unreachable
from millrace.spark_jobs.taking import Taking
from tests.live import LiveBroker
from tests.live.client import Client
from tests.spark_jobs.table import rows_of


@pytest.fixture
def settings(broker: LiveBroker, tmp_path: Path) -> IngestSettings:
    return IngestSettings(
        broker.address, ("one", "two"), "", str(tmp_path / "table"), str(tmp_path / "checkpoint")
    )


def take(spark: Any, settings: IngestSettings, **changed: Any) -> int:
    return ingest.take(spark, replace(settings, **changed), Ending(), once=True)


def test_topics_come_and_go(spark: Any, broker: LiveBroker, settings: IngestSettings) -> None:
    """Out and in again, deleted and created anew, with records removed: each record that can be had is there
    once, and the rest is told."""
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


def test_the_brokers_go_away_during_a_batch(
    spark: Any, settings: IngestSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows stay, though it does not count as done: retention may remove its records before the next
    start, which runs it again."""
    monkeypatch.setattr("millrace.spark_jobs.taking.IN_BATCH_WITHIN_MS", 1000)
    written = tmp_path / "table" / "topic=cut" / "date=2026-11-24" / "batch=0"
    (tmp_path / "broker").mkdir()
    with LiveBroker(tmp_path / "broker", wal="64MiB") as broker:
        with Client(broker.address) as client:
            client.create("cut")
        taking = Taking(
            spark, replace(settings, bootstrap_servers=broker.address, topics=("cut",)), lambda: False
        )

        def write(frame: Any, batch: int) -> None:
            written.mkdir(parents=True)
            broker.kill()

        try:
            taking.open()
            taking.prepare()
            around: Any = taking.around_batches(write)
            with pytest.raises(Unreachable):
                around("frame", 0)
        finally:
            taking.close()
    assert written.exists()


def test_a_driver_that_lost_its_lease(
    spark: Any, broker: LiveBroker, settings: IngestSettings, tmp_path: Path
) -> None:
    """Ends the batch under way before it counts as done, and takes nothing back: the rows are the other
    driver's by now."""
    written = tmp_path / "table" / "topic=leased" / "date=2026-11-24" / "batch=0"

    def write(frame: Any, batch: int) -> None:
        written.mkdir(parents=True)
        follow_at_once(spark, taking.checkpoint)
        with Client(broker.address) as client:
            client.delete("leased")

    with Client(broker.address) as client:
        client.create("leased")
    taking = Taking(spark, replace(settings, topics=("leased",)), lambda: False)
    taking.open()
    try:
        taking.prepare()
        taking.stop_if_lost()
        around: Any = taking.around_batches(write)
        for _ in range(2):  # the second one is not begun
            with pytest.raises(Refused, match="another driver took the checkpoint"):
                around("frame", 0)
        assert written.exists()
        for asked in (taking.stop_if_lost, taking.prepare):
            with pytest.raises(Refused, match="another driver took the checkpoint"):
                asked()
    finally:
        taking.close()


def follow_at_once(spark: Any, checkpoint: str) -> None:
    """As another driver does when nothing was heard of this one for long."""
    other = Lease(Files(spark), checkpoint, Process("far", 12), is_running=lambda _: False)
    other.take(lambda: False, lambda _: None)


def test_a_copy_from_another_time(
    spark: Any, broker: LiveBroker, settings: IngestSettings, tmp_path: Path
) -> None:
    """An older checkpoint or an older table is refused with each record still there once; both from one
    moment go on."""
    copy, table = tmp_path / "copy", Path(settings.table_path)
    with Client(broker.address) as client:
        client.create("copied")
        for moment in range(3):
            client.produce("copied", [b"x"] * 5)
            assert take(spark, settings, topics=("copied",)) == 0
            for name in ("table", "checkpoint"):
                shutil.copytree(tmp_path / name, copy / f"{name}-{moment}")

    def put_back(name: str, moment: int) -> None:
        shutil.rmtree(tmp_path / name)
        shutil.copytree(copy / f"{name}-{moment}", tmp_path / name)

    for name in ("table", "checkpoint"):
        put_back(name, 0)
        with pytest.raises(Refused, match=f"the {name} .* is older than the"):
            take(spark, settings, topics=("copied",))
        put_back(name, 2)
        assert take(spark, settings, topics=("copied",)) == 0
        assert len(rows_of(table)) == len(set(rows_of(table))) == 15
    put_back("table", 1)
    put_back("checkpoint", 1)
    assert take(spark, settings, topics=("copied",)) == 0
    assert len(rows_of(table)) == len(set(rows_of(table))) == 15


def test_another_cluster_at_the_address(spark: Any, settings: IngestSettings, tmp_path: Path) -> None:
    """Is told as that, whatever is allowed of topics that were created anew, also when it came while the
    pipeline ran."""
    first, second = (LiveBroker(tmp_path / name, wal="64MiB") for name in ("first", "second"))
    second.port, second.address = first.port, first.address
    taking = Taking(
        spark, replace(settings, bootstrap_servers=first.address, on_recreated_topic="restart"), lambda: False
    )
    try:
        for broker in (first, second):
            broker.folder.mkdir()
            with broker, Client(broker.address) as client:
                for topic in settings.topics:
                    client.create(topic)
                if broker is first:
                    taking.open()
                    taking.prepare()
                else:
                    with pytest.raises(Refused, match=r"is of the cluster .*, and the brokers are of"):
                        taking.prepare()
    finally:
        taking.close()


def test_a_pattern_s_topics(
    spark: Any, broker: LiveBroker, settings: IngestSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that it matches as Java does, and none is told; a new one is bound at its first batch; one that
    is gone is told."""
    pattern = replace(settings, topics=(), topic_pattern=r"shop\..*")
    assert take(spark, pattern) == 0
    assert (
        f"ingest: no topic of {broker.address} matches [kafka] topic_pattern yet\n" in capsys.readouterr().out
    )
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
    [
        ("no-such-host.invalid:9092", "no host of no-such-host.invalid:9092 has an address"),
        ("", "was not reached"),
    ],
)
def test_brokers_that_are_away(spark: Any, settings: IngestSettings, address: str, said: str) -> None:
    """One sentence, after the time that is given, which is ten seconds for a start."""
    with pytest.raises(Unreachable, match=said) as refused:
        Cluster(
            spark,
            replace(settings, bootstrap_servers=address or "127.0.0.1:1"),
            lambda: False,
            within_ms=1000,
        ).cluster_id()
    assert refused.value.exit_code == 3


def test_stopped_while_the_brokers_are_waited_for(
    spark: Any, settings: IngestSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that never read is no success: the code is the signal's."""
    ending = Ending()
    ending.signal = 15
    assert (
        ingest.take(spark, replace(settings, bootstrap_servers="127.0.0.1:1"), ending, once=False) == 128 + 15
    )
    assert capsys.readouterr().err == "ingest: stopped before anything was read\n"
    with pytest.raises(Stopped):
        Cluster(spark, settings, lambda: True).cluster_id()


@pytest.mark.parametrize(
    ("folder", "said"), [("/proc/none", "cannot be made"), ("/etc/passwd/x", "cannot be made")]
)
def test_folders_that_cannot_be_written(
    spark: Any, broker: LiveBroker, settings: IngestSettings, folder: str, said: str
) -> None:
    """Are told by name, whichever it is."""
    with Client(broker.address) as client:
        client.create(topic := f"folders{len(folder)}")
    for changed in ({"checkpoint": folder}, {"table_path": folder}):
        with pytest.raises(Refused, match=f"{folder}.* {said}"):
            take(spark, settings, topics=(topic,), **changed)
