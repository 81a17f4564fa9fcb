"""`python -m tests.compat.suites [NAME...]`: fetches and runs the suites, prints what passed, what failed and
why; exit code 1 on news."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.compat.suites import golang_clients, kafka_python, node_rdkafka, rust
from tests.compat.suites.suite import Suite, judge
from tests.live import LiveBroker

SUITES: tuple[Suite, ...] = (
    kafka_python.NEWEST,
    kafka_python.OLDER,
    kafka_python.FORMER,
    node_rdkafka.NodeRdkafkaSuite(),
    golang_clients.FRANZ_GO,
    golang_clients.SARAMA,
    golang_clients.KAFKA_GO,
    rust.RDKAFKA,
    rust.LibrdkafkaSuite(),
)


def run(suite: Suite) -> list[str]:
    """Its news."""
    with tempfile.TemporaryDirectory(prefix="millrace-suite-") as name:
        folder = Path(name)
        print(f"{suite.name}: fetching ...", flush=True)
        suite.fetch(folder)
        started = time.monotonic()
        broker = LiveBroker(folder / "broker", dict(suite.overrides))
        with broker:
            outcome = suite.run(folder, broker.address)
            assert broker.is_running(), broker.log_path.read_text()[-4000:]
    seconds = time.monotonic() - started
    news = judge(suite, outcome)
    print(
        f"  {len(outcome.passed)} passed, {len(outcome.failed)} failed, {len(outcome.skipped)} skipped in "
        f"{seconds:.0f} s"
    )
    for pattern, excuse in suite.known.items():
        print(f"  known: {pattern}: {excuse.why}")
    for name, said in outcome.failed.items():
        print(f"  failed: {name}: {said}")
    for pattern, why in getattr(suite, "unasked", {}).items():
        print(f"  not run: {pattern}: {why}")
    for line in news:
        print(f"  NEWS: {line}")
    return news


def main(words: list[str]) -> int:
    chosen = [suite for suite in SUITES if not words or any(word in suite.name for word in words)]
    if not chosen:
        print(f"no such suite; there are: {', '.join(suite.name for suite in SUITES)}", file=sys.stderr)
        return 2
    news = [line for suite in chosen for line in run(suite)]
    return int(bool(news))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
