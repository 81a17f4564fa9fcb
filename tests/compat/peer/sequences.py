"""Sequences of requests beside Apache Kafka: those of sequences/*.txt, each said to both in a group, or with
topics, of its own.

A title, the lines of a dialogue (group_dialogue.py, fetch_dialogue.py), and where the answers to the last
line differ, why that is meant. Kept true: all other answers are the same; one that is told to differ does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.compat.peer.fetch_dialogue import FetchDialogue
from tests.compat.peer.group_dialogue import TOPIC, GroupDialogue
from tests.live.client import Client

FOLDER = Path(__file__).parent / "sequences"
SETTINGS = {
    "num.partitions": "1",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.max.size": "3",
    "auto.create.topics.enable": "false",
}
AT_ONCE = 12  # most of the time each waits
READY_S = 60.0
WHY = "  differs: "


class Sequence(NamedTuple):
    title: str
    lines: tuple[str, ...]
    why: str  # the answers to the last line differ; empty: they do not


class Dialogue(Protocol):
    def say(self, line: str) -> list[str]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Difference:
    title: str
    line: str
    ours: list[str]
    kafkas: list[str]
    why: str  # empty: nobody knows

    def __str__(self) -> str:
        return f"{self.title}: {self.line!r}: {self.ours} here, {self.kafkas} from Kafka"


KINDS: dict[str, Callable[[str, str], Dialogue]] = {"groups": GroupDialogue, "fetches": FetchDialogue}


def read(kind: str) -> list[Sequence]:
    found = []
    for text in (FOLDER / f"{kind}.txt").read_text().strip().split("\n\n"):
        title, *lines = text.splitlines()
        why = lines.pop().removeprefix(WHY) if lines[-1].startswith(WHY) else ""
        found.append(Sequence(title.removeprefix("# "), tuple(lines), why))
    return found


def compare_sequences(ours: str, kafkas: str) -> Iterator[Difference | None]:
    """Of each sequence the first difference, None where there is none; in their order."""
    for address in (ours, kafkas):
        make_ready(address)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for kind, dialogue in KINDS.items():
            sequences = read(kind)
            said = [
                tuple(
                    pool.submit(say_all, dialogue, address, f"{kind}-{number}", one)
                    for address in (ours, kafkas)
                )
                for number, one in enumerate(sequences)
            ]
            for one, (mine, others) in zip(sequences, said, strict=True):
                yield compare(one, mine.result(), others.result())


def make_ready(address: str) -> None:
    """The topic that groups read, and their coordinator."""
    deadline = time.monotonic() + READY_S
    with Client(address) as client:
        client.create(TOPIC, 2)
        asked = FindCoordinatorRequest(coordinator_keys=["groups-0"])
        while client.ask("FindCoordinator", asked).coordinators[0].error_code:
            assert time.monotonic() < deadline, "no coordinator"
            time.sleep(0.1)
    for number in range(10):  # of both partitions, by all chance
        dialogue = GroupDialogue(address, f"ready-{number}")
        while "NONE" not in dialogue.say("a offsets")[0].split()[1]:
            assert time.monotonic() < deadline, "the coordinator loads"
            time.sleep(0.1)
        dialogue.close()


def say_all(
    make: Callable[[str, str], Dialogue], address: str, name: str, sequence: Sequence
) -> list[list[str]]:
    dialogue = make(address, name)
    try:
        return [dialogue.say(line) for line in sequence.lines]
    finally:
        dialogue.close()


def compare(sequence: Sequence, mine: list[list[str]], others: list[list[str]]) -> Difference | None:
    places = [place for place, line in enumerate(sequence.lines) if mine[place] != others[place]]
    last = len(sequence.lines) - 1
    if not places and not sequence.why:
        return None
    place = places[0] if places else last
    why = sequence.why if places == [last] else ""
    return Difference(sequence.title, sequence.lines[place], mine[place], others[place], why)
