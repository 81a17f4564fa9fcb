"""Apache Kafka and the broker, side by side: `make compare`. Ends with 1 where an answer differs and nobody knows why.

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
from tests.compat.peer.apache_kafka import ApacheKafka
from tests.compat.peer.requests import compare, table
from tests.live import LiveBroker

SETTINGS = {"num.partitions": "1", "offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}


def main() -> int:
    parser = argparse.ArgumentParser(description="The same odd requests to Apache Kafka and to the broker.")
    parser.add_argument("--requests", type=int, default=1500, help="how many; some are left out")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    unknown = []
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
                    print(f"{counts.total()} of {options.requests} requests, {len(unknown)} unexplained", flush=True)
    print(f"beside Apache Kafka {kafka_version()}, seed {options.seed}:\n{table(counts)}")
    for one in unknown:
        print(f"unexplained: {str(one)[:600]}")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
