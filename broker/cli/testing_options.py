"""What `millrace test` and `millrace dev` are told alike: topics, records and settings of a broker for
tests."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from millrace.testing.broker import Broker
from millrace.testing.errors import Refused


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", metavar="NAME[:PARTITIONS]", action="append", default=[], help="make this topic first"
    )
    parser.add_argument(
        "--seed",
        metavar="FILE",
        action="append",
        default=[],
        help="load records: JSON lines with topic, key, value",
    )
    parser.add_argument(
        "--override", metavar="KEY=VALUE", action="append", default=[], help="a broker setting"
    )


def settings_of(overrides: list[str]) -> dict[str, str]:
    """ValueError for one that is no pair."""
    pairs = [word.partition("=") for word in overrides]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise ValueError(f"--override {name}: is not KEY=VALUE")
    return {name: text for name, _, text in pairs}


def topics_of(words: list[str]) -> list[tuple[str, int]]:
    """ValueError for one that is no name and number of partitions."""
    found = []
    for word in words:
        name, colon, count = word.partition(":")
        if not name or (
            colon and not (count.isascii() and count.isdecimal() and len(count) < 10 and int(count))
        ):
            raise ValueError(f"--topic {word}: is not NAME or NAME:PARTITIONS")
        found.append((name, int(count) if colon else 1))
    return found


def fill(broker: Broker, topics: list[tuple[str, int]], seeds: list[str]) -> int:
    """Says which settings are in vain, makes topics, then writes records; how many. ValueError names a file
    that cannot be read, or a line in it; Refused one that cannot be written."""
    for sentence in broker.process.settings_without_effect:
        print(f"millrace: {sentence}", file=sys.stderr)
    for name, count in topics:
        broker.create_topic(name, count)
    written = 0
    for name in seeds:
        try:
            with Path(name).open(encoding="utf-8") as lines:
                written += broker.seed(lines)
        except Refused as error:
            raise error.at(f"--seed {name}") from None
        except (OSError, ValueError) as error:
            raise ValueError(f"--seed {name}: {getattr(error, 'strerror', None) or error}") from None
    return written
