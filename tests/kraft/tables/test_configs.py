"""AlterConfigs and IncrementalAlterConfigs, resource by resource."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millrace.kraft.commands.decision import ConfigRules
from millrace.kraft.tables.configs import ResourceType
from millrace.kraft.topic_configs import ConfigLookup
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages import alter_configs as whole
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.protocol.metadata_records import UnregisterBrokerRecord
from tests.kraft.check import check_image
from tests.kraft.tables.build import create, topic
from tests.kraft.test_replay import Machine

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
OK = ErrorCode.NONE
VOTER = 9  # a controller that is no broker


def check_broker(name: str, value: str | None, is_default: bool) -> None:
    """As a broker would judge: one key can be changed, one only for a single broker."""
    if name == "read.only":
        raise KafkaError(ErrorCode.INVALID_REQUEST, "read-only")
    if name == "per.broker" and is_default:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "per broker")
    if name not in ("log.cleanup.policy", "log.retention.ms", "per.broker"):
        raise KafkaError(ErrorCode.INVALID_CONFIG, "unknown")


def check_other(resource_type: int, values: Mapping[str, str]) -> None:
    """As a broker would judge all that a group or client metrics would have: one key is known."""
    if values.keys() - {"known"}:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG if resource_type == GROUP else ErrorCode.INVALID_REQUEST, "unknown"
        )


def made() -> Machine:
    machine = Machine()
    machine.configs = ConfigRules(ConfigLookup(1), check_broker, check_other, VOTER.__eq__)
    create(machine, topic("t", 1, retention_ms="5"))
    return machine


def alter(
    machine: Machine, kind: int, name: str, *configs: tuple[str, int, str | None], dry: bool = False
) -> ErrorCode:
    request = IncrementalAlterConfigsRequest(
        [AlterConfigsResource(kind, name, [AlterableConfig(*one) for one in configs])], dry
    )
    (result,) = machine.do(request).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert (result.error_message is None) == (result.error_code == 0)
    check_image(machine.image)
    return ErrorCode(result.error_code)


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (TOPIC, "t", ("segment.ms", SET, "10"), OK),
        (TOPIC, "t", ("segment.ms", SET, "0"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("segment.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("segment.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("segment.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("no.such", DELETE, None), OK),
        (TOPIC, "t", ("cleanup.policy", APPEND, "compact"), OK),
        (TOPIC, "t", ("cleanup.policy", APPEND, "crush"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "no", ("segment.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "", ("log.retention.ms", SET, "10"), OK),
        (BROKER, "1", ("log.retention.ms", SET, "10"), OK),
        (BROKER, "1", ("log.cleanup.policy", APPEND, "compact"), OK),
        (TOPIC, "", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("log.retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (BROKER, "", ("per.broker", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("read.only", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (BROKER, "one", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "²", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "7", ("log.retention.ms", SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "7", ("log.retention.ms", DELETE, None), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "01", ("log.retention.ms", SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "9" * 5_000, ("log.retention.ms", SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, str(VOTER), ("log.retention.ms", SET, "10"), OK),
        (GROUP, "g", ("known", SET, "50000"), OK),
        (GROUP, "g", ("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (GROUP, "", ("known", SET, "1"), ErrorCode.INVALID_REQUEST),
        (METRICS, "m", ("known", SET, "a,b"), OK),
        (METRICS, "m", ("known", APPEND, "a"), ErrorCode.INVALID_CONFIG),
        (METRICS, "m", ("no.such", SET, "1"), ErrorCode.INVALID_REQUEST),
        (LOGGER, "1", ("kafka", SET, "DEBUG"), ErrorCode.INVALID_REQUEST),
        (0, "x", ("a", SET, "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_one_change(kind: int, name: str, change: tuple[str, int, str | None], code: ErrorCode) -> None:
    """Kafka's code for each fault; a refused or only validated change leaves no trace."""
    machine = made()
    before = machine.image
    assert alter(machine, kind, name, change, dry=True) is code
    assert machine.image is before
    assert alter(machine, kind, name, change) is code
    if code is OK and change[1] == SET:
        assert machine.image.configs.of(kind, name)[change[0]] == change[2]
    elif code is not OK:
        assert machine.image is before


def test_what_is_set_for_a_node_that_is_gone_can_be_taken_away() -> None:
    """A broker is unregistered, and leaves what was set for it; another is not made up so."""
    machine = made()
    assert alter(machine, BROKER, "1", ("log.retention.ms", SET, "10")) is OK
    machine.commit([UnregisterBrokerRecord(1, machine.epoch)])
    assert alter(machine, BROKER, "1", ("log.retention.ms", DELETE, None)) is OK
    assert not machine.image.configs.of(BROKER, "1")
    assert alter(machine, BROKER, "1", ("log.retention.ms", SET, "10")) is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_blanks_around_a_value_are_not_stored() -> None:
    """' gzip ' is taken, as by Kafka, and has to be obeyed by who looks for 'gzip'."""
    machine = made()
    assert alter(machine, TOPIC, "t", ("compression.type", SET, " gzip ")) is OK
    assert machine.image.configs.topic("t")["compression.type"] == "gzip"
    assert alter(machine, BROKER, "1", ("log.retention.ms", SET, " 10 ")) is OK
    assert machine.image.configs.of(BROKER, "1")["log.retention.ms"] == "10"


def test_lists_grow_and_shrink() -> None:
    """From what holds, default included; what is there already is not added again."""
    machine = made()
    assert alter(machine, TOPIC, "t", ("cleanup.policy", APPEND, "compact,delete")) is OK
    assert machine.image.configs.topic("t")["cleanup.policy"] == "delete,compact"
    assert alter(machine, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete,nothing")) is OK
    assert machine.image.configs.topic("t")["cleanup.policy"] == "compact"
    assert alter(machine, TOPIC, "t", ("cleanup.policy", SUBTRACT, "compact")) is OK
    assert machine.image.configs.topic("t")["cleanup.policy"] == ""


def test_a_resource_is_changed_whole_or_not_at_all() -> None:
    """One bad key refuses the good ones; a key twice is refused; values that contradict one another too."""
    machine = made()
    before = machine.image
    assert alter(machine, TOPIC, "t", ("segment.ms", SET, "9"), ("no", SET, "1")) is ErrorCode.INVALID_CONFIG
    assert (
        alter(machine, TOPIC, "t", ("segment.ms", SET, "9"), ("segment.ms", DELETE, ""))
        is ErrorCode.INVALID_REQUEST
    )
    lags = ("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")
    assert alter(machine, TOPIC, "t", *lags) is ErrorCode.INVALID_CONFIG
    assert machine.image is before


def test_resources_stand_or_fall_alone() -> None:
    """A resource named twice fails; another one passes."""
    machine = made()
    change = [AlterableConfig("segment.ms", SET, "10")]
    twice = AlterConfigsResource(TOPIC, "t", change)
    group = AlterConfigsResource(GROUP, "g", [AlterableConfig("known", SET, "45000")])
    results = machine.do(IncrementalAlterConfigsRequest([twice, twice, group])).responses
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST, 0]


def test_what_changes_nothing_is_not_written() -> None:
    """The same value again makes no record."""
    machine = made()
    before = machine.image
    assert alter(machine, TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", DELETE, "")) is OK
    assert machine.image is before
    assert alter(machine, TOPIC, "t", ("retention.ms", DELETE, "")) is OK
    assert (ResourceType.TOPIC, "t") not in machine.image.configs.by_resource


def test_replacing_all_values() -> None:
    """AlterConfigs leaves what it names and nothing else; null is no value, as Kafka says it."""
    machine = made()

    def replace_all(*configs: tuple[str, str | None]) -> int:
        resource = whole.AlterConfigsResource(TOPIC, "t", [whole.AlterableConfig(*one) for one in configs])
        code: int = machine.do(whole.AlterConfigsRequest([resource])).responses[0].error_code
        return code

    assert replace_all(("segment.ms", "7")) == 0
    assert replace_all(("segment.ms", "8"), ("retention.bytes", None)) == ErrorCode.INVALID_REQUEST
    assert dict(machine.image.configs.topic("t")) == {"segment.ms": "7"}
    assert replace_all(("segment.ms", "7"), ("segment.ms", "8")) == ErrorCode.INVALID_REQUEST
    assert replace_all(("no", "7")) == ErrorCode.INVALID_CONFIG
    assert dict(machine.image.configs.topic("t")) == {"segment.ms": "7"}
    assert replace_all() == 0
    assert dict(machine.image.configs.topic("t")) == {}
