"""`python -m tests.compat.rolled [--rounds 1] [--only millrace]`: all nodes of three are restarted, one after
the other, under applications of four clients; ours, then Apache Kafka's, the same way.

Prints a table. Exit code 1 where a record or a commit is lost, doubled or out of order, and where an
application of ours was told an error of a kind that the same client was not told with Kafka.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path

from tests.compat.rolled.nodes import COUNT, KafkaNodes, MillraceNodes, Nodes, settle
from tests.compat.rolled.story import CLIENTS, PARTITIONS, Applications, Result, topic_of

SETTLE_S = 4.0


def told(nodes: Nodes, folder: Path, clients: tuple[str, ...], rounds: int, settle_s: float) -> list[Result]:
    """The results of a roll of running nodes."""
    for client in clients:
        nodes.create(topic_of(client), PARTITIONS)
    with Applications(nodes.addresses, folder, clients) as applications:
        applications.wait_busy()
        settle(settle_s)
        start = time.monotonic()
        for _ in range(rounds):
            for node_id in range(1, COUNT + 1):
                began = time.monotonic()
                nodes.roll(node_id)
                print(f"  {nodes.name}: node {node_id}, {time.monotonic() - began:.1f} s", flush=True)
                settle(settle_s)
                applications.check_running()
        end = time.monotonic()
        applications.finish()
        return applications.judge(start, end)


def table(results: dict[str, list[Result]]) -> str:
    """Gaps: of all partitions together / of the partition that waited longest."""
    rows = [
        (
            "client", "nodes", "acknowledged", "errors told", "notices", "longest without an ack, s",
            "slowest ack, s", "longest without a record, s", "read again",
        )
    ]  # fmt: skip
    for client in CLIENTS:
        for name, found in results.items():
            for one in found:
                if one.client == client:
                    rows.append(
                        (
                            client, name, str(one.acknowledged), counted(one.errors), counted(one.notices),
                            "{:.2f} / {:.2f}".format(*one.write_gap_s), f"{one.slowest_s:.2f}",
                            "{:.2f} / {:.2f}".format(*one.read_gap_s), str(one.reread),
                        )
                    )  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def counted(names: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items())) or "none"


def news(ours: list[Result], theirs: list[Result]) -> list[str]:
    """Errors that our nodes' applications were told, and Kafka's were not."""
    known = {one.client: set(one.errors) for one in theirs}
    return [
        f"{one.client}: {name}: {one.texts[name]}"
        for one in ours
        for name in sorted(one.errors)
        if name not in known[one.client]
    ]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.rolled")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=("millrace", "kafka"))
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS)
    given = parser.parse_args(words)
    results: dict[str, list[Result]] = {}
    for kind in (MillraceNodes, KafkaNodes):
        if given.only and given.only not in kind.name.lower():
            continue
        with tempfile.TemporaryDirectory(prefix="millrace-roll-") as name:
            nodes: AbstractContextManager[MillraceNodes | KafkaNodes] = kind(Path(name))
            with nodes as running:
                results[kind.name] = told(running, Path(name), tuple(given.clients), given.rounds, SETTLE_S)
    print(table(results))
    for name, found in results.items():
        for one in found:
            for error, text in one.texts.items():
                print(f"{name}, {one.client}: {error}: {text}")
    if len(results) < 2:
        return 0
    fresh = news(results[MillraceNodes.name], results[KafkaNodes.name])
    for line in fresh:
        print(f"NEWS: told here and not with Kafka: {line}")
    return int(bool(fresh))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
