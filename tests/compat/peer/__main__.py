"""Apache Kafka and the broker, side by side: `make compare`. Ends with 1 where an answer differs and nobody
knows why, and where one does not that is known to. First what is said of configurations, and whole answers of
the describing APIs, value by value and in order; then sequences of group requests and of fetches; then the
codes of odd requests.

python -m tests.compat.peer [--requests 1500] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.compat.jvm import kafka_version
from tests.compat.peer.answers import Difference as AnswerDifference
from tests.compat.peer.answers import answers_of, compare_answers, shared_versions
from tests.compat.peer.apache_kafka import ApacheKafka
from tests.compat.peer.describing import SETTINGS as CONFIG_SETTINGS
from tests.compat.peer.describing import Difference as ConfigDifference
from tests.compat.peer.describing import compare_configs, describe
from tests.compat.peer.requests import compare, table
from tests.compat.peer.sequences import SETTINGS as SEQUENCE_SETTINGS
from tests.compat.peer.sequences import Difference as SequenceDifference
from tests.compat.peer.sequences import compare_sequences
from tests.live import LiveBroker

KAFKA_SETTLES_S = 1.0  # until a change is seen everywhere
SETTINGS = {
    "num.partitions": "1",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="The same odd requests to Apache Kafka and to the broker.")
    parser.add_argument("--requests", type=int, default=1500, help="how many; some are left out")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    unknown = []
    differing = (*differing_configs(), *differing_answers(), *differing_sequences())
    unexplained = [one for one in differing if not one.why]
    for one in unexplained:
        print(f"unexplained: {str(one)[:600]}")
    with tempfile.TemporaryDirectory() as name:
        ours, theirs = Path(name) / "millrace", Path(name) / "kafka"
        ours.mkdir()
        theirs.mkdir()
        with LiveBroker(ours, SETTINGS, wal="64MiB") as broker, ApacheKafka(theirs, SETTINGS) as kafka:
            told = time.monotonic()
            for found in compare(broker.address, kafka.address, options.seed, options.requests):
                counts["the same codes" if found is None else found.why or "nobody knows why"] += 1
                if found is not None and not found.why:
                    unknown.append(found)
                if time.monotonic() - told > 10:
                    told = time.monotonic()
                    print(
                        f"{counts.total()} of {options.requests} requests, {len(unknown)} unexplained",
                        flush=True,
                    )
    print(f"beside Apache Kafka {kafka_version()}, seed {options.seed}:\n{table(counts)}")
    for request in unknown:
        print(f"unexplained: {str(request)[:600]}")
    return 1 if unknown or unexplained else 0


def differing_configs() -> list[ConfigDifference]:
    with tempfile.TemporaryDirectory() as name:
        ours, theirs = Path(name) / "millrace", Path(name) / "kafka"
        ours.mkdir()
        theirs.mkdir()
        with LiveBroker(ours, CONFIG_SETTINGS, wal="64MiB") as broker:
            mine = describe(broker.address)
        with ApacheKafka(theirs, CONFIG_SETTINGS) as kafka:
            found = compare_configs(mine, describe(kafka.address, KAFKA_SETTLES_S))
    print(
        f"{sum(len(said) for _, _, said in mine.values())} values of configurations, {len(found)} differ "
        "from Kafka's",
        flush=True,
    )
    return found


def differing_answers() -> list[AnswerDifference]:
    base_ms = int(time.time()) * 1000
    with tempfile.TemporaryDirectory() as name:
        ours, theirs = Path(name) / "millrace", Path(name) / "kafka"
        ours.mkdir()
        theirs.mkdir()
        with LiveBroker(ours, SETTINGS, wal="64MiB") as broker, ApacheKafka(theirs, SETTINGS) as kafka:
            versions = shared_versions(broker.address, kafka.address)
            mine, others = (
                answers_of(address, base_ms, versions) for address in (broker.address, kafka.address)
            )
    found = compare_answers(mine, others)
    print(f"{len(others)} answers of describing APIs, {len(found)} values differ from Kafka's", flush=True)
    return found


def differing_sequences() -> list[SequenceDifference]:
    with tempfile.TemporaryDirectory() as name:
        ours, theirs = Path(name) / "millrace", Path(name) / "kafka"
        ours.mkdir()
        theirs.mkdir()
        with (
            LiveBroker(ours, SEQUENCE_SETTINGS, wal="64MiB") as broker,
            ApacheKafka(theirs, SEQUENCE_SETTINGS) as kafka,
        ):
            each = list(compare_sequences(broker.address, kafka.address))
    found = [one for one in each if one is not None]
    print(
        f"{len(each)} sequences of group requests and fetches, {len(found)} differ from Kafka's", flush=True
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
