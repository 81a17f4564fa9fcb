"""Requests of every API with some of their fields changed, the same to both: whether they have the same
codes, or differ for a known reason."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from millrace.protocol.apis import API
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.api_versions import ApiVersionsRequest
from millrace.protocol.messages.heartbeat import HeartbeatRequest
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.live.changed import changed
from tests.live.client import LATEST, Client
from tests.live.every_request import NAME, ROWS, Scene
from tests.live.fitting import codes_in, fit
from tests.live.test_every_version import ask
from tests.live.wire import Wire
from tests.patience import until

ANSWER_S = 3.0
SETTLES_S = 0.4  # until a topic of Kafka's takes records
NO_ANSWER, CLOSED = "NO_ANSWER", "CLOSED"
# What is turned off here and on there: delegation tokens, ACLs, quotas, SCRAM, transactions, dynamic voters,
# the newer groups.
OFF = {*range(24, 32), *range(38, 42), 49, 50, 51, 65, 68, 69, *range(76, 82), *range(83, 95)}
PRODUCE, CREATE_TOPICS, DELETE_TOPICS, UNREGISTER = 0, 19, 20, 64


class Reason(NamedTuple):
    """`keys` of APIs (none: any), a code of ours and a code of Kafka's, of which one at least is among the
    answers."""

    why: str
    keys: tuple[int, ...]
    ours: str
    kafkas: str


REASONS = (
    Reason("Kafka fails by accident", (), "", "UNKNOWN_SERVER_ERROR"),
    Reason("Kafka never answers", (), "", NO_ANSWER),
    Reason("Kafka gives up at once where no time is given", (), "", "REQUEST_TIMED_OUT"),
    Reason("Kafka has just started", (), "", "COORDINATOR_LOAD_IN_PROGRESS"),
    Reason("there are no transactions here", (), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", ""),
    Reason("there are no transactions here", (10,), "UNSUPPORTED_VERSION", ""),
    Reason("no node follows another here", (), "CLUSTER_AUTHORIZATION_FAILED", ""),
    Reason("a request makes 10,000 partitions at most", (), "POLICY_VIOLATION", ""),
    Reason(
        "internal topics are refused before their partitions are looked at",
        (21,),
        "INVALID_TOPIC_EXCEPTION",
        "",
    ),
    Reason("a bad resource fails itself, not all that are asked with it", (32,), "", "INVALID_REQUEST"),
    Reason(
        "whether there is such a topic is looked at first", (33, 34, 44, 61), "UNKNOWN_TOPIC_OR_PARTITION", ""
    ),
    Reason("how it is to be acknowledged is looked at first", (PRODUCE,), "INVALID_REQUIRED_ACKS", ""),
    Reason("which folder it is is looked at first", (34,), "LOG_DIR_NOT_FOUND", "INVALID_TOPIC_EXCEPTION"),
    Reason("a name that no topic can have is told as that", (32,), "INVALID_TOPIC_EXCEPTION", ""),
    Reason("a filter that can match nothing is not judged", (48,), "NONE", ""),
    Reason("what is asked twice is answered twice", (55,), "NONE", ""),
    Reason("a group that is named again is refused there", (9,), "INVALID_REQUEST", "NONE"),
    Reason(
        "a topic that is made by being asked for is there at once", (3,), "NONE", "UNKNOWN_TOPIC_OR_PARTITION"
    ),
    Reason("no kind of election is needed, known or not", (43,), "INVALID_REQUEST", ""),
    Reason("a request to upgrade is judged before its levels are", (57,), "INVALID_REQUEST", ""),
)


@dataclass(frozen=True, slots=True)
class Difference:
    key: int
    version: int
    ours: str
    kafkas: str
    why: str  # empty: nobody knows
    request: str

    def __str__(self) -> str:
        return (
            f"{API[self.key].name} v{self.version}: {self.ours} here, {self.kafkas} from Kafka, to "
            f"{self.request}"
        )


class SlowClient(Client):
    """Gives Kafka the time that it takes between a topic and its leader."""

    def create(self, topic: str, partitions: int = 1, **configs: object) -> None:
        super().create(topic, partitions, **configs)
        time.sleep(SETTLES_S)
        until(partial(self._is_led, topic, partitions), f"nobody leads {topic}")

    def _is_led(self, topic: str, partitions: int) -> bool:
        asked = [
            ListOffsetsTopic(topic, [ListOffsetsPartition(one, -1, LATEST) for one in range(partitions)])
        ]
        (answer,) = self.ask("ListOffsets", ListOffsetsRequest(-1, 0, asked)).topics
        return not any(one.error_code for one in answer.partitions)


def compare(ours: str, kafkas: str, seed: int, count: int) -> Iterator[Difference | None]:
    """`ours` and `kafkas`: HOST:PORT of brokers without data. One for each request that both were asked, None
    where the codes are the same."""
    chance = random.Random(seed)
    with Wire(kafkas) as wire:
        shown = wire.ask(18, 4, ApiVersionsRequest("compare", "1")).api_keys
    versions = {one.api_key: (one.min_version, one.max_version) for one in shown}
    keys = [key for key in ROWS if key in versions and key not in OFF]
    with Client(ours) as client, SlowClient(kafkas) as slow:
        scenes = Scene(client), Scene(slow)
        for one in (client, slow):
            until(partial(has_loaded_groups, one), "groups are not loaded")
        for _ in range(count):
            key = chance.choice(keys)
            least, most = versions[key]
            version = chance.randint(max(least, API[key].min_version), min(most, API[key].max_stable_version))
            state, rate = chance.random(), chance.choice((0.1, 0.3))
            requests = [fit(ROWS[key].make(scene), version) for scene in scenes]
            mine, other = (
                settled(key, changed(random.Random(state), request, version, rate)) for request in requests
            )
            if is_left_out(key, mine):
                continue
            said = codes(ours, key, version, mine), codes(kafkas, key, version, other)
            yield None if said[0] == said[1] else difference(key, version, said, str(mine))


def has_loaded_groups(client: Client) -> bool:
    """Both partitions of the offsets topic: of one that is being loaded every member is well."""
    requests = (HeartbeatRequest(group, 1, "nobody") for group in ("a", "b"))
    answers = [client.ask("Heartbeat", request) for request in requests]
    return all(answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID for answer in answers)


def settled(key: int, request: Any) -> Any:
    """Any replication factor is taken here, since the store is what replicates: a topic that only one of both
    has would be met again and again."""
    if key == CREATE_TOPICS:
        for topic in request.topics:
            topic.replication_factor = min(max(topic.replication_factor, -1), 1)
    return request


def is_left_out(key: int, request: Any) -> bool:
    """What has no answer, and what takes away what the scene stands on."""
    if key == PRODUCE:
        return bool(request.acks == 0)
    if key == DELETE_TOPICS:
        return any(name in str(request) for name in ("__consumer_offsets", repr(NAME)))
    return bool(key == UNREGISTER and request.broker_id == 1)


def codes(address: str, key: int, version: int, request: Any) -> frozenset[str]:
    try:
        with Wire(address) as wire:
            wire.socket.settimeout(ANSWER_S)
            return frozenset(ErrorCode(code).name for code in codes_in(ask(wire, key, version, request)))
    except TimeoutError:
        return frozenset({NO_ANSWER})
    except (EOFError, ConnectionError):
        return frozenset({CLOSED})


def difference(
    key: int, version: int, said: tuple[frozenset[str], frozenset[str]], request: str
) -> Difference:
    ours, kafkas = (", ".join(sorted(codes)) for codes in said)
    whys = (reason.why for reason in REASONS if _fits(reason, key, said))
    return Difference(key, version, ours, kafkas, next(whys, ""), request)


def _fits(reason: Reason, key: int, said: tuple[frozenset[str], frozenset[str]]) -> bool:
    if reason.keys and key not in reason.keys:
        return False
    return (not reason.ours or reason.ours in said[0]) and (not reason.kafkas or reason.kafkas in said[1])


def table(counts: Counter[str]) -> str:
    return "\n".join(f"{count:6}  {why}" for why, count in counts.most_common())
