"""Settings of the ingest pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.spark_jobs.config import ConfigError, read_settings, settings_from

GOOD = {"kafka": {"bootstrap_servers": "a:1", "topics": ["t"]}, "table": {"path": "p", "checkpoint": "c"}}


def test_a_least_file_gets_the_defaults() -> None:
    """Three settings suffice; the rest has the documented defaults."""
    settings = settings_from(GOOD)
    assert (settings.topics, settings.starting_offsets, settings.trigger_interval_s) == (("t",), "earliest", 10)


def test_every_mistake_is_reported_at_once() -> None:
    """A file with five mistakes is answered with five lines."""
    bad = {
        "kafka": {"topics": ["t"], "topic_pattern": "x", "starting_offsets": "middle", "max_offsets_per_trigger": 0},
        "table": {"path": "p", "checkpoint": "c", "colour": "red"},
    }
    with pytest.raises(ConfigError) as caught:
        settings_from(bad)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    assert "[table] colour is not a setting; known: checkpoint, path" in lines


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """What cannot be read is one sentence."""
    with pytest.raises(ConfigError, match="there is no such file"):
        read_settings(tmp_path / "none.toml")
