"""Our codec against the serializers of Kafka itself, in a JVM.

Each message is drawn at random, its edges often, and encoded by us. Java must read all of it, give each field
the value that it has here (compared as JSON, by Kafka's field names), and write the same bytes: from what it
read, and from the JSON. One JVM takes all of them.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from millrace.protocol import control_records, coordinator_records, metadata_records
from millrace.protocol.apis import KAFKA
from millrace.protocol.compile import decoder, encoder
from millrace.protocol.declare import WireField, WireType, wire_fields
from tests.compat.jvm import kafka_version, run_source
from tests.protocol.values import build

DRAWS = 4
CLIENTS = "org.apache.kafka.common.message."
# What came with Kafka 4.4; the jars are older.
NEW_IN_44 = {
    ("ApiVersions", 5),
    ("TxnOffsetCommit", 6),
    ("DeleteGroups", 3),
    ("StreamsGroupHeartbeat", 1),
    ("StreamsGroupDescribe", 1),
    ("StreamsGroupTopologyDescriptionUpdate", 0),
    ("UnregisterController", 0),
}
NEW_RECORDS_IN_44 = {("UnregisterControllerRecord", 0)}
# Kafka's names that ours do not spell: some with an odd capital, two that 4.4 renamed.
ODD_NAMES = {
    "KRaftVersionRecord.kraftVersion": "kRaftVersion",
    "UpdateRaftVoterRequest.kraftVersionFeature": "kRaftVersionFeature",
    "VotersVoter.kraftVersionFeature": "kRaftVersionFeature",
    "StreamsGroupHeartbeatResponse.acceptableRecoveryLagLegacy": "acceptableRecoveryLag",
    "TxnOffsetCommitRequest.generationIdOrMemberEpoch": "generationId",
}


@dataclass
class Case:
    java_class: str
    kind: type[Any]
    version: int
    message: Any
    raw: bytes
    answer: str = ""

    def __str__(self) -> str:
        return f"{self.kind.__name__} v{self.version} {self.raw.hex()}"


def kinds() -> Iterator[tuple[str, type[Any]]]:
    """Every declared message and record that Kafka has, and its Java class."""
    for api in KAFKA:
        for kind in (api.request_type, api.response_type):
            yield f"{CLIENTS}{kind.__name__}Data", kind
    packages = {
        metadata_records: "org.apache.kafka.common.metadata.",
        coordinator_records: "org.apache.kafka.coordinator.group.generated.",
        control_records: CLIENTS,
    }
    for module, package in packages.items():
        for name, kind in vars(module).items():
            if hasattr(kind, "VERSIONS") and kind.__module__ == module.__name__:
                yield (CLIENTS if name.startswith("ConsumerProtocol") else package) + name, kind


@cache
def cases() -> list[Case]:
    found = []
    for java_class, kind in kinds():
        for version in kind.VERSIONS:
            for draw in range(DRAWS):
                message = build(Random(f"{kind.__name__} {version} {draw}"), kind, version)
                found.append(Case(java_class, kind, version, message, encoder(kind, version)(message)))
    given = "".join(f"{case.java_class} {case.version} {case.raw.hex()}\n" for case in found)
    answers = run_source("Codec.java", given).splitlines()
    assert len(answers) == len(found)
    for case, answer in zip(found, answers, strict=True):
        case.answer = answer
    return found


def json_of(message: Any, kind: type[Any], version: int) -> dict[str, Any]:
    """A message as Kafka's JSON converters show it. Tagged fields that have their default are left out."""
    shown = {}
    for field in wire_fields(kind):
        value = getattr(message, field.name)
        if not field.is_in(version) or (field.presence.tag is not None and value == field.default):
            continue
        name = camel(kind, field)
        if field.type.kind == "records" and value is not None:
            shown[f"{name}SizeInBytes"] = len(value)
        else:
            shown[name] = json_value(value, field.type, version)
    return shown


def camel(kind: type[Any], field: WireField) -> str:
    head, *tail = field.name.rstrip("_").split("_")
    name = head + "".join(word.capitalize() for word in tail)
    return ODD_NAMES.get(f"{kind.__name__}.{name}", name)


def json_value(value: Any, wire: WireType, version: int) -> Any:
    if value is None:
        return None
    if wire.kind == "struct":
        assert wire.structure is not None
        return json_of(value, wire.structure, version)
    if wire.kind == "array":
        assert wire.element is not None
        return [json_value(item, wire.element, version) for item in value]
    if wire.kind == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if wire.kind == "bytes":
        return base64.b64encode(value).decode()
    if wire.kind == "float64" and math.isinf(value):
        return "Infinity"
    return value


def holds_records(shown: str) -> bool:
    """JSON carries the size of records only, so nothing can be written from it."""
    return 'SizeInBytes":' in shown


def test_java_knows_every_message_but_those_of_a_later_release() -> None:
    """The comparison cannot shrink to nothing unseen: what the jars do not have is named here."""
    assert kafka_version() == "4.3.1"
    unknown = {(case.kind.__name__, case.version) for case in cases() if case.answer == "unsupported"}
    later = {(name + side, version) for name, version in NEW_IN_44 for side in ("Request", "Response")}
    assert unknown == later | NEW_RECORDS_IN_44
    assert len(cases()) > 2500


def test_java_writes_the_same_bytes() -> None:
    """From what it read, and from the JSON of it."""
    for case in cases():
        if case.answer == "unsupported":
            continue
        verdict, *parts = case.answer.split("\t")
        assert verdict == "ok", f"{parts} for {case}"
        assert parts[0] == case.raw.hex(), case
        if not holds_records(parts[2]):
            assert parts[1] == case.raw.hex(), case


def test_java_gives_each_field_the_same_value() -> None:
    """By Kafka's own field names; and what Java wrote, we read as what it was."""
    for case in cases():
        if case.answer == "unsupported":
            continue
        _, written, _, shown = case.answer.split("\t")
        assert json.loads(shown) == json_of(case.message, case.kind, case.version), case
        again, end = decoder(case.kind, case.version)(bytes.fromhex(written), 0)
        assert (again, end) == (case.message, len(case.raw)), case
