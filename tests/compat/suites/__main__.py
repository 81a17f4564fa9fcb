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
from tests.live.cluster import LiveCombined, LiveNodes

SUITES: tuple[Suite, ...] = (
    kafka_python.NEWEST,
    kafka_python.OLDER,
    kafka_python.FORMER,
    node_rdkafka.NodeRdkafkaSuite(),
    golang_clients.FRANZ_GO,
    golang_clients.FRANZ_GO_THREE,
    golang_clients.SARAMA,
    golang_clients.KAFKA_GO,
    rust.RDKAFKA,
    rust.LibrdkafkaSuite(),
)


def nodes_of(suite: Suite, folder: Path) -> LiveNodes:
    """As many as it wants, not started."""
    count = suite.nodes
    if count > 1:
        nodes: LiveNodes = LiveCombined(folder / "nodes", count, dict(suite.overrides))
    else:
        nodes = LiveNodes()
        nodes.brokers = {1: LiveBroker(folder / "broker", dict(suite.overrides))}
    for number, node in enumerate(nodes.brokers.values(), 1):
        node.override(suite.of_node(number))
    return nodes


def run(suite: Suite) -> list[str]:
    """Its news."""
    with tempfile.TemporaryDirectory(prefix="millrace-suite-") as name:
        folder = Path(name)
        print(f"{suite.name}: fetching ...", flush=True)
        suite.fetch(folder)
        started = time.monotonic()
        nodes = nodes_of(suite, folder)
        with nodes:
            suite.on_started(nodes)
            outcome = suite.run(folder, ",".join(nodes.addresses))
            for node in nodes.brokers.values():
                assert node.is_running(), node.log_path.read_text()[-4000:]
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
