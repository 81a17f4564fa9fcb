"""Sequences of Fetch requests on connections of several clients, with what happens to their topics between:
one line a request, and what is answered by then, the same from any broker.

make TOPIC [PARTITIONS] | drop TOPIC | trim PLACE OFFSET | produce PLACE RECORDS BYTES
ACTOR fetch [full | more | last] [PLACE@OFFSET[/MAX[/EPOCH[/LAST_EPOCH]]] ...] [forget=PLACE,PLACE]
            [session=ID] [epoch=N] [wait=MS] [min=BYTES] [max=BYTES] [iso=N] [v=VERSION]

A place is TOPIC-PARTITION; TOPIC' is the first that had this name. `full` opens a session, `more` is its next
increment, `last` closes it; else there is none. Of an answer are shown the offsets of batches that are whole
in it, and whether it came at its deadline.
"""

from __future__ import annotations

import select
import time

from millrace.protocol.apis import NAMED
from millrace.protocol.batches import iter_headers
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tests.live.client import Client
from tests.live.fitting import fit
from tests.live.wire import Wire

FETCH = NAMED["Fetch"]
SETTLES_S = 0.4  # until a topic of Kafka's is led, or gone
QUIET_S = 1.0  # who is not answered by then waits
TIME_MS = 1_700_000_000_000
WAIT_MS = 300
AT_DEADLINE = 0.9
EVERYTHING = 1 << 20
UNKNOWN_ID = bytes(15) + b"\1"


class Actor:
    def __init__(self, address: str, name: str) -> None:
        self.name = name
        self.wire = Wire(address)
        self.session, self.epoch = 0, 0
        self.version: int | None = None  # of the request whose answer it waits for
        self.began_s = 0.0
        self.wait_ms = 0


class FetchDialogue:
    """About topics with `prefix` before their names."""

    def __init__(self, address: str, prefix: str) -> None:
        self._address = address
        self._prefix = prefix
        self._client = Client(address)
        self._actors: dict[str, Actor] = {}
        self._sessions = {0: "no session"}
        self._names: dict[bytes, str] = {}  # of topic ids

    def close(self) -> None:
        self._client.socket.close()
        for actor in self._actors.values():
            actor.wire.close()

    def say(self, line: str) -> list[str]:
        name, *words = line.split()
        if name in ("make", "drop", "trim", "produce"):
            getattr(self, f"_{name}")(*words)
        else:
            actor = self._actors.get(name) or self._actors.setdefault(name, Actor(self._address, name))
            if actor.version is None:
                self._fetch(actor, words[1:])
        return self._answers()

    # -- what happens

    def _make(self, name: str, partitions: str = "1") -> None:
        self._client.create(self._prefix + name, int(partitions))
        time.sleep(SETTLES_S)
        self._names[self._client.topic_ids()[self._prefix + name]] = name

    def _drop(self, name: str) -> None:
        assert self._client.delete(self._prefix + name) == 0
        time.sleep(SETTLES_S)

    def _trim(self, place: str, offset: str) -> None:
        name, _, partition = place.partition("-")
        assert self._client.delete_records(self._prefix + name, int(offset), int(partition)) == 0

    def _produce(self, place: str, count: str, size: str) -> None:
        name, _, partition = place.partition("-")
        self._client.produce(
            self._prefix + name, [b"v" * int(size)] * int(count), int(partition), time_ms=TIME_MS
        )

    # -- requests

    def _fetch(self, actor: Actor, words: list[str]) -> None:
        values = dict(word.split("=", 1) for word in words if "=" in word)
        version = int(values.get("v", FETCH.max_stable_version))
        session, epoch = 0, -1
        if "full" in words:
            epoch = 0
        elif "more" in words:
            session, epoch = actor.session, actor.epoch
        elif "last" in words:
            session = actor.session
        if epoch >= 0:
            actor.epoch = epoch + 1
        request = FetchRequest(
            max_wait_ms=int(values.get("wait", WAIT_MS)),
            min_bytes=int(values.get("min", 1)),
            max_bytes=int(values.get("max", EVERYTHING)),
            isolation_level=int(values.get("iso", 0)),
            session_id=int(values.get("session", session)),
            session_epoch=int(values.get("epoch", epoch)),
            topics=self._wanted([word for word in words if "@" in word]),
            forgotten_topics_data=self._forgotten(
                [place for place in values.get("forget", "").split(",") if place]
            ),
        )
        actor.wire.send_bytes(encode_request(FETCH, version, 1, actor.name, fit(request, version)))
        actor.version, actor.began_s, actor.wait_ms = version, time.monotonic(), request.max_wait_ms

    def _wanted(self, words: list[str]) -> list[FetchTopic]:
        topics: dict[str, FetchTopic] = {}
        for word in words:
            place, _, numbers = word.partition("@")
            name, _, partition = place.partition("-")
            offset, size, epoch, last_epoch = (*numbers.split("/"), "", "", "")[:4]
            wanted = FetchPartition(int(partition), int(epoch or -1), int(offset), int(last_epoch or -1), -1)
            wanted.partition_max_bytes = int(size or EVERYTHING)
            topics.setdefault(name, FetchTopic(*self._naming(name))).partitions.append(wanted)
        return list(topics.values())

    def _forgotten(self, places: list[str]) -> list[ForgottenTopic]:
        topics: dict[str, ForgottenTopic] = {}
        for place in places:
            name, _, partition = place.partition("-")
            topics.setdefault(name, ForgottenTopic(*self._naming(name))).partitions.append(int(partition))
        return list(topics.values())

    def _naming(self, text: str) -> tuple[str, bytes]:
        name = text.removesuffix("'")
        ids = [topic_id for topic_id, known in self._names.items() if known == name] or [UNKNOWN_ID]
        return self._prefix + name, ids[-1] if name == text else ids[0]

    # -- answers

    def _answers(self) -> list[str]:
        """All that come until it is quiet, by actor."""
        found: dict[str, str] = {}
        while waiting := {one.wire.socket: one for one in self._actors.values() if one.version is not None}:
            ready, _, _ = select.select(list(waiting), [], [], QUIET_S)
            if not ready:
                break
            for socket in ready:
                found[waiting[socket].name] = self._told(waiting[socket])
        return [f"{name}: {found[name]}" for name in sorted(found)]

    def _told(self, actor: Actor) -> str:
        assert actor.version is not None
        said = decode_response(FETCH, actor.version, memoryview(actor.wire.read_frame()))[1]
        is_late = time.monotonic() - actor.began_s >= AT_DEADLINE * actor.wait_ms / 1000
        actor.version = None
        if said.session_id:
            actor.session = said.session_id
        session = self._sessions.setdefault(said.session_id, f"session {len(self._sessions)}")
        parts = sorted(
            f"{self._name_of(topic)}-{text_of(part)}" for topic in said.responses for part in topic.partitions
        )
        nodes = f" nodes {[one.node_id for one in said.node_endpoints]}" if said.node_endpoints else ""
        deadline = " at its deadline" if is_late else ""
        return f"{ErrorCode(said.error_code).name}, {session}: {'; '.join(parts)}{nodes}{deadline}"

    def _name_of(self, topic: FetchableTopicResponse) -> str:
        return topic.topic.removeprefix(self._prefix) or self._names.get(bytes(topic.topic_id), "no topic")


def text_of(part: PartitionData) -> str:
    found = part.records or b""
    records = bytes(found) if isinstance(found, bytes | bytearray | memoryview) else b"".join(found)
    offsets = [header.base_offset for _, header in iter_headers(records)]
    epoch, leader = part.diverging_epoch, part.current_leader
    ends = f"{part.high_watermark}/{part.last_stable_offset}/{part.log_start_offset}"
    diverging = "" if epoch.epoch == epoch.end_offset == -1 else f" diverges {epoch.epoch}/{epoch.end_offset}"
    led = (
        ""
        if leader.leader_id == leader.leader_epoch == -1
        else f" led {leader.leader_id}/{leader.leader_epoch}"
    )
    aborts = " with aborts" if offsets and part.aborted_transactions is not None else ""
    return (
        f"{part.partition_index} {ErrorCode(part.error_code).name} {ends} {offsets}{diverging}{led}{aborts}"
    )
