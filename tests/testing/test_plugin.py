"""The plugin in a run of pytest of its own, as a user's tests see it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import pytest, sys

@pytest.fixture(scope="session")
def kafka_settings():
    return {"num.partitions": "3"}

@pytest.fixture(scope="module")
def seeded(kafka_session):
    kafka_session.produce("seed", "x")

def test_nothing_is_loaded_before_it_is_asked_for():
    assert "millrace.testing.broker" not in sys.modules

def test_makes_topics(kafka, seeded):
    kafka.produce("mine", "x", key="k")
    kafka.kill()

def test_does_not_see_them(kafka, seeded):
    assert kafka.topics() == ["seed"]

def test_has_a_broker_of_its_own(kafka_broker, kafka):
    assert kafka_broker.bootstrap_servers != kafka.bootstrap_servers
    assert kafka_broker.topics() == []
    assert kafka_broker.produce("a", "x", partition=2)

def compact(kafka):
    from kafka.admin import KafkaAdminClient, NewTopic
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.create_topics([NewTopic("c", 1, 1, topic_configs={"cleanup.policy": "compact"})])
    admin.close()

def test_compacts(kafka):
    compact(kafka)

def test_compacts_and_fails(kafka):
    compact(kafka)
    assert kafka.topics() == []

@pytest.mark.kafka_unserved
def test_may_compact(kafka):
    compact(kafka)

def test_does_not_raise_and_compacts(kafka):
    with pytest.raises(ValueError):
        compact(kafka)

def test_pauses_and_compacts(kafka):
    compact(kafka)
    kafka.pause()

@pytest.fixture
def compacted(request):
    compact(request.getfixturevalue("kafka"))
    raise RuntimeError("of the fixture")

def test_has_a_fixture_that_compacts(compacted):
    pass

def test_is_told_of_none_of_them(kafka):
    pass

def test_leaves_faults(kafka):
    kafka.fail("Produce", "UNKNOWN_SERVER_ERROR", times=None)

def test_has_none_of_them(kafka):
    from kafka import KafkaProducer
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    producer.send("a", b"x").get(10)
    producer.close()

def test_leaves_a_client(kafka):
    from kafka import KafkaConsumer
    kafka.create_topic("t")
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id="g", client_id="forgotten")
    while not consumer.partitions_for_topic("t"):  # see tests/testing/member.py
        pass
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(1000)
"""


def test_fixtures_isolate_and_warn(tmp_path: Path) -> None:
    """Settings are overridden by a fixture, each test starts clean, a client that a test did not close is
    named, and what is not served fails the test with a sentence, unless it says that it may."""
    (tmp_path / "test_it.py").write_text(TESTS)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "millrace.testing.plugin",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "-rN",  # where CI is set, the summary repeats the sentences
    ]
    done = subprocess.run(
        [*words, "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=tmp_path,
    )
    assert "4 failed, 9 passed" in done.stdout, done.stdout + done.stderr
    assert "1 error" in done.stdout
    sentence = "log compaction is not done by Millrace yet: a compacted topic keeps everything"
    assert done.stdout.count(sentence) == 5, (
        "two tests failed with it, two others and a fixture have it as a note"
    )
    assert "the test left a client running: forgotten in group g" in done.stdout


def installed_files(setup: dict[str, Any]) -> list[str]:
    """What a wheel installs of Python's files."""
    found = [f"{module}.py" for module in setup["py-modules"]]
    for package in setup["packages"]:
        folder = ROOT.joinpath(*package.split(".")[1:])
        found += [f"{package.replace('.', '/')}/{path.name}" for path in folder.glob("*.py")]
    return found


def test_an_installed_plugin_warns_of_nothing(tmp_path: Path) -> None:
    """By the list of files that its wheel has: pytest looks for modules there whose asserts it may rewrite,
    and warns of one that runs already."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    setup, plugins = project["tool"]["setuptools"], project["project"]["entry-points"]["pytest11"]
    site = tmp_path / "site"
    info = site / "millrace_kafka-0.dist-info"
    info.mkdir(parents=True)
    (site / "millrace").symlink_to(ROOT)
    for module in setup["py-modules"]:
        (site / f"{module}.py").symlink_to(ROOT / f"{module}.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: millrace-kafka\nVersion: 0\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in installed_files(setup)))
    (info / "entry_points.txt").write_text(
        "[pytest11]\n" + "".join(f"{k} = {v}\n" for k, v in plugins.items())
    )
    test = tmp_path / "test_a.py"
    test.write_text("def test_a(request):\n    assert request.config.pluginmanager.has_plugin('millrace')\n")
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        tmp_path,
    ]
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [*words, test], capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=env
    )
    assert "1 passed" in done.stdout, done.stdout
    assert "warning" not in done.stdout, done.stdout
