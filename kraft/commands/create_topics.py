"""Decides CreateTopics and CreatePartitions: Kafka's checks in Kafka's order, then topic, configuration,
partitions. Pure.

Replication is the store's: any replication factor from 1 up is taken, and every partition's one replica is
its leader, as it is recorded and shown. Not here: who may create (the broker). Kept true: each topic of a
request stands or falls alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from millrace.kraft.commands.decision import CreationRules, Decision
from millrace.kraft.commands.takers import takers_of
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.brokers import Broker
from millrace.kraft.tables.configs import ResourceType
from millrace.kraft.tables.topics import Topic, collision_key
from millrace.kraft.topic_configs import (
    TOPIC_CONFIGS,
    ConfigLookup,
    ConfigSource,
    as_stored,
    validate,
    validate_all,
)
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from millrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millrace.protocol.metadata_records import ConfigRecord, PartitionRecord, TopicRecord
from millrace.runtime.scheduling.yielding import Yielding, run_to_end

METADATA_TOPIC: Final = "__cluster_metadata"
# The partition that holds a key of these is found by their number of partitions.
COUNTED_TOPICS: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")
NAME_BYTES_MAX: Final = 249
# Between two pauses: two or three milliseconds.
TOPICS_PER_CHUNK: Final = 50
NAMES_PER_CHUNK: Final = 2000
PARTITIONS_PER_CHUNK: Final = 1000
REPLICAS_SHOWN_MAX: Final = 100  # in a refusal: a request may name one broker a million times
NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def decide_create_topics(
    image: MetadataImage, request: CreateTopicsRequest, rules: CreationRules
) -> Decision:
    return run_to_end(decide_create_topics_yielding(image, request, rules))


def decide_create_topics_yielding(
    image: MetadataImage, request: CreateTopicsRequest, rules: CreationRules
) -> Yielding[Decision]:
    """With a pause after every so many topics or partitions: the image is the same after it. A topic that is
    refused has its error in the response; none is raised."""
    named, counts, total = yield from count_yielding(request, rules)
    excess = excess_of(total, rules)
    decision = Decision(CreateTopicsResponse())
    batch = Creation(image, rules)
    for place, topic in enumerate(named.values(), 1):
        if place % TOPICS_PER_CHUNK == 0:
            yield
        try:
            if excess is not None:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, excess)
            if counts[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            result, records = yield from batch.create_yielding(topic)
            decision.records += [] if request.validate_only else records
        except KafkaError as error:
            result = CreatableTopicResult(topic.name, error_code=error.code, error_message=error.message)
        decision.response.topics.append(result)
    if request.validate_only:
        for result in decision.response.topics:
            result.topic_id = CreatableTopicResult().topic_id
    return decision


def count_yielding(
    request: CreateTopicsRequest, rules: CreationRules
) -> Yielding[tuple[dict[str, CreatableTopic], Counter[str], int]]:
    """Topics by name, how often each is named, and the partitions of all."""
    named: dict[str, CreatableTopic] = {}
    counts: Counter[str] = Counter()
    total = 0
    for place, topic in enumerate(request.topics, 1):
        if place % NAMES_PER_CHUNK == 0:
            yield
        named[topic.name] = topic
        counts[topic.name] += 1
        count = rules.partitions_default if topic.num_partitions == -1 else max(topic.num_partitions, 0)
        total += len(topic.assignments) or count
    return named, counts, total


def excess_of(total: int, rules: CreationRules) -> str | None:
    """As in Kafka, a request for too many partitions is refused whole."""
    if total <= rules.request_partitions_max:
        return None
    return (
        f"Excessively large number of partitions per request: {total}, above {rules.request_partitions_max}."
    )


class Creation:
    """One request's: names taken so far count for the next."""

    def __init__(self, image: MetadataImage, rules: CreationRules) -> None:
        self._image = image
        self._rules = rules
        self._brokers = takers_of(image)
        self._taken: dict[str, str] = {}  # collision key -> name
        # what holds for a topic that says nothing itself
        self._plain: list[CreatableTopicConfigs] | None = None

    def create_yielding(self, topic: CreatableTopic) -> Yielding[tuple[CreatableTopicResult, list[Any]]]:
        name = topic.name
        self._check_name(name)
        values = check_configs(topic)
        leaders = self._assigned(topic) if topic.assignments else self._chosen(topic)
        key = collision_key(name)
        if key is not None:
            self._taken[key] = name
        topic_id = self._rules.new_topic_id()
        records: list[Any] = [TopicRecord(name, topic_id)]
        records += [ConfigRecord(ResourceType.TOPIC, name, key, value) for key, value in values.items()]
        yield from add_partitions(records, topic_id, 0, leaders)
        configs = self._shown_configs(values)
        result = CreatableTopicResult(name, topic_id, 0, None, 0, len(leaders), 1, configs)
        return result, records

    def _shown_configs(self, own: dict[str, str]) -> list[CreatableTopicConfigs]:
        """What will hold for a topic with these values of its own. Topics share what they do not say
        themselves."""
        if self._plain is None:
            self._plain = shown_configs(self._image, self._rules.lookup)
        return [
            CreatableTopicConfigs(one.name, own[one.name], False, ConfigSource.TOPIC, False)
            if one.name in own
            else one
            for one in self._plain
        ]

    def _check_name(self, name: str) -> None:
        why = name_fault(name)
        if why is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
        if self._image.topics.by_name(name) is not None:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        key = collision_key(name)
        other = None if key is None else self._taken.get(key) or self._image.topics.collisions.get(key)
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
            )

    def _chosen(self, topic: CreatableTopic) -> list[Broker]:
        """The leaders of automatic placement: the brokers that take partitions in turn, beginning somewhere
        else for each topic."""
        factor, count = topic.replication_factor, topic.num_partitions
        if factor == 0 or factor < -1:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if count == 0 or count < -1:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        count = self._rules.partitions_default if count == -1 else count
        return place(self._brokers, count, len(self._image.topics) + len(self._taken))

    def _assigned(self, topic: CreatableTopic) -> list[Broker]:
        """The leaders of a manual placement: the first broker named for each partition."""
        if topic.replication_factor != -1:
            text = "A manual partition assignment was specified, but replication factor was not set to -1."
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if topic.num_partitions != -1:
            text = "A manual partition assignment was specified, but numPartitions was not set to -1."
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        indexes = [assignment.partition_index for assignment in topic.assignments]
        if len(set(indexes)) != len(indexes):
            text = "Found multiple manual partition assignments for one partition."
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        by_index = {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments}
        if sorted(by_index) != list(range(len(by_index))):
            text = "partitions should be a consecutive 0-based integer sequence"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        return check_assignments(self._image, [by_index[index] for index in range(len(by_index))])


def name_fault(name: str) -> str | None:
    """Why no topic may have this name."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return "Topic name is invalid: '.' or '..' is not allowed"
    if len(name) > NAME_BYTES_MAX:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length "
            f"{NAME_BYTES_MAX}"
        )
    if not NAME.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    if name == METADATA_TOPIC:
        return f"Topic name is invalid: '{name}' is the metadata log, which is no topic"
    return None


def check_configs(topic: CreatableTopic) -> dict[str, str]:
    """Of a configuration that is named again the last value counts, as in Kafka. Raises KafkaError
    INVALID_CONFIG for a name or a value that is not taken."""
    values: dict[str, str] = {}
    for name, value in {config.name: config.value for config in topic.configs}.items():
        why = validate(name, value)
        if why is not None or value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, why or "")
        values[name] = as_stored(name, value)
    why = validate_all(values)
    if why is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, why)
    return values


def check_assignments(image: MetadataImage, assigned: Sequence[Sequence[int]]) -> list[Broker]:
    """The leaders, one for each partition, of which each names as many brokers as the others. Else raises
    KafkaError INVALID_REPLICA_ASSIGNMENT."""
    leaders = [check_replicas(image, broker_ids) for broker_ids in assigned]
    for broker_ids in assigned:
        if len(broker_ids) != len(assigned[0]):
            text = (
                f"The manual partition assignment includes a partition with {len(broker_ids)} replica(s), "
                f"and one with {len(assigned[0])}."
            )
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return leaders


def check_replicas(image: MetadataImage, broker_ids: Sequence[int]) -> Broker:
    """The leader among the brokers named for a partition: all are registered and named once; the first usable
    one leads. Else raises KafkaError INVALID_REPLICA_ASSIGNMENT."""
    if not broker_ids:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes an empty replica list.",
        )
    brokers: dict[int, Broker] = {}
    for broker_id in broker_ids:
        if broker_id in brokers:
            shown = list(broker_ids[:REPLICAS_SHOWN_MAX])
            text = f"The manual partition assignment includes a broker more than once: {shown}."
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        broker = image.brokers.get(broker_id)
        if broker is None:
            text = (
                f"The manual partition assignment includes broker {broker_id}, but no such broker is "
                "registered."
            )
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        brokers[broker_id] = broker
    usable = [broker for broker in brokers.values() if broker.is_usable]
    if not usable:
        text = (
            "All brokers specified in the manual partition assignment are fenced or in controlled shutdown."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return usable[0]


def place(brokers: Sequence[Broker], count: int, first: int) -> list[Broker]:
    """Leaders in turn. Raises KafkaError INVALID_REPLICATION_FACTOR where no broker is usable."""
    if not brokers:
        text = "Unable to replicate the partition: no broker is registered and unfenced."
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    return [brokers[(first + index) % len(brokers)] for index in range(count)]


def partition_record(topic_id: bytes, index: int, leader: Broker) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=[leader.broker_id],
        isr=[leader.broker_id],
        leader=leader.broker_id,
        leader_epoch=0,
        partition_epoch=0,
        directories=[leader.directory],
    )


def add_partitions(
    records: list[Any], topic_id: bytes, first: int, leaders: Sequence[Broker]
) -> Yielding[None]:
    """The records of partitions from `first` on."""
    for start in range(0, len(leaders), PARTITIONS_PER_CHUNK):
        if start:
            yield
        part = leaders[start : start + PARTITIONS_PER_CHUNK]
        records += [
            partition_record(topic_id, first + start + place, leader) for place, leader in enumerate(part)
        ]


def shown_configs(image: MetadataImage, lookup: ConfigLookup) -> list[CreatableTopicConfigs]:
    """What holds for a topic without values of its own."""
    shown = []
    for name in TOPIC_CONFIGS:
        found = lookup.effective(image, "", name)
        shown.append(CreatableTopicConfigs(name, found.value, False, found.source, False))
    return shown


def decide_create_partitions(
    image: MetadataImage, request: CreatePartitionsRequest, rules: CreationRules
) -> Decision:
    return run_to_end(decide_create_partitions_yielding(image, request, rules))


def decide_create_partitions_yielding(
    image: MetadataImage, request: CreatePartitionsRequest, rules: CreationRules
) -> Yielding[Decision]:
    """A topic that is refused has its error in the response; none is raised."""
    decision = Decision(CreatePartitionsResponse())
    counts: Counter[str] = Counter()
    named: dict[str, CreatePartitionsTopic] = {}
    for place, topic in enumerate(request.topics, 1):
        if place % NAMES_PER_CHUNK == 0:
            yield
        counts[topic.name] += 1
        named[topic.name] = topic
    added = 0
    for place, topic in enumerate(named.values(), 1):
        if place % TOPICS_PER_CHUNK == 0:
            yield
        result = CreatePartitionsTopicResult(topic.name)
        try:
            if counts[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            records = yield from added_partitions(image, topic, rules.request_partitions_max - added)
            added += len(records)
            decision.records += [] if request.validate_only else records
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        decision.response.results.append(result)
    return decision


def added_partitions(
    image: MetadataImage, asked: CreatePartitionsTopic, count_max: int
) -> Yielding[list[Any]]:
    """Raises KafkaError for an unknown topic, a count that is no increase or above `count_max` more, a topic
    whose count is fixed."""
    topic = image.topics.by_name(asked.name)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    if asked.name in COUNTED_TOPICS:
        text = (
            f"The number of partitions of {asked.name} cannot be changed: the partition that holds a group's "
            "committed offsets "
            "is found by that number, and those stored so far would not be found any more."
        )
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, text)
    count = len(topic.partitions)
    if asked.count <= count:
        is_same = asked.count == count
        text = f"Topic already has {count} partition(s)."
        if not is_same:
            text = (
                f"The topic {asked.name} currently has {count} partition(s); {asked.count} would not be "
                "an increase."
            )
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, text)
    if asked.count - count > count_max:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    leaders = new_leaders(image, topic, asked, asked.count - count)
    records: list[Any] = []
    yield from add_partitions(records, topic.topic_id, count, leaders)
    return records


def new_leaders(image: MetadataImage, topic: Topic, asked: CreatePartitionsTopic, count: int) -> list[Broker]:
    """Raises KafkaError INVALID_REPLICA_ASSIGNMENT where the assignments do not fit,
    INVALID_REPLICATION_FACTOR where no broker is usable."""
    if asked.assignments is None:
        return place(takers_of(image), count, len(topic.partitions))
    if len(asked.assignments) != count:
        text = (
            f"Attempted to add {count} additional partition(s), "
            f"but only {len(asked.assignments)} assignment(s) were specified."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return check_assignments(image, [assignment.broker_ids for assignment in asked.assignments])
