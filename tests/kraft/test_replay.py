"""Replay equals live: any commands, decided live, give the image that their bytes give to one who reads them
later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kraft.commands.decision import ConfigRules, Context, CreationRules
from millrace.kraft.commands.objects import decide_expire_objects
from millrace.kraft.commands.table import COMMANDS
from millrace.kraft.image.delta import MetadataDelta, apply_records
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.image.records import Proposal, ValueReader, ValueWriter, decode_values, encode_batch
from millrace.kraft.log.snapshot import image_records
from millrace.kraft.node import accept_broker_config, accept_other_config
from millrace.kraft.tables.features import bootstrap_records
from millrace.kraft.topic_configs import ConfigLookup
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.close_streams import CloseStreamsRequest, StreamClose
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange, UploadedStreamObject
from millrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.protocol.messages.remove_objects import RemoveObjectsRequest
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest
from millrace.runtime.rand import Rand
from tests.kraft.check import check_image

CLUSTER = "cluster"
NAMES = ("a", "b.c", "d_e", "f")


class Machine:
    """The controller without a log: decides, applies, and keeps the bytes that a log would have."""

    def __init__(self) -> None:
        self.image = EMPTY_IMAGE
        self.now_ms = 1_000
        self.batches: list[bytes] = []
        lookup = ConfigLookup(1)
        self.creation = CreationRules(1, 10_000, lookup, Rand(b"topics").uuid)
        self.configs = ConfigRules(lookup, accept_broker_config, accept_other_config)
        self.commit(list(bootstrap_records()))
        self.epoch = self.do(BrokerRegistrationRequest(1, CLUSTER, bytes(16))).broker_epoch

    def do(self, request: Any) -> Any:
        command = COMMANDS[type(request)]
        offset = self.image.offset
        context = Context(
            self.image, self.now_ms, offset, CLUSTER, self.creation, self.configs, cast(Any, None)
        )
        try:
            decision = command.decide(context, request)
        except KafkaError as error:
            return command.refuse(request, error)
        self.commit(decision.records)
        return decision.response

    def commit(self, records: list[Any]) -> None:
        if records:
            offset = self.image.offset
            self.batches.append(
                encode_batch([Proposal(ValueWriter().write_all(records), self.now_ms)], offset, 1)
            )
            _, self.image = apply_records(self.image, records, offset + len(records), 1)

    def expire(self) -> None:
        self.commit(list(decide_expire_objects(self.image, self.now_ms, self.now_ms)))

    def replayed(self, image: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
        """What one who reads the bytes behind `image` comes to, all in one delta."""
        delta, reader, end = MetadataDelta(image), ValueReader(), 0
        for batch in self.batches:
            values = decode_values(memoryview(batch))
            if end >= image.offset:
                delta.apply_all(map(reader.read, values))
            end += len(values)
        return delta.done(end, 1)

    def stream(self, place: int) -> tuple[int, int, int]:
        """Some stream's id, epoch and end; one that nobody has when there is none."""
        streams = list(self.image.streams.by_id.values())
        if not streams:
            return 77, 0, 0
        chosen = streams[place % len(streams)]
        return chosen.stream_id, chosen.epoch, chosen.end


def snapshot_of(image: MetadataImage) -> MetadataImage:
    writer, reader = ValueWriter(), ValueReader()
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.apply_all(reader.read(writer.write(record)) for record in image_records(image))
    return delta.done(image.offset, image.epoch)


SMALL = st.integers(0, 5)
STEP = st.tuples(
    st.sampled_from(
        [
            *["create", "delete", "grow", "config", "close", "trim", "prepare", "retry", "expire", "remove"],
            *["ids", "register", "heartbeat", "snapshot", "create", "trim"],
            *["open"] * 4,
            *["commit"] * 5,
        ]
    ),
    SMALL,
    SMALL,
    SMALL,
)


class Play:
    """Turns drawn numbers into commands that mean something to the machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.prepared: list[int] = []
        self.last_commit: CommitUploadRequest | None = None
        self.snapshots: list[MetadataImage] = []

    def step(self, what: str, a: int, b: int, c: int) -> None:
        getattr(self, f"on_{what}")(a, b, c)
        self.machine.now_ms += 10

    def topic_id(self, a: int) -> bytes:
        topics = list(self.machine.image.topics)
        return topics[a % len(topics)].topic_id if topics and a < 5 else bytes(16)

    def on_create(self, a: int, b: int, c: int) -> None:
        configs = [CreatableTopicConfig("retention.ms", str(c * 100))] if c else []
        self.machine.do(CreateTopicsRequest([CreatableTopic(NAMES[a % 4], b, 3, configs=configs)]))

    def on_delete(self, a: int, b: int, c: int) -> None:
        self.machine.do(DeleteTopicsRequest([DeleteTopicState(NAMES[a % 4])]))

    def on_grow(self, a: int, b: int, c: int) -> None:
        self.machine.do(CreatePartitionsRequest([CreatePartitionsTopic(NAMES[a % 4], b + c, None)]))

    def on_config(self, a: int, b: int, c: int) -> None:
        change = AlterableConfig("segment.ms", c % 2, str(1 + b))
        self.machine.do(IncrementalAlterConfigsRequest([AlterConfigsResource(2, NAMES[a % 4], [change])]))

    def on_open(self, a: int, b: int, c: int) -> None:
        roles = [0, 1, 2, 3][: 1 + c % 4]
        self.machine.do(OpenPartitionStreamsRequest(1, self.machine.epoch, self.topic_id(a), b % 3, 0, roles))

    def on_close(self, a: int, b: int, c: int) -> None:
        stream_id, epoch, _ = self.machine.stream(a * 6 + b)
        self.machine.do(CloseStreamsRequest(1, self.machine.epoch, [StreamClose(stream_id, epoch)]))

    def on_trim(self, a: int, b: int, c: int) -> None:
        stream_id, epoch, end = self.machine.stream(a * 6 + b)
        start = max(0, end - 5 + 2 * c)
        self.machine.do(TrimStreamsRequest(1, self.machine.epoch, [StreamTrim(stream_id, epoch, start)]))

    def on_prepare(self, a: int, b: int, c: int) -> None:
        response = self.machine.do(PrepareObjectsRequest(1, self.machine.epoch, a + 1, 50 + b * 50))
        self.prepared += range(response.first_object_id, response.first_object_id + a + 1)

    def on_commit(self, a: int, b: int, c: int) -> None:
        """A set object over some streams, and one stream object; ranges may be off by a little."""
        if len(self.prepared) < 2:
            self.on_prepare(3, 5, 0)
        ranges: list[UploadedRange] = []
        for place in range(b + 1):
            stream_id, _, end = self.machine.stream(a + place)
            start = max(0, end - (c == 5))
            if all(stream_id != known.stream_id for known in ranges):
                ranges.append(UploadedRange(stream_id, start, start + 1 + place))
        own = []
        stream_id, _, end = self.machine.stream(c * 7 + 3)
        if all(stream_id != known.stream_id for known in ranges):
            own.append(UploadedStreamObject(self.prepared[1], 100, stream_id, end, end + 3))
        request = CommitUploadRequest(1, self.machine.epoch, self.prepared[0], 1000, ranges, own)
        response = self.machine.do(request)
        if response.error_code == ErrorCode.NONE:
            del self.prepared[: 1 + len(own)]
            self.last_commit = request
        elif response.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            del self.prepared[:2]

    def on_retry(self, a: int, b: int, c: int) -> None:
        """The last commit, sent again, changes nothing; once its objects were removed it is refused."""
        if self.last_commit is not None:
            before = self.machine.image
            self.last_commit.broker_epoch = self.machine.epoch
            response = self.machine.do(self.last_commit)
            assert response.error_code in (ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND)
            assert self.machine.image is before

    def on_expire(self, a: int, b: int, c: int) -> None:
        self.machine.now_ms += a * 20
        self.machine.expire()

    def on_remove(self, a: int, b: int, c: int) -> None:
        pending = self.machine.image.objects.pending_deletions_before(self.machine.now_ms - 20 * a, b)
        self.machine.do(RemoveObjectsRequest(1, self.machine.epoch, list(pending)))

    def on_ids(self, a: int, b: int, c: int) -> None:
        self.machine.do(AllocateProducerIdsRequest(1, self.machine.epoch))

    def on_register(self, a: int, b: int, c: int) -> None:
        request = BrokerRegistrationRequest(1, CLUSTER, bytes([a]) * 16, rack="r" if b else None)
        self.machine.epoch = self.machine.do(request).broker_epoch

    def on_heartbeat(self, a: int, b: int, c: int) -> None:
        request = BrokerHeartbeatRequest(1, self.machine.epoch, self.machine.image.offset, want_fence=a == 0)
        self.machine.do(request)

    def on_snapshot(self, a: int, b: int, c: int) -> None:
        self.snapshots.append(self.machine.image)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_replay_equals_live(steps: list[tuple[str, int, int, int]]) -> None:
    """From the log alone, from any snapshot and the log behind it, and from a snapshot of the end: the same
    image.

    And every image along the way is sound: ranges neither overlap nor leave gaps, objects are alive for a
    reason.
    """
    machine = Machine()
    play = Play(machine)
    for what in ("create", "open", "commit"):
        play.step(what, 1, 2, 3)
    for what, a, b, c in steps:
        play.step(what, a, b, c)
        check_image(machine.image)
    assert machine.replayed() == machine.image
    for image in play.snapshots:
        assert machine.replayed(snapshot_of(image)) == machine.image
    assert snapshot_of(machine.image) == machine.image


def test_ids_are_never_given_twice_even_after_a_snapshot() -> None:
    """The highest ids ever given are remembered when nothing that had them is left."""
    machine = Machine()
    play = Play(machine)
    play.on_create(0, 1, 0)
    play.on_open(0, 0, 1)
    play.on_prepare(2, 0, 0)
    play.on_delete(0, 0, 0)
    play.on_expire(5, 0, 0)
    machine.now_ms += 1_000
    machine.expire()
    play.on_remove(0, 5, 0)
    assert len(machine.image.objects.by_id) == len(machine.image.streams) == 0
    loaded = snapshot_of(machine.image)
    assert (loaded.streams.next_id, loaded.objects.next_id) == (2, 3)


def test_an_image_is_not_changed_by_what_follows() -> None:
    """Whoever holds an older image goes on seeing it."""
    machine = Machine()
    play = Play(machine)
    held: list[tuple[MetadataImage, MetadataImage]] = []
    for a in range(6):
        for what in ("create", "open", "commit", "trim", "grow"):
            play.step(what, a, a % 3, a)
            held.append((machine.image, snapshot_of(machine.image)))
        play.step("delete", a, 0, 0)
    for image, as_it_was in held:
        assert image == as_it_was
        check_image(image)


def test_equality_sees_differences() -> None:
    """The comparison these tests rest on is not blind."""
    machine = Machine()
    play = Play(machine)
    play.on_create(0, 1, 0)
    before = machine.image
    play.on_open(0, 0, 1)
    assert replace(before, offset=machine.image.offset) != machine.image
