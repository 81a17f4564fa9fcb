"""The story of a group of three of which one falls silent, told of any client whose member is a process that
prints what it gets.

Records come all the while. When each of the three has got records, the first is killed with SIGKILL, or
stopped with SIGSTOP: it leaves without a word. The story ends well when others get records of every partition
of its that were sent after that, when one that was only stopped gets records again after SIGCONT, and when
all of them together have got every record.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Producer

from tests.compat.jvm import java_command
from tests.compat.member import SESSION_MS
from tests.patience import PATIENCE_S

PARTITIONS = 6

Place = tuple[int, int]
Parse = Callable[[str], Sequence[Place]]


def plain(line: str) -> Sequence[Place]:
    partition, offset = line.split()
    return [(int(partition), int(offset))]


def verifiable(line: str) -> Sequence[Place]:
    """A line of Kafka's VerifiableConsumer."""
    event = json.loads(line)
    return [(event["partition"], event["offset"])] if event["name"] == "record_data" else []


def member_command(client: str, number: int, address: str, topic: str) -> tuple[list[str], Parse]:
    """How a member of that client is started, and how its lines are read.

    `client` may carry settings after a space, as its command line has them, with {n} for the member's number.
    """
    name, *settings = client.format(n=number).split()
    group = f"group-{topic}"
    if name == "kcat":
        words = ["kcat", "-b", address, "-G", group, topic, "-f", "%p %o\n", "-u", "-q"]
        words += ["-X", "auto.offset.reset=earliest", "-X", f"session.timeout.ms={SESSION_MS}"]
        words += ["-X", "heartbeat.interval.ms=500", "-X", "auto.commit.interval.ms=500"]
        return [*words, *(word for setting in settings for word in ("-X", setting))], plain
    if name == "java":
        words = ["--bootstrap-server", address, "--topic", topic, "--group-id", group, "--verbose"]
        words += ["--session-timeout", str(SESSION_MS), *settings]
        return java_command("org.apache.kafka.tools.VerifiableConsumer", *words), verifiable
    return [sys.executable, "-m", "tests.compat.member", name, address, topic, group, *settings], plain


class Member:
    """A process, and what it printed so far."""

    def __init__(self, command: list[str], parse: Parse) -> None:
        self.seen: dict[Place, float] = {}
        self.failure = ""
        self._parse = parse
        self._errors: list[str] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for target in (self._read, self._read_errors):
            threading.Thread(target=target, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            for place in self._parse(line):
                self.seen.setdefault(place, time.monotonic())

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line]

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        return "".join(self._errors)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Story:
    """What happened to one client's group. `problem` is empty when all went well."""

    client: str
    problem: str = ""
    takeover_s: float = 0.0
    record_count: int = 0
    members: list[Member] = field(default_factory=list)


class Feed(threading.Thread):
    """Sends a record to every partition of every topic, twenty times a second, until told to stop."""

    def __init__(self, address: str, topics: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.sent: dict[str, list[Place]] = {topic: [] for topic in topics}
        self._stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 1})

    def run(self) -> None:
        while not self._stopping.wait(0.05):
            for topic in self.sent:
                for partition in range(PARTITIONS):
                    self._producer.produce(topic, b"tick", partition=partition, on_delivery=self._on_delivery)
            self._producer.poll(0)

    def _on_delivery(self, error: object, message: object) -> None:
        assert error is None, error
        self.sent[message.topic()].append((message.partition(), message.offset()))  # type: ignore[attr-defined]

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        assert self._producer.flush(PATIENCE_S) == 0


def tell_all(
    address: str, clients: dict[str, str], silence: signal.Signals = signal.SIGKILL
) -> dict[str, Story]:
    """All groups at once; `clients` gives each client its topic, which must exist with PARTITIONS
    partitions."""
    feed = Feed(address, list(clients.values()))
    feed.start()
    stories = {client: Story(client) for client in clients}
    tellers = [
        threading.Thread(target=tell, args=(stories[client], address, topic, feed, silence))
        for client, topic in clients.items()
    ]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join()
    feed.stop()
    for client, topic in clients.items():
        finish(stories[client], feed.sent[topic])
    return stories


def tell(story: Story, address: str, topic: str, feed: Feed, silence: signal.Signals) -> None:
    """Up to the takeover, and the return of one that was only stopped."""
    story.members = [Member(*member_command(story.client, number, address, topic)) for number in range(3)]
    if not wait_for(lambda: all(is_busy(member) for member in story.members)):
        story.problem = "not all three members got records: " + " | ".join(map(outcome, story.members))
        return
    victim, *others = story.members
    victim.send(silence)
    silenced = time.monotonic()
    sent_before = set(feed.sent[topic])
    orphans = {partition for (partition, _), when in list(victim.seen.items()) if when > silenced - 1}

    def is_taken_over() -> bool:
        fresh = [place for member in others for place in list(member.seen) if place not in sent_before]
        return orphans <= {partition for partition, _ in fresh}

    if not orphans:
        story.problem = "the silenced member had no partition"
    elif not wait_for(is_taken_over):
        story.problem = f"partitions {orphans} were not taken over: " + " | ".join(map(outcome, others))
    story.takeover_s = time.monotonic() - silenced
    if silence == signal.SIGSTOP and not story.problem:
        victim.send(signal.SIGCONT)
        if not wait_for(lambda: all(is_busy(member) for member in story.members)):
            story.problem = "the member that was stopped did not come back: " + " | ".join(
                map(outcome, story.members)
            )


def finish(story: Story, sent: list[Place]) -> None:
    """All records were seen; then the members may go."""
    story.record_count = len(sent)

    def missing() -> set[Place]:
        return set(sent).difference(*(list(member.seen) for member in story.members))

    if not story.problem and not wait_for(lambda: not missing()):
        story.problem = f"{len(missing())} of {len(sent)} records were never seen, as {sorted(missing())[:5]}"
    for member in story.members:
        member.kill()


def is_busy(member: Member) -> bool:
    """It got a record within the last second."""
    return max(list(member.seen.values()), default=0) > time.monotonic() - 1


def outcome(member: Member) -> str:
    return (
        f"{len(member.seen)} records, {'alive' if member.is_alive() else 'dead'}, said "
        f"{member.said()[-800:]!r}"
    )


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
