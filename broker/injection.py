"""Faults that a test asks for, and what it used that is not served: in test mode alone (cli/serve.py),
nothing of it is loaded otherwise.

    fail            the next requests of an API are refused with a code, before they do anything
    slow            its answers leave later: what it asked for is done at once
    fill_disk       producers are refused as by a broker whose disk is full, until `clear`
    answer_parked, drop_connections, run_retention   at once

Faults stand between the dispatcher and its handlers: each handler is wrapped when the table is built, so that
a start without test mode has nothing on its paths. Requests of the test itself (client id TESTING_CLIENT) are
spared. Not here: how it is asked for (injection_http.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from millrace.broker.handlers import Parts
from millrace.broker.network.server import Server
from millrace.broker.partitions.partition import Partition
from millrace.broker.requests.dispatch import Late
from millrace.broker.requests.openings import settled
from millrace.broker.requests.request import CLOSE, Handle, RequestContext
from millrace.protocol.apis import KAFKA
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.scheduling.semaphore import NOBODY

TESTING_CLIENT = "millrace-testing"  # testing/wire.py says it
SLOW_MS_MAX = 600_000
UNSERVED_MAX = 20
# Of the loop: an answer, the requests behind it, their answers, the end of the stream, the end of the
# connection.
TURNS_TO_END = 5
KEYS = {api.name: api.key for api in KAFKA}
PRODUCE, FIND_COORDINATOR, CREATE_TOPICS, INIT_PRODUCER_ID, ALTER, INCREMENTAL_ALTER = 0, 10, 19, 22, 33, 44
# Those whose every version has a place for the code.
FAILABLE = (
    "Produce",
    "Fetch",
    "ListOffsets",
    "OffsetCommit",
    "OffsetFetch",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "LeaveGroup",
    "InitProducerId",
)
SLOWABLE = (*FAILABLE, "Metadata", "FindCoordinator")

TRANSACTIONS = (
    "transactions are not served by Millrace yet: a transactional producer cannot be tested with it"
)
COMPACTION = "log compaction is not done by Millrace yet: a compacted topic keeps everything"
CONSUMER_PROTOCOL = (
    "group.protocol=consumer (KIP-848) is not served by Millrace yet: set group.protocol=classic"
)
SHARE_GROUPS = "share groups (KIP-932) are not served by Millrace yet"
STREAMS_PROTOCOL = (
    "group.protocol=streams (KIP-1071) is not served by Millrace yet: set group.protocol=classic"
)
SECURITY = "TLS and SASL are not served by Millrace yet: connect with security.protocol=PLAINTEXT"
# Requests that are answered as where the feature is turned off, whatever they hold.
UNSERVED = {17: SECURITY, 68: CONSUMER_PROTOCOL, 76: SHARE_GROUPS, 88: STREAMS_PROTOCOL}


@dataclass(slots=True)
class Rules:
    """Of one API. `left`: how many more requests are refused; None: all."""

    code: int = 0
    left: int | None = 0
    delay_ms: int = 0

    def take_failure(self) -> int:
        """The code that the next request is refused with; 0: it is not."""
        if self.left is None:
            return self.code
        if not self.left:
            return 0
        self.left -= 1
        return self.code


@dataclass(slots=True)
class Faults:
    rules: dict[int, Rules] = field(default_factory=dict)
    unserved: dict[str, None] = field(default_factory=dict)

    def of(self, key: int) -> Rules:
        return self.rules.setdefault(key, Rules())

    def note_unserved(self, sentence: str) -> None:
        if len(self.unserved) < UNSERVED_MAX:
            self.unserved[sentence] = None

    def take_unserved(self) -> list[str]:
        taken = list(self.unserved)
        self.unserved.clear()
        return taken


class FaultyHandle:
    """The handler of one API, with the faults before and behind it."""

    def __init__(self, key: int, inner: Handle, faults: Faults) -> None:
        self._key = key
        self._inner = inner
        self._faults = faults
        self.refuse: Callable[[Any, int], Any] | None = getattr(
            getattr(inner, "__self__", None), "refuse", None
        )

    def handle(self, context: RequestContext, request: Any) -> Any:
        """Raises KafkaError with the code of a failure that was asked for; a produce with acks=0 gets its
        connection closed."""
        if context.client_id == TESTING_CLIENT:
            return self._inner(context, request)
        for sentence in unserved_in(self._key, request):
            self._faults.note_unserved(sentence)
        rules = self._faults.rules.get(self._key)
        if rules is None:
            return self._inner(context, request)
        if code := rules.take_failure():
            if self._key == PRODUCE and request.acks == 0:
                return CLOSE
            raise KafkaError(ErrorCode(code))
        outcome = self._inner(context, request)
        if not rules.delay_ms:
            return outcome
        return asyncio.get_running_loop().create_task(later(context, outcome, rules.delay_ms / 1000))


async def later(context: RequestContext, outcome: Any, delay_s: float) -> Any:
    """A handler's outcome, that long after it was asked for or when it is there. While it is only late it has
    no permit that others wait for."""
    waiting = asyncio.ensure_future(asyncio.sleep(delay_s))
    try:
        if asyncio.iscoroutine(outcome) or asyncio.isfuture(outcome):
            outcome = await outcome
    finally:
        context.work.end()
    await waiting
    return outcome


def unserved_in(key: int, request: Any) -> list[str]:
    """What the request asks for that is not served: it is answered as ever, and the test is told."""
    if key == INIT_PRODUCER_ID and request.transactional_id is not None:
        return [TRANSACTIONS]
    if key == FIND_COORDINATOR and request.key_type == 1:
        return [TRANSACTIONS]
    if key in UNSERVED:
        return [UNSERVED[key]]
    if key == CREATE_TOPICS:
        pairs = [(config.name, config.value) for topic in request.topics for config in topic.configs]
    elif key in (ALTER, INCREMENTAL_ALTER):
        pairs = [(config.name, config.value) for resource in request.resources for config in resource.configs]
    else:
        return []
    return (
        [COMPACTION]
        if any(name == "cleanup.policy" and "compact" in (text or "") for name, text in pairs)
        else []
    )


class Injection:
    """What control requests do (injection_http.py), by name. Each takes texts and gives what is answered as
    JSON."""

    def __init__(self) -> None:
        self.faults = Faults()
        self._server: Server | None = None
        self._parts: Parts | None = None
        self.commands: Mapping[str, Callable[[Mapping[str, str]], Any]] = {
            "fail": self._fail,
            "slow": self._slow,
            "fill-disk": self._fill_disk,
            "answer-parked": self._answer_parked,
            "drop-connections": self._drop_connections,
            "run-retention": self._run_retention,
            "clear": self._clear,
            "unserved": self._unserved,
        }

    def wrap(self, handlers: Mapping[int, Handle | Late]) -> dict[int, Handle | Late]:
        return {key: self._wrapped(key, handle) for key, handle in handlers.items()}

    def _wrapped(self, key: int, handle: Handle | Late) -> Handle | Late:
        if isinstance(handle, Late):
            make = handle.make
            return Late(lambda: FaultyHandle(key, make(), self.faults).handle)
        return FaultyHandle(key, handle, self.faults).handle

    def attach(self, server: Server, parts: Parts) -> None:
        """Once clients are served."""
        self._server = server
        self._parts = parts
        server.on_reason = self._on_reason

    def _on_reason(self, reason: str) -> None:
        """Why a connection was ended."""
        if "looks like TLS" in reason or reason.startswith(("API key 17 ", "API key 36 ")):
            self.faults.note_unserved(SECURITY)
        elif reason.startswith(tuple(f"API key {key} " for key in (24, 25, 26, 28))):
            self.faults.note_unserved(TRANSACTIONS)

    def _fail(self, given: Mapping[str, str]) -> dict[str, object]:
        rules = self.faults.of(key_of(given, FAILABLE))
        code = code_of_name(given.get("code", ""))
        times = given.get("times", "")
        left = number_of("times", times, 1, 1 << 31) if times else None
        rules.code, rules.left = code, left
        return {}

    def _slow(self, given: Mapping[str, str]) -> dict[str, object]:
        delay_ms = number_of("ms", given.get("ms", ""), 0, SLOW_MS_MAX)
        self.faults.of(key_of(given, SLOWABLE)).delay_ms = delay_ms
        return {}

    def _fill_disk(self, given: Mapping[str, str]) -> dict[str, object]:
        rules = self.faults.of(PRODUCE)
        rules.code, rules.left = ErrorCode.KAFKA_STORAGE_ERROR, None
        return {}

    def _clear(self, given: Mapping[str, str]) -> dict[str, object]:
        self.faults.rules.clear()
        return {}

    def _unserved(self, given: Mapping[str, str]) -> dict[str, object]:
        return {"unserved": self.faults.take_unserved()}

    def _drop_connections(self, given: Mapping[str, str]) -> dict[str, object]:
        assert self._server is not None
        connections = list(self._server.connections.values())
        for connection in connections:
            connection.abort(is_reset=True)
        return {"dropped": len(connections)}

    async def _answer_parked(self, given: Mapping[str, str]) -> dict[str, object]:
        """Answers what waits for news with what there is. Behind a long poll of a client that has closed its
        connection may stand requests that it sent before: on return they are handled, and it is gone. Gives
        how many clients are left."""
        assert self._server is not None
        for connection in list(self._server.connections.values()):
            connection.force_complete()
        for _ in range(TURNS_TO_END):
            await asyncio.sleep(0)
        return {"connections": len(self._server.connections)}

    async def _run_retention(self, given: Mapping[str, str]) -> dict[str, object]:
        """As if it were `as_of`, in milliseconds since the epoch. What it drops is gone on return, from every
        partition."""
        assert self._parts is not None
        as_of_ms = number_of("as_of", given.get("as_of", ""), 0, 1 << 62)
        directory, dropped = self._parts.directory, 0
        for topic in list(self._parts.cache.image.topics):
            led = directory.topic_of(topic.topic_id)
            if led is None or led.is_internal or not led.settings.has_retention:
                continue
            for index in range(len(topic.partitions)):
                await settled(directory, [(topic.name, index)], NOBODY, self._parts.runtime.yield_queue)
                partition = directory.at_hand(topic.name, index)
                settings, before = partition.settings, partition.log_start_offset
                keep_from = partition.state.segments.plan_retention(
                    as_of_ms, settings.retention_ms, settings.retention_bytes, partition.high_watermark
                )
                await drop_below(partition, keep_from, self._parts.runtime.clock.wall_ms())
                dropped += partition.log_start_offset - before
        return {"dropped": dropped}


async def drop_below(partition: Partition, offset: int, now_ms: int) -> None:
    """Gone and durable on return."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    partition.raise_log_start(offset, now_ms, lambda: None if done.done() else done.set_result(None))
    await done


def key_of(given: Mapping[str, str], names: tuple[str, ...]) -> int:
    """ValueError for an API that is not one of these."""
    name = given.get("api", "")
    if name not in names:
        raise ValueError(f"api={name} is none of {', '.join(names)}")
    return KEYS[name]


def code_of_name(name: str) -> int:
    """Of a code's number or its name in Kafka; ValueError for none, and for the one that is no error."""
    if name.lstrip("-").isdecimal() and int(name) in list(ErrorCode):
        code = int(name)
    elif name in ErrorCode.__members__:
        code = ErrorCode[name]
    else:
        raise ValueError(f"code={name} is no error code of Kafka's")
    if code == ErrorCode.NONE:
        raise ValueError("code=NONE is no error")
    return int(code)


def number_of(name: str, text: str, low: int, high: int) -> int:
    """A whole number in [low, high]; raises ValueError for any other text."""
    if not (text.isascii() and text.isdecimal() and low <= int(text) <= high):
        raise ValueError(f"{name}={text} is no whole number from {low} to {high}")
    return int(text)
