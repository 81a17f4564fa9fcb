"""Decides AlterConfigs and IncrementalAlterConfigs for topics, brokers, groups and client metrics. Pure.

Each resource stands or falls alone. A request is decided in steps, by all that may be many in it: resources,
keys of one, what long values hold. A topic's values are checked here; a broker's by what the broker package
hands in (`BrokerConfigCheck`), since it knows its keys, and so are a group's and client metrics'
(`OtherConfigCheck`), all that would be set together. Not here: broker loggers (each broker's own), what
values do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar

from millrace.kraft.commands.decision import ConfigRules, Decision
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.configs import ResourceType, Values
from millrace.kraft.topic_configs import as_stored, is_list, validate, validate_all
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages import alter_configs as whole
from millrace.protocol.messages import incremental_alter_configs as incremental
from millrace.protocol.metadata_records import ConfigRecord
from millrace.runtime.scheduling.yielding import Yielding, run_to_end

T = TypeVar("T")
WEIGHT_PER_CHUNK: Final = 500  # resources and values between two pauses: two or three milliseconds
CHARS_A_WEIGHT: Final = 50  # of a value, which may be a list of thousands
NAMES_PER_CHUNK: Final = 5_000  # that are only looked for twice
DIGITS_MAX: Final = 10  # of a node's id
BROKER_LISTS: Final = frozenset(
    (
        "cordoned.log.dirs",
        "listeners",
        "log.cleanup.policy",
        "metric.reporters",
        "sasl.enabled.mechanisms",
        "sasl.kerberos.principal.to.local.rules",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
    )
)
# Kinds of which there is no default that all share.
NAMED_KINDS: Final[dict[int, str]] = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.CLIENT_METRICS: "client metrics",
}


class Operation(IntEnum):
    """Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def decide_incremental_alter_configs(
    image: MetadataImage, request: incremental.IncrementalAlterConfigsRequest, rules: ConfigRules
) -> Decision:
    return run_to_end(decide_incremental_alter_configs_yielding(image, request, rules))


def decide_incremental_alter_configs_yielding(
    image: MetadataImage, request: incremental.IncrementalAlterConfigsRequest, rules: ConfigRules
) -> Yielding[Decision]:
    decision = Decision(incremental.IncrementalAlterConfigsResponse())
    return _decide(decision, image, request, rules, incremental.AlterConfigsResourceResponse, Change.alter)


def decide_alter_configs(
    image: MetadataImage, request: whole.AlterConfigsRequest, rules: ConfigRules
) -> Decision:
    return run_to_end(decide_alter_configs_yielding(image, request, rules))


def decide_alter_configs_yielding(
    image: MetadataImage, request: whole.AlterConfigsRequest, rules: ConfigRules
) -> Yielding[Decision]:
    decision = Decision(whole.AlterConfigsResponse())
    return _decide(decision, image, request, rules, whole.AlterConfigsResourceResponse, Change.replace)


def _decide(
    decision: Decision,
    image: MetadataImage,
    request: Any,
    rules: ConfigRules,
    result_type: Callable[[int, str | None, int, str], Any],
    apply: Callable[[Change, Any, Pace], Yielding[None]],
) -> Yielding[Decision]:
    """`apply` is what the API does with a resource's configs. A pause after every so many: the image is the
    same after it."""
    resources, again = yield from by_key(
        request.resources, lambda one: (one.resource_type, one.resource_name)
    )
    pace = Pace()
    for resource in resources.values():
        if pace.is_spent(1):
            yield
        change = Change(image, rules, resource.resource_type, resource.resource_name)
        result = result_type(0, None, resource.resource_type, resource.resource_name)
        try:
            change.check_resource(again)
            yield from apply(change, resource.configs, pace)
            decision.records += [] if request.validate_only else change.records()
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        decision.response.responses.append(result)
    return decision


def by_key(
    items: Sequence[T], key: Callable[[T], Hashable]
) -> Yielding[tuple[dict[Hashable, T], set[Hashable]]]:
    """The last item of each key, and the keys that several have."""
    last: dict[Hashable, T] = {}
    again: set[Hashable] = set()
    for start in range(0, len(items), NAMES_PER_CHUNK):
        if start:
            yield
        for item in items[start : start + NAMES_PER_CHUNK]:
            named = key(item)
            if named in last:
                again.add(named)
            last[named] = item
    return last, again


class Pace:
    """How much was decided since the last pause of a request."""

    def __init__(self) -> None:
        self._weight = 0

    def is_spent(self, weight: int) -> bool:
        """A pause is due before what weighs so much."""
        self._weight += weight
        if self._weight <= WEIGHT_PER_CHUNK:
            return False
        self._weight = 0
        return True

    def is_spent_by(self, config: Any) -> bool:
        """The same of a configuration, by the length of its value."""
        return self.is_spent(1 + len(config.value or "") // CHARS_A_WEIGHT)


class Change:
    """What one resource would have set afterwards."""

    def __init__(self, image: MetadataImage, rules: ConfigRules, resource_type: int, name: str) -> None:
        self._image = image
        self._rules = rules
        self._type = resource_type
        self._name = name
        self._before: Values = image.configs.of(resource_type, name)
        self._after: dict[str, str] = dict(self._before)

    def records(self) -> list[ConfigRecord]:
        changed = [
            ConfigRecord(self._type, self._name, key, value)
            for key, value in self._after.items()
            if self._before.get(key) != value
        ]
        removed = [
            ConfigRecord(self._type, self._name, key, None) for key in self._before if key not in self._after
        ]
        return changed + removed

    def check_resource(self, again: Collection[Hashable]) -> None:
        """`again`: those that the request names more than once. Raises KafkaError where the resource is
        repeated, unknown, or of a type that has no configs."""
        if (self._type, self._name) in again:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        if not self._name and self._type in NAMED_KINDS:
            text = f"Default {NAMED_KINDS[self._type]} resources are not allowed."
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if self._type == ResourceType.TOPIC:
            if self._image.topics.by_name(self._name) is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{self._name}' does not exist."
                )
        elif self._type == ResourceType.BROKER:
            self._check_node()
        elif self._type not in NAMED_KINDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {self._type}")

    def _check_node(self) -> None:
        """What was set for a node that was unregistered since can still be taken away."""
        name = self._name
        if name and not (name.isascii() and name.isdigit()):
            text = f"Unable to parse broker name as a base 10 number: {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if name and not self._before and not self._is_known(name):
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {name} found.")

    def _is_known(self, name: str) -> bool:
        node_id = int(name[:DIGITS_MAX])
        is_there = self._image.brokers.get(node_id) is not None or self._rules.is_voter(node_id)
        return is_there and name == str(node_id)

    def alter(self, configs: Sequence[incremental.AlterableConfig], pace: Pace) -> Yielding[None]:
        """Raises KafkaError for a key that is repeated, has no value, or is refused by the rules."""
        _, again = yield from by_key(configs, lambda config: config.name)
        for config in configs:
            if pace.is_spent_by(config):
                yield
            if config.name in again:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {config.name}"
                )
            if config.config_operation != Operation.DELETE and config.value is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {config.name}")
            self._alter(config)
        self._check_together()

    def replace(self, configs: Sequence[whole.AlterableConfig], pace: Pace) -> Yielding[None]:
        """What is not named goes back to its default. Raises KafkaError as `alter` does."""
        _, again = yield from by_key(configs, lambda config: config.name)
        self._after = {}
        for config in configs:
            if pace.is_spent_by(config):
                yield
            if config.name in again:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {config.name}"
                )
            if config.value is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {config.name}")
            self._put(config.name, config.value)
        for name in self._before:
            if name not in self._after and self._type == ResourceType.BROKER:
                self._rules.check_broker_config(name, None, not self._name)
        self._check_together()

    def _alter(self, config: incremental.AlterableConfig) -> None:
        operation, name, value = config.config_operation, config.name, config.value or ""
        if operation == Operation.SET:
            self._put(name, value)
        elif operation == Operation.DELETE:
            self._remove(name)
        elif operation in (Operation.APPEND, Operation.SUBTRACT):
            if not self._is_list(name):
                word = Operation(operation).name
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG, f"Can't {word} to key {name} because its type is not LIST."
                )
            items, given = self._items(name), [item.strip() for item in value.split(",")]
            if operation == Operation.APPEND:
                held = set(items)
                items += [item for item in given if item not in held]
            else:
                taken = set(given)
                items = [item for item in items if item not in taken]
            self._put(name, ",".join(items))
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {operation}")

    def _items(self, name: str) -> list[str]:
        """A list as it holds now, for a change of it."""
        value = self._after.get(name)
        if value is None and self._type == ResourceType.TOPIC:
            value = self._rules.lookup.effective(self._image, self._name, name).value
        elif value is None and self._type == ResourceType.BROKER:
            value = self._rules.lookup.broker_default(name)
        return [item.strip() for item in value.split(",")] if value else []

    def _is_list(self, name: str) -> bool:
        if self._type == ResourceType.TOPIC:
            return is_list(name)
        return self._type == ResourceType.BROKER and name in BROKER_LISTS

    def _put(self, name: str, value: str) -> None:
        self._check(name, value)
        if self._type == ResourceType.TOPIC:
            value = as_stored(name, value)
        self._after[name] = value.strip() if self._type == ResourceType.BROKER else value

    def _remove(self, name: str) -> None:
        """A key that is not known, or not set, may be removed all the same."""
        if self._type == ResourceType.BROKER:
            self._rules.check_broker_config(name, None, not self._name)
        self._after.pop(name, None)

    def _check(self, name: str, value: str) -> None:
        if self._type == ResourceType.TOPIC:
            why = validate(name, value)
            if why is not None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, why)
        elif self._type == ResourceType.BROKER:
            self._rules.check_broker_config(name, value, not self._name)

    def _check_together(self) -> None:
        if self._type in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
            self._rules.check_other_config(self._type, self._after)
        why = validate_all(self._after) if self._type == ResourceType.TOPIC else None
        if why is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, why)
