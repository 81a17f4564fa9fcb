"""MetadataDelta: records folded into the next image, and what they touched, for those who follow the image.

The one place where a record meets its effect. Live, at restart, from a snapshot and on a follower the same
code runs, so that replay equals live. Not here: the envelope (records.py), decisions (tables/).

Kept true: the base image is not changed; applying asks no clock and no chance; a record that cannot be
applied is a programmer's error (an assertion), one that is unknown is refused before anything is applied of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from millrace.kraft.errors import UnknownRecord
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.brokers import BrokersEdit
from millrace.kraft.tables.claims import Claim
from millrace.kraft.tables.configs import ConfigsEdit, ResourceType
from millrace.kraft.tables.features import Features
from millrace.kraft.tables.objects import Objects
from millrace.kraft.tables.objects_edit import ObjectsEdit
from millrace.kraft.tables.owed_ranges import owed_range_of
from millrace.kraft.tables.ranges import StreamRanges
from millrace.kraft.tables.streams import StreamsEdit, StreamState
from millrace.kraft.tables.topics import PartitionRow, TopicsEdit
from millrace.kraft.tables.wals import wal_of
from millrace.protocol import metadata_records as kafka
from millrace.protocol import stream_records as ours
from millrace.s3stream.ids import StreamId


class MetadataDelta:
    """From `base` to the image of `done`. The public fields tell what was touched; order is that of the
    records."""

    def __init__(self, base: MetadataImage) -> None:
        self.base = base
        self.features_changed = False
        self.brokers_changed: dict[int, None] = {}
        self.topics_changed: dict[bytes, None] = {}  # topic ids: created, or partitions added or changed
        self.topics_removed: dict[bytes, str] = {}  # topic id -> name
        self.configs_changed: dict[tuple[int, str], None] = {}  # (resource type, name)
        # created, opened, closed, trimmed; or what was owed of them was committed, or lost
        self.streams_changed: dict[int, None] = {}
        self.streams_removed: dict[int, None] = {}
        self.objects_changed = False
        self.wals_changed: dict[int, None] = {}  # node ids
        self.claims_changed: dict[int, None] = {}  # node ids, -1 for the metadata log's writer
        self.failovers_changed: dict[int, None] = {}  # node ids of brokers that are gone
        self._wals = base.wals
        self._claims = base.claims
        self._failovers = base.failovers
        self._features: Features = base.features
        self._producer_ids = base.producer_ids
        self._brokers: BrokersEdit | None = None
        self._topics: TopicsEdit | None = None
        self._configs: ConfigsEdit | None = None
        self._streams: StreamsEdit | None = None
        self._objects: ObjectsEdit | None = None

    def apply_all(self, records: Iterable[Any]) -> None:
        for record in records:
            self.apply(record)

    def apply(self, record: Any) -> None:
        """Raises UnknownRecord for a type that this version does not know."""
        fold = FOLDS.get(type(record))
        if fold is None:
            raise UnknownRecord(type(record).__name__)
        fold(self, record)

    # Records that are alike, many at a time (bulk.py): as `apply` of each, in their order.

    def put_streams(self, streams: Sequence[StreamState]) -> None:
        self.streams_changed.update((stream.stream_id, None) for stream in streams)
        self._edit_streams().put_all(streams)

    def put_partitions(self, rows: Sequence[PartitionRow]) -> None:
        self.topics_changed.update((topic_id, None) for topic_id, _, _ in rows)
        self._edit_topics().put_partitions(rows)

    def put_ranges(self, rows: Sequence[tuple[StreamId, StreamRanges]]) -> None:
        self._edit_objects().put_all_ranges(rows)

    def adopt(self, objects: Objects) -> None:
        """What records make of the table as it is after all that was applied so far, instead of applying
        them."""
        self.objects_changed = True
        self._objects = ObjectsEdit(objects)

    def done(self, offset: int, epoch: int) -> MetadataImage:
        """The image after what was applied so far, which is everything below `offset`."""
        base = self.base
        return MetadataImage(
            offset,
            epoch,
            self._features,
            self._brokers.done() if self._brokers else base.brokers,
            self._topics.done() if self._topics else base.topics,
            self._configs.done() if self._configs else base.configs,
            self._producer_ids,
            self._streams.done() if self._streams else base.streams,
            self._objects.done() if self._objects else base.objects,
            self._wals,
            self._claims,
            self._failovers,
        )

    # The tables' edits, made when first written.

    def _edit_brokers(self) -> BrokersEdit:
        self._brokers = self._brokers or BrokersEdit(self.base.brokers)
        return self._brokers

    def _edit_topics(self) -> TopicsEdit:
        self._topics = self._topics or TopicsEdit(self.base.topics)
        return self._topics

    def _edit_configs(self) -> ConfigsEdit:
        self._configs = self._configs or ConfigsEdit(self.base.configs)
        return self._configs

    def _edit_streams(self) -> StreamsEdit:
        self._streams = self._streams or StreamsEdit(self.base.streams)
        return self._streams

    def _edit_objects(self) -> ObjectsEdit:
        self.objects_changed = True
        self._objects = self._objects or ObjectsEdit(self.base.objects)
        return self._objects

    # Kafka's records.

    def _feature(self, record: kafka.FeatureLevelRecord) -> None:
        self.features_changed = True
        self._features = self._features.with_level(record.name, record.feature_level)

    def _register_broker(self, record: kafka.RegisterBrokerRecord) -> None:
        self.brokers_changed[record.broker_id] = None
        self._edit_brokers().apply_register(record)

    def _change_broker(self, record: kafka.BrokerRegistrationChangeRecord) -> None:
        self.brokers_changed[record.broker_id] = None
        self._edit_brokers().apply_change(record)

    def _fence_broker(self, record: kafka.FenceBrokerRecord) -> None:
        self.brokers_changed[record.id] = None
        self._edit_brokers().apply_fence(record.id, True)

    def _unfence_broker(self, record: kafka.UnfenceBrokerRecord) -> None:
        self.brokers_changed[record.id] = None
        self._edit_brokers().apply_fence(record.id, False)

    def _unregister_broker(self, record: kafka.UnregisterBrokerRecord) -> None:
        self.brokers_changed[record.broker_id] = None
        self._edit_brokers().apply_unregister(record)

    def _topic(self, record: kafka.TopicRecord) -> None:
        self.topics_changed[record.topic_id] = None
        self._edit_topics().apply_topic(record)

    def _partition(self, record: kafka.PartitionRecord) -> None:
        self.topics_changed[record.topic_id] = None
        self._edit_topics().apply_partition(record)

    def _change_partition(self, record: kafka.PartitionChangeRecord) -> None:
        self.topics_changed[record.topic_id] = None
        self._edit_topics().apply_partition_change(record)

    def _remove_topic(self, record: kafka.RemoveTopicRecord) -> None:
        name = self._edit_topics().remove(record.topic_id)
        self.topics_changed.pop(record.topic_id, None)
        self.topics_removed[record.topic_id] = name
        self.configs_changed[ResourceType.TOPIC, name] = None
        self._edit_configs().remove(ResourceType.TOPIC, name)

    def _config(self, record: kafka.ConfigRecord) -> None:
        self.configs_changed[record.resource_type, record.resource_name] = None
        self._edit_configs().apply(record)

    def _producer_id_block(self, record: kafka.ProducerIdsRecord) -> None:
        self._producer_ids = record.next_producer_id

    def _nothing(self, record: kafka.NoOpRecord) -> None:
        """Only moves the offset."""

    # Ours.

    def _stream(self, record: ours.StreamRecord) -> None:
        self.streams_changed[record.stream_id] = None
        self._edit_streams().apply_stream(record)

    def _remove_streams(self, record: ours.RemoveStreamsRecord) -> None:
        streams, objects = self._edit_streams(), self._edit_objects()
        for stream_id in record.stream_ids:
            self.streams_changed.pop(stream_id, None)
            self.streams_removed[stream_id] = None
            streams.remove(StreamId(stream_id))
            objects.apply_remove_stream(StreamId(stream_id), record.time_ms)

    def _trim_stream(self, record: ours.TrimStreamRecord) -> None:
        self.streams_changed[record.stream_id] = None
        streams, stream_id = self._edit_streams(), StreamId(record.stream_id)
        end_before = streams.by_id[stream_id].end
        streams.apply_trim(record)
        self._edit_objects().apply_trim(streams.by_id[stream_id], end_before, record.time_ms)

    def _prepare_objects(self, record: ours.PrepareObjectsRecord) -> None:
        self._edit_objects().apply_prepare(record)

    def _commit_object(self, record: ours.CommitObjectRecord) -> None:
        settled = self._edit_objects().apply_commit(record, self._edit_streams())
        self.streams_changed |= dict.fromkeys(settled)

    def _compact_objects(self, record: ours.CompactObjectsRecord) -> None:
        self._edit_objects().apply_compaction(record, self._edit_streams())

    def _committed_object(self, record: ours.CommittedObjectRecord) -> None:
        self._edit_objects().apply_committed(record)

    def _stream_set_group(self, record: ours.StreamSetGroupRecord) -> None:
        self._edit_objects().apply_group(record)

    def _stream_holders(self, record: ours.StreamHoldersRecord) -> None:
        self._edit_objects().apply_holders(record)

    def _pending_deletion(self, record: ours.PendingDeletionRecord) -> None:
        self._edit_objects().apply_pending_deletion(record)

    def _remove_objects(self, record: ours.RemoveObjectsRecord) -> None:
        self._edit_objects().apply_remove(record)

    def _node_wal(self, record: ours.NodeWalRecord) -> None:
        self.wals_changed[record.node_id] = None
        self._wals = self._wals.with_wal(wal_of(record))

    def _remove_node_wal(self, record: ours.RemoveNodeWalRecord) -> None:
        self.wals_changed[record.node_id] = None
        self._wals = self._wals.without(record.node_id, record.wal_id)

    def _move_node_wal(self, record: ours.MoveNodeWalRecord) -> None:
        self.wals_changed[record.node_id] = None
        self._wals = self._wals.with_position(record.node_id, record.wal_id, record.position)

    def _node_claim(self, record: ours.NodeClaimRecord) -> None:
        self.claims_changed[record.node_id] = None
        self._claims = self._claims.with_claim(record.node_id, Claim(record.number, record.incarnation))

    def _failover(self, record: ours.FailoverRecord) -> None:
        self.failovers_changed[record.node_id] = None
        self._failovers = self._failovers.with_failover(record)

    def _end_failover(self, record: ours.EndFailoverRecord) -> None:
        self.failovers_changed[record.node_id] = None
        self._failovers = self._failovers.without(record.node_id)

    def _owed_range(self, record: ours.OwedRangeRecord) -> None:
        self.streams_changed[record.stream_id] = None
        self._edit_objects().apply_owed(owed_range_of(record), self._edit_streams())

    def _lose_owed_range(self, record: ours.LoseOwedRangeRecord) -> None:
        streams, stream_id = self._edit_streams(), StreamId(record.stream_id)
        owed = streams.owed.by(stream_id, record.node_id)
        assert owed is not None, record
        self.streams_changed[stream_id] = None
        self._edit_objects().apply_lost(owed, streams)

    def _next_ids(self, record: ours.NextIdsRecord) -> None:
        self._edit_streams().apply_next_ids(record)
        self._edit_objects().apply_next_ids(record)


FOLDS: Final[dict[type, Callable[[MetadataDelta, Any], None]]] = {
    kafka.FeatureLevelRecord: MetadataDelta._feature,
    kafka.RegisterBrokerRecord: MetadataDelta._register_broker,
    kafka.BrokerRegistrationChangeRecord: MetadataDelta._change_broker,
    kafka.FenceBrokerRecord: MetadataDelta._fence_broker,
    kafka.UnfenceBrokerRecord: MetadataDelta._unfence_broker,
    kafka.UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    kafka.TopicRecord: MetadataDelta._topic,
    kafka.PartitionRecord: MetadataDelta._partition,
    kafka.PartitionChangeRecord: MetadataDelta._change_partition,
    kafka.RemoveTopicRecord: MetadataDelta._remove_topic,
    kafka.ConfigRecord: MetadataDelta._config,
    kafka.ProducerIdsRecord: MetadataDelta._producer_id_block,
    kafka.NoOpRecord: MetadataDelta._nothing,
    ours.StreamRecord: MetadataDelta._stream,
    ours.RemoveStreamsRecord: MetadataDelta._remove_streams,
    ours.TrimStreamRecord: MetadataDelta._trim_stream,
    ours.PrepareObjectsRecord: MetadataDelta._prepare_objects,
    ours.CommitObjectRecord: MetadataDelta._commit_object,
    ours.PendingDeletionRecord: MetadataDelta._pending_deletion,
    ours.RemoveObjectsRecord: MetadataDelta._remove_objects,
    ours.NextIdsRecord: MetadataDelta._next_ids,
    ours.CompactObjectsRecord: MetadataDelta._compact_objects,
    ours.CommittedObjectRecord: MetadataDelta._committed_object,
    ours.StreamSetGroupRecord: MetadataDelta._stream_set_group,
    ours.StreamHoldersRecord: MetadataDelta._stream_holders,
    ours.NodeWalRecord: MetadataDelta._node_wal,
    ours.RemoveNodeWalRecord: MetadataDelta._remove_node_wal,
    ours.MoveNodeWalRecord: MetadataDelta._move_node_wal,
    ours.NodeClaimRecord: MetadataDelta._node_claim,
    ours.FailoverRecord: MetadataDelta._failover,
    ours.EndFailoverRecord: MetadataDelta._end_failover,
    ours.OwedRangeRecord: MetadataDelta._owed_range,
    ours.LoseOwedRangeRecord: MetadataDelta._lose_owed_range,
}


def apply_records(
    image: MetadataImage, records: Iterable[Any], offset: int, epoch: int
) -> tuple[MetadataDelta, MetadataImage]:
    """The delta of `records`, and the image after them, whose end is `offset`."""
    delta = MetadataDelta(image)
    delta.apply_all(records)
    return delta, delta.done(offset, epoch)


def delta_between(base: MetadataImage, image: MetadataImage) -> MetadataDelta:
    """What may differ between two images, for those who follow the image: whatever is in either counts as
    changed."""
    delta = MetadataDelta(base)
    delta.features_changed = delta.objects_changed = True
    delta.brokers_changed = {broker.broker_id: None for side in (base, image) for broker in side.brokers}
    delta.topics_changed = {topic.topic_id: None for topic in image.topics}
    for topic in base.topics:
        if topic.topic_id not in delta.topics_changed:
            delta.topics_removed[topic.topic_id] = topic.name
    delta.configs_changed = {
        resource: None for side in (base, image) for resource in side.configs.by_resource
    }
    delta.streams_changed = dict.fromkeys(image.streams.by_id)
    delta.streams_removed = {
        stream_id: None for stream_id in base.streams.by_id if stream_id not in delta.streams_changed
    }
    delta.wals_changed = {wal.node_id: None for side in (base, image) for wal in side.wals}
    delta.claims_changed = {series: None for side in (base, image) for series, _ in side.claims}
    delta.failovers_changed = {one.node_id: None for side in (base, image) for one in side.failovers}
    return delta


def at_offset(image: MetadataImage, offset: int, epoch: int) -> MetadataImage:
    """The same image further on in the log, past records that change nothing of it (control records)."""
    return replace(image, offset=offset, epoch=epoch)
