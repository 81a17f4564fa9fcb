"""The settings of a pipeline: read from one TOML file, checked at once, every mistake reported together.
docs/pipelines.md says what each does.

Pure but for `read_settings`, which reads the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
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
    on_recreated_topic: str = "fail"
    on_lost_records: str = "fail"
    max_offsets_per_trigger: int = 2_000_000
    trigger_interval_s: int = 10
    kafka_options: dict[str, str] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict)


# What [kafka.options] and [spark] may not set, in small letters, and what to do in its place.
OPTION_TAKEN = {
    "kafka.bootstrap.servers": "set [kafka] bootstrap_servers",
    "subscribe": "set [kafka] topics",
    "subscribepattern": "set [kafka] topic_pattern",
    "assign": "set [kafka] topics",
    "startingoffsets": "set [kafka] starting_offsets",
    "startingoffsetsbytimestamp": "set [kafka] starting_offsets",
    "startingtimestamp": "set [kafka] starting_offsets",
    "maxoffsetspertrigger": "set [kafka] max_offsets_per_trigger",
    "includeheaders": "headers are always taken",
    "failondataloss": "set [kafka] on_lost_records or on_recreated_topic",
}
SPARK_TAKEN = {
    "spark.sql.session.timezone": "a date is a day in UTC, else a batch that is run again would repeat rows"
}
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s,:\[\]]+):([0-9]{1,5})")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
Check = Callable[[Any], str | None]


def read_settings(path: Path) -> IngestSettings:
    """Raises ConfigError naming every mistake in the file."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    return settings_from(document)


def settings_from(document: dict[str, Any]) -> IngestSettings:
    """Raises ConfigError with every mistake, one a line."""
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
        on_recreated_topic=kafka.get("on_recreated_topic", "fail"),
        on_lost_records=kafka.get("on_lost_records", "fail"),
        max_offsets_per_trigger=kafka.get("max_offsets_per_trigger", 2_000_000),
        trigger_interval_s=run.get("trigger_interval_s", 10),
        kafka_options={key: _text(value) for key, value in kafka.get("options", {}).items()},
        spark={key: _text(value) for key, value in document.get("spark", {}).items()},
    )


def _text(value: str | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _mistakes(document: dict[str, Any]) -> list[str]:
    found = []
    for section, given in document.items():
        if section not in (*KNOWN, "spark"):
            found.append(f"[{section}] is not a section; known: {', '.join((*KNOWN, 'spark'))}")
        elif not isinstance(given, dict):
            found.append(f"{section} is {_kind(given)}: it is a section, [{section}]")
    sections = {name: given for name, given in document.items() if isinstance(given, dict)}
    for section, checks in KNOWN.items():
        given = sections.get(section, {})
        found += [
            f"[{section}] {key} is not a setting; known: {', '.join(sorted(checks))}"
            for key in given
            if key not in checks
        ]
        wrong = {key: check(given[key]) for key, check in checks.items() if key in given}
        found += [f"[{section}] {key} {text}" for key, text in wrong.items() if text]
    kafka, table = sections.get("kafka", {}), sections.get("table", {})
    if "bootstrap_servers" not in kafka:
        found.append("[kafka] bootstrap_servers is missing: host:port of the broker")
    if ("topics" in kafka) == ("topic_pattern" in kafka):
        found.append("[kafka] give either topics or topic_pattern")
    found += [f"[table] {key} is missing" for key in ("path", "checkpoint") if key not in table]
    if "path" in table and table["path"] == table.get("checkpoint"):
        found.append("[table] path and checkpoint are one folder: give each its own")
    if isinstance(options := kafka.get("options", {}), dict):
        found += _option_mistakes("kafka.options", options, OPTION_TAKEN)
    return found + _option_mistakes("spark", sections.get("spark", {}), SPARK_TAKEN)


def _option_mistakes(section: str, options: dict[str, Any], taken: dict[str, str]) -> list[str]:
    found = []
    for key, value in options.items():
        if isinstance(value, dict):
            found.append(f"[{section}] {key} is a table: write names with dots in quotes")
        elif not isinstance(value, str | int | float):
            found.append(f"[{section}] {key} is {_kind(value)}: it is a text, a number, true or false")
        elif reason := taken.get(key.lower()):
            found.append(f"[{section}] {key} is the pipeline's own: {reason}")
    return found


def _kind(value: Any) -> str:
    """As TOML's users say it."""
    if isinstance(value, bool):
        return "true or false"
    kinds = (
        (str, "a text"),
        (int, "a whole number"),
        (float, "a number"),
        (list, "a list"),
        (dict, "a table"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "a date or time")


def _is_text(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"is {_kind(value)}: it is a text in quotes"
    return None if value.strip() else "is empty"


def _is_one_of(*words: str) -> Check:
    choice = " or ".join(words)
    return lambda value: _is_text(value) or (None if value in words else f"is {value!r}: it is {choice}")


def _is_count(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"is {_kind(value)}: it is a whole number of at least 1"
    return None if value >= 1 else f"is {value}: it is at least 1"


def _are_addresses(value: Any) -> str | None:
    if wrong := _is_text(value):
        return wrong
    for address in value.split(","):
        match = ADDRESS.fullmatch(address.strip())
        if not match or not 0 < int(match[2]) < 65536:
            return f"has {address.strip()!r}: it is host:port, several with commas between"
    return None


def _are_topics(value: Any) -> str | None:
    if not isinstance(value, list):
        return f'is {_kind(value)}: it is a list of names, ["orders", "payments"]'
    if not value:
        return "is empty"
    for name in value:
        if not isinstance(name, str):
            return f"has {_kind(name)} in it: a topic is a text in quotes"
        if not TOPIC.fullmatch(name) or name in (".", ".."):
            return (
                f"has {name!r}, which no topic is called: letters, digits, dots, _ and -; topic_pattern "
                "takes patterns"
            )
    twice = sorted({name for name in value if value.count(name) > 1})
    return f"has {', '.join(twice)} twice" if twice else None


def _is_table(value: Any) -> str | None:
    return None if isinstance(value, dict) else f"is {_kind(value)}: it is a section of options"


KNOWN: dict[str, dict[str, Check]] = {
    "kafka": {
        "bootstrap_servers": _are_addresses,
        "topics": _are_topics,
        "topic_pattern": _is_text,
        "starting_offsets": _is_one_of("earliest", "latest"),
        "on_recreated_topic": _is_one_of("fail", "restart"),
        "on_lost_records": _is_one_of("fail", "skip"),
        "max_offsets_per_trigger": _is_count,
        "options": _is_table,
    },
    "table": {"path": _is_text, "checkpoint": _is_text},
    "run": {"trigger_interval_s": _is_count},
}
