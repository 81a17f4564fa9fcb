"""The settings of a pipeline: read from one TOML file, checked at once, every mistake reported together.

[kafka]
bootstrap_servers = "127.0.0.1:9092"
topics = ["orders", "payments"]          # or: topic_pattern = "shop\\..*"
starting_offsets = "earliest"            # earliest | latest; only for the first run of a checkpoint
max_offsets_per_trigger = 2000000        # bounds one batch

[table]
path = "lake/events"                     # folder or URL that Spark can write
checkpoint = "lake/_checkpoints/events"  # never shared between pipelines, never deleted while the table lives

[run]
trigger_interval_s = 10

[spark]                                  # passed to the session as they are
"spark.driver.memory" = "2g"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """Every mistake of a file, one a line."""


@dataclass(frozen=True, slots=True)
class IngestSettings:
    bootstrap_servers: str
    topics: tuple[str, ...]
    topic_pattern: str
    table_path: str
    checkpoint: str
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int = 2_000_000
    trigger_interval_s: int = 10
    kafka_options: dict[str, str] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict)


KNOWN = {
    "kafka": {"bootstrap_servers", "topics", "topic_pattern", "starting_offsets", "max_offsets_per_trigger", "options"},
    "table": {"path", "checkpoint"},
    "run": {"trigger_interval_s"},
}


def read_settings(path: Path) -> IngestSettings:
    """Raises ConfigError naming every mistake in the file."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    return settings_from(document)


def settings_from(document: dict[str, Any]) -> IngestSettings:
    mistakes = _mistakes(document)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    kafka, table, run = document["kafka"], document["table"], document.get("run", {})
    return IngestSettings(
        bootstrap_servers=kafka["bootstrap_servers"],
        topics=tuple(kafka.get("topics", ())),
        topic_pattern=kafka.get("topic_pattern", ""),
        table_path=table["path"],
        checkpoint=table["checkpoint"],
        starting_offsets=kafka.get("starting_offsets", "earliest"),
        max_offsets_per_trigger=kafka.get("max_offsets_per_trigger", 2_000_000),
        trigger_interval_s=run.get("trigger_interval_s", 10),
        kafka_options={key: str(value) for key, value in kafka.get("options", {}).items()},
        spark={key: str(value) for key, value in document.get("spark", {}).items()},
    )


def _mistakes(document: dict[str, Any]) -> list[str]:
    found = []
    for section, keys in KNOWN.items():
        given = document.get(section, {})
        found += [
            f"[{section}] {key} is not a setting; known: {', '.join(sorted(keys))}" for key in given if key not in keys
        ]
    found += [f"[{section}] is not a section" for section in document if section not in KNOWN and section != "spark"]
    kafka, table = document.get("kafka", {}), document.get("table", {})
    if not kafka.get("bootstrap_servers"):
        found.append("[kafka] bootstrap_servers is missing: host:port of the broker")
    if bool(kafka.get("topics")) == bool(kafka.get("topic_pattern")):
        found.append("[kafka] give either topics or topic_pattern")
    if kafka.get("starting_offsets", "earliest") not in ("earliest", "latest"):
        found.append("[kafka] starting_offsets is earliest or latest")
    found += [f"[table] {key} is missing" for key in ("path", "checkpoint") if not table.get(key)]
    for section, key in (("kafka", "max_offsets_per_trigger"), ("run", "trigger_interval_s")):
        value = document.get(section, {}).get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            found.append(f"[{section}] {key} is a whole number of at least 1")
    return found
