"""Settings of the ingest pipeline."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from millrace.spark_jobs.config import ConfigError, read_settings, settings_from

GOOD = {"kafka": {"bootstrap_servers": "a:1", "topics": ["t"]}, "table": {"path": "p", "checkpoint": "c"}}

# One value of a whole file, and what is said of it.
WRONG = [
    ('kafka.topics = "orders"', '[kafka] topics is a text: it is a list of names, ["orders", "payments"]'),
    ("kafka.topics = [1]", "[kafka] topics has a whole number in it: a topic is a text in quotes"),
    ("kafka.topics = []", "[kafka] topics is empty"),
    ('kafka.topics = ["a", "b", "a"]', "[kafka] topics has a twice"),
    (
        'kafka.topics = ["a,b"]',
        "[kafka] topics has 'a,b', which no topic is called: letters, digits, dots, _ and -; topic_pattern "
        "takes patterns",
    ),
    ("kafka.bootstrap_servers = 9092", "[kafka] bootstrap_servers is a whole number: it is a text in quotes"),
    (
        'kafka.bootstrap_servers = "a"',
        "[kafka] bootstrap_servers has 'a': it is host:port, several with commas between",
    ),
    (
        'kafka.bootstrap_servers = "a:1, b:70000"',
        "[kafka] bootstrap_servers has 'b:70000': it is host:port, several with commas between",
    ),
    ("kafka.starting_offsets = 0", "[kafka] starting_offsets is a whole number: it is a text in quotes"),
    ('kafka.starting_offsets = "middle"', "[kafka] starting_offsets is 'middle': it is earliest or latest"),
    (
        "kafka.max_offsets_per_trigger = true",
        "[kafka] max_offsets_per_trigger is true or false: it is a whole number of at least 1",
    ),
    ("run.trigger_interval_s = 0", "[run] trigger_interval_s is 0: it is at least 1"),
    (
        "run.trigger_interval_s = 1.5",
        "[run] trigger_interval_s is a number: it is a whole number of at least 1",
    ),
    ("kafka.options = 1", "[kafka] options is a whole number: it is a section of options"),
    ("kafka.options.a = [1]", "[kafka.options] a is a list: it is a text, a number, true or false"),
    (
        "kafka.options.kafka.client.rack = 1",
        "[kafka.options] kafka is a table: write names with dots in quotes",
    ),
    (
        "kafka.options.failOnDataLoss = false",
        "[kafka.options] failOnDataLoss is the pipeline's own: set [kafka] on_lost_records or "
        "on_recreated_topic",
    ),
    ("spark.driver = {memory = '2g'}", "[spark] driver is a table: write names with dots in quotes"),
    (
        'spark."spark.sql.session.timeZone" = "CET"',
        "[spark] spark.sql.session.timeZone is the pipeline's own: "
        "a date is a day in UTC, else a batch that is run again would repeat rows",
    ),
    ("table.path = 2026-11-24", "[table] path is a date or time: it is a text in quotes"),
    ('table.path = " "', "[table] path is empty"),
    ('table.path = "c"', "[table] path and checkpoint are one folder: give each its own"),
    ("run = 5", "run is a whole number: it is a section, [run]"),
    ("colour = 1", "[colour] is not a section; known: kafka, table, run, spark"),
]


def test_a_least_file_gets_the_defaults() -> None:
    """Three settings suffice; the rest has the documented defaults."""
    settings = settings_from(GOOD)
    assert (settings.topics, settings.starting_offsets, settings.trigger_interval_s) == (
        ("t",),
        "earliest",
        10,
    )


def test_options_are_texts() -> None:
    """As Spark has them: true and false in small letters."""
    options = {"a": True, "b": 1, "c": "x", "d": 0.5}
    settings = settings_from({**GOOD, "kafka": {**GOOD["kafka"], "options": options}, "spark": options})
    assert settings.kafka_options == settings.spark == {"a": "true", "b": "1", "c": "x", "d": "0.5"}


@pytest.mark.parametrize(("line", "said"), WRONG, ids=[line for line, _ in WRONG])
def test_a_mistake_is_one_sentence(line: str, said: str) -> None:
    """The one value that is wrong, and what it should be; no type of any value passes as another, and none is
    a traceback."""
    document = {name: dict(values) for name, values in GOOD.items()}
    for section, values in tomllib.loads(line).items():
        document[section] = {**document.get(section, {}), **values} if isinstance(values, dict) else values
    with pytest.raises(ConfigError) as caught:
        settings_from(document)
    assert str(caught.value).splitlines() == [said]


def test_every_mistake_is_reported_at_once() -> None:
    """A file with seven mistakes is answered with seven lines."""
    bad = {
        "kafka": {
            "topics": "t",
            "topic_pattern": "x",
            "starting_offsets": "middle",
            "max_offsets_per_trigger": 0,
        },
        "table": {"path": "p", "checkpoint": 1, "colour": "red"},
    }
    with pytest.raises(ConfigError) as caught:
        settings_from(bad)
    lines = str(caught.value).splitlines()
    assert len(lines) == 7
    assert "[table] colour is not a setting; known: checkpoint, path" in lines


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"a = ", "Invalid value"),
        (b"", "bootstrap_servers is missing"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, said: str) -> None:
    """Is one sentence with its name."""
    path = tmp_path / "file.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_settings(path)
    with pytest.raises(ConfigError, match="Is a directory"):
        read_settings(tmp_path)
