"""Whole answers of the describing APIs beside Apache Kafka's: in every version that both serve, value by
value and in order.

Lists are laid side by side by what names their elements, so that one that is missing is one difference; then
their order is compared. What each node has for itself (its port, its cluster's id, ids of topics) is given
one name on both sides. Kept true: a difference is in `INTENDED` with its reason, or it is reported; and a
reason that nothing needs is reported, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass

from millrace.protocol.apis import API
from millrace.protocol.messages.api_versions import ApiVersionsRequest
from tests.compat.peer.intended import INTENDED, Intended
from tests.compat.peer.questions import History, Question, questions
from tests.live.client import Client
from tests.live.fitting import fit
from tests.live.test_every_version import ask
from tests.live.wire import Wire

# What names an element of a list, the first of these that it has.
NAMING = (
    "api_key",
    "name",
    "topic_name",
    "topic",
    "partition_index",
    "partition_id",
    "partition",
    "broker_id",
    "node_id",
    "replica_id",
    "resource_name",
    "group_id",
    "group",
    "transactional_id",
    "user",
    "key",
)
LACKS = "nothing"


@dataclass(frozen=True, slots=True)
class Difference:
    question: str
    version: int
    path: str
    ours: object
    kafkas: object
    why: str  # empty: nobody knows

    def __str__(self) -> str:
        return (
            f"{self.question}, version {self.version}: {self.path}: {self.ours!r} here, {self.kafkas!r} "
            "from Kafka"
        )


Answers = Mapping[tuple[str, int], object]  # by question and version


def versions_of(address: str) -> dict[int, tuple[int, int]]:
    with Wire(address) as wire:
        shown = wire.ask(18, 4, ApiVersionsRequest("compare", "1")).api_keys
    return {one.api_key: (one.min_version, one.max_version) for one in shown}


def shared_versions(ours: str, kafkas: str) -> dict[int, tuple[int, int]]:
    """Those that both serve, by key: what one alone serves is told by ApiVersions."""
    mine, theirs = versions_of(ours), versions_of(kafkas)
    return {
        key: (max(low, mine[key][0]), min(high, mine[key][1]))
        for key, (low, high) in theirs.items()
        if key in mine
    }


def answers_of(address: str, base_ms: int, versions: Mapping[int, tuple[int, int]]) -> Answers:
    """Every question in each of its `versions`."""
    with Client(address) as client:
        history = History(client, base_ms)
        own = {bytes(topic_id): f"id of {name}" for name, topic_id in history.ids.items()}
        own[client.ask("DescribeCluster", API[60].request_type()).cluster_id] = "the cluster's id"
        own[int(address.rpartition(":")[2])] = "its port"
        found = {}
        for question in questions(history):
            low, high = versions[question.key]
            for version in range(max(low, question.since), high + 1):
                found[question.name, version] = named(answer(address, question, version), own)
    return found


def answer(address: str, question: Question, version: int) -> object:
    try:
        with Wire(address) as wire:
            return ask(wire, question.key, version, fit(question.request, version))
    except (EOFError, ConnectionError):
        return "the connection was closed"


def named(value: object, own: Mapping[object, str], field_name: str = "") -> object:
    """The answer in plain values: dictionaries, lists and leaves, with what is a node's own by its name. A
    number is, in a field `port` alone."""
    if isinstance(value, list):
        return [named(item, own) for item in value]
    if is_dataclass(value):
        return {field.name: named(getattr(value, field.name), own, field.name) for field in fields(value)}
    if isinstance(value, memoryview):
        value = bytes(value)
    is_own = isinstance(value, str | bytes) or field_name == "port"
    return own.get(value, value) if is_own else value


def compare_answers(
    ours: Answers, kafkas: Answers, intended: Sequence[Intended] = INTENDED
) -> list[Difference]:
    found = []
    used: set[Intended] = set()
    for (question, version), theirs in kafkas.items():
        for path, mine, other in walk("", ours.get((question, version), LACKS), theirs):
            why = next((one for one in intended if one.fits(question, path, mine, other)), None)
            if why is not None:
                used.add(why)
            found.append(Difference(question, version, path, mine, other, "" if why is None else why.why))
    stale = [one for one in intended if one not in used and not one.is_fickle]
    return [*found, *(Difference(one.question, -1, one.path, "the same", "the same", "") for one in stale)]


def walk(path: str, mine: object, other: object) -> Iterator[tuple[str, object, object]]:
    """Where two answers differ, and what each says there."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for name in other:
            yield from walk(f"{path}.{name}", mine[name], other[name])
    elif isinstance(mine, list) and isinstance(other, list):
        yield from walk_lists(path, by_name(mine), by_name(other))
    elif mine != other:
        yield path, mine, other


def walk_lists(
    path: str, mine: dict[object, object], other: dict[object, object]
) -> Iterator[tuple[str, object, object]]:
    for name in [*other, *(name for name in mine if name not in other)]:
        yield from walk(f"{path}[{name}]", mine.get(name, LACKS), other.get(name, LACKS))
    shared = [name for name in mine if name in other], [name for name in other if name in mine]
    if shared[0] != shared[1]:
        yield f"{path}, in order", *shared


def by_name(items: list[object]) -> dict[object, object]:
    """By what names each; by its place where nothing does, or one name comes again. A resource has its type
    before its name."""
    names = [_name_of(item, place) for place, item in enumerate(items)]
    return dict(zip(names if len(set(names)) == len(names) else range(len(items)), items, strict=True))


def _name_of(item: object, place: int) -> object:
    if not isinstance(item, dict):
        return place
    if "resource_type" in item:
        return f"{item['resource_type']} {item['resource_name']}"
    return next((item[name] for name in NAMING if name in item), place)
