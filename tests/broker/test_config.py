"""Settings: the properties syntax, the environment, precedence, every mistake at once, and what comes of it
all."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.config import BrokerSettings, Loaded, load, reference
from millrace.broker.errors import SettingsInvalid
from millrace.broker.settings.checks import MIB, split_memory
from millrace.broker.settings.key import (
    BOOLEAN,
    DOUBLE,
    LIST,
    OBEYED,
    PASSWORD,
    REFUSED,
    STORED,
    STRING,
    Key,
)
from millrace.broker.settings.source import PropertiesInvalid, env_key, gather, parse_properties
from millrace.broker.settings.table import OBEYED_KEYS, REMOVED, all_keys
from millrace.broker.settings.values import Values, without_secrets
from millrace.kraft.config import RaftSettings, raft_settings, static_voters
from millrace.kraft.log.voters_in_log import FIRST_CHECKPOINT, has_voters_in_log
from millrace.kraft.topic_configs import SYNONYM_KEYS
from millrace.runtime.objectstore.address import SECRETS
from millrace.wal.config import parse_bytes

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30


def make(
    *overrides: str, env: dict[str, str] | None = None, text: str | None = None, machine_bytes: int = 4 * GIB
) -> Loaded:
    given, mistakes = gather(overrides, env or {}, text, "server.properties")
    return load(given, data_dir="/data", machine_bytes=machine_bytes, mistakes=mistakes)


def mistakes_of(
    *overrides: str, env: dict[str, str] | None = None, text: str | None = None
) -> tuple[str, ...]:
    with pytest.raises(SettingsInvalid) as found:
        make(*overrides, env=env, text=text)
    return found.value.mistakes


# The properties syntax


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=b", [("a", "b")]),
        ("a = b ", [("a", "b ")]),
        ("a:b", [("a", "b")]),
        ("a b", [("a", "b")]),
        ("a\t:\tb", [("a", "b")]),
        ("a==b", [("a", "=b")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("  # comment\n! comment\n\n \t\na=1", [("a", "1")]),
        ("a=# no comment", [("a", "# no comment")]),
        ("a=1\\\n  ,2\\\n  ,3", [("a", "1,2,3")]),
        ("a=1\\\n# not a comment", [("a", "1# not a comment")]),
        ("a=1\\\\\nb=2", [("a", "1\\"), ("b", "2")]),
        ("a=1\\", [("a", "1")]),
        ("a\\=b=c", [("a=b", "c")]),
        ("a\\ b=c", [("a b", "c")]),
        ("a\\:b\\u0041=\\t\\n\\r\\f\\q", [("a:bA", "\t\n\r\fq")]),
        ("a=\\ud83d\\ude00", [("a", "\U0001f600")]),
        ("a=1\r\nb=2\rc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("\ufeffa=1", [("a", "1")]),
        ("=x", [("", "x")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, pairs: list[tuple[str, str]]) -> None:
    """Comments, continuations, escapes and all three separators."""
    assert [(key, value) for key, value, _ in parse_properties(text)] == pairs


def test_lines_are_counted_for_people() -> None:
    """A continued line has the number of its first one."""
    assert [line for _, _, line in parse_properties("# x\na=1\\\n2\n\nb=3")] == [2, 5]


def test_a_broken_escape_is_a_mistake_of_the_file() -> None:
    """Unicode escapes need four hexadecimal digits; the line is named."""
    with pytest.raises(PropertiesInvalid, match="line 2"):
        parse_properties("a=1\nb=\\u00g0")
    assert any("line 1" in mistake for mistake in mistakes_of(text="a=\\u1"))


@pytest.mark.parametrize(
    "place", ["--override", "environment, KAFKA_BROKER_RACK", "server.properties, line 1"]
)
def test_what_is_not_utf8_is_a_mistake(place: str) -> None:
    """Bytes of the command line or the environment, and half a letter of a file: no client could be shown
    them."""
    overrides, env, text = ["broker.rack=\udcff"], {"KAFKA_BROKER_RACK": "\udcff"}, "broker.rack=\\ud800"
    given = [
        overrides if place == "--override" else [],
        env if place.startswith("env") else {},
        text if place.startswith("server") else "",
    ]
    _, mistakes = gather(given[0], given[1], given[2], "server.properties")
    assert [mistake for mistake in mistakes if mistake.endswith(f"is not UTF-8 ({place})")] == mistakes != []


# The environment and precedence


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("KAFKA_NODE_ID", "node.id"),
        ("KAFKA_LOG_DIRS", "log.dirs"),
        ("KAFKA_A__B___C_D", "a_b-c.d"),
        ("KAFKA_Log_Retention_MS", "log.retention.ms"),
        ("CLUSTER_ID", "cluster.id"),
        ("KAFKA_OPTS", None),
        ("KAFKA_HEAP_OPTS", None),
        ("KAFKA_JVM_PERFORMANCE_OPTS", None),
        ("KAFKA_LOG4J_OPTS", None),
        ("KAFKA_LOG4J_ROOT_LOGLEVEL", None),
        ("KAFKA_GC_LOG_OPTS", None),
        ("KAFKA_JMX_PORT", None),
        ("KAFKA_HOME", None),
        ("KAFKA_SERVICE_HOST", None),
        ("KAFKA_PORT_9092_TCP_ADDR", None),
        ("KAFKA_PORT", None),
        ("KAFKA_", None),
        ("PATH", None),
    ],
)
def test_environment_variables_stand_for_keys(name: str, key: str | None) -> None:
    """Kafka's image's rule; what its scripts and Kubernetes set stands for nothing."""
    assert env_key(name) == key


def test_the_strongest_source_wins() -> None:
    """Override over environment over file over default, key by key."""
    text = "num.partitions=2\nfetch.max.bytes=2000\ngroup.max.size=2"
    env = {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_FETCH_MAX_BYTES": "3000"}
    settings = make("num.partitions=4", env=env, text=text).settings
    assert (
        settings.controller.partitions_default,
        settings.fetch.response_bytes_max,
        settings.groups.members_max,
    ) == (
        4,
        3000,
        2,
    )
    sources = {
        name: settings.shown[name].source
        for name in ("num.partitions", "fetch.max.bytes", "group.max.size", "node.id")
    }
    assert list(sources.values()) == ["override", "env", "file", "default"]


def test_the_last_line_of_a_file_wins() -> None:
    """A key given twice in one file has its last value, as in Java."""
    assert make(text="num.partitions=2\nnum.partitions=5").settings.controller.partitions_default == 5


# Mistakes and warnings


def test_all_mistakes_are_reported_at_once() -> None:
    """Syntax, values, bounds and relations: every mistake is in one report, with where it was given."""
    found = mistakes_of(
        "num.partitions=0",
        "nonsense",
        "auto.create.topics.enable=yes",
        "group.min.session.timeout.ms=10000",
        "group.max.session.timeout.ms=9000",
        env={"KAFKA_FETCH_MAX_BYTES": "lots"},
        text="\nlog.segment.bytes=1",
    )
    assert [
        next((word for word in ("nonsense", *all_keys()) if word in mistake), "?") for mistake in found
    ] == [
        "nonsense",
        "log.segment.bytes",
        "fetch.max.bytes",
        "num.partitions",
        "auto.create.topics.enable",
        "group.min.session.timeout.ms",
    ]
    assert "server.properties, line 2" in found[1]
    assert "KAFKA_FETCH_MAX_BYTES" in found[2]
    assert "--override" in found[3]


def test_a_mistake_hides_no_warning() -> None:
    """Keys that nobody knows, idle ones and options that nobody reads are told with the mistakes: one start
    finds all there is to mend."""
    with pytest.raises(SettingsInvalid) as found:
        make(
            "num.partitions=0",
            "foo=bar",
            "log.retention.hour=3",
            "num.io.threads=9",
            "s3.wal.path=0@file:///wal?capactiy=1GiB",
        )
    assert [mistake.partition("=")[0] for mistake in found.value.mistakes] == ["num.partitions"]
    assert list(found.value.warnings) == [
        "unknown key foo (--override) has no effect",
        "unknown key log.retention.hour (--override) has no effect; did you mean log.retention.hours?",
        "without effect here, stored and shown: num.io.threads",
        "unknown option capactiy in s3.wal.path has no effect; did you mean capacity?",
    ]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("log.message.timestamp.type=Wall", "CreateTime"),
        ("log.cleanup.policy=delete,burn", "burn"),
        ("log.dirs=a,,b", "empty element"),
        ("num.partitions=2147483648", "does not fit int"),
        ("offsets.topic.replication.factor=40000", "does not fit short"),
        ("memory.max.bytes=12 parsecs", "whole number"),
        ("wal.direct.io=maybe", "prefer"),
        ("wal.corruption=maybe", "refuse"),
        ("admin.listener=nowhere", "HOST:PORT"),
        ("cluster.id=short", "22 characters"),
        ("s3.data.buckets=s3://bucket", "bucket's id"),
        ("s3.wal.path=0@file:///wal?capacity=big", "capacity"),
        ("s3.wal.path=0@file:///wal?capacity=4KiB", "256 KiB"),
        ("s3.wal.path=0@file:///wal?iops=few", "iops=few"),
        ("s3.wal.path=0@file:///wal?iops=3", "at least 10"),
        ("s3.wal.path=0@file:///wal?iodepth=99", "1..32"),
        ("s3.wal.path=0@s3://b?maxBytesInBatch=1KiB", "64 KiB"),
        ("s3.wal.path=0@s3://b?batchInterval=soon", "batchInterval=soon"),
        ("s3.wal.path=0@s3://b?fence=wire", "conditional or reservation"),
        ("s3.wal.path=0@file:///wal?kind=ring", "neither block nor object"),
        ("s3.wal.path=0@s3://b?kind=block", "the one kind of log that a store holds"),
        ("max.connections.per.ip.overrides=10.0.0.1", "ADDRESS:COUNT"),
        ("listeners=A://h", "HOST:PORT"),
        ("listeners=PLAINTEXT://:1,PLAINTEXT://:2", "twice"),
        ("listeners=SSL://:1", "PLAINTEXT only"),
        ("listeners=INSIDE://:1", "no protocol"),
        ("listener.security.protocol.map=PLAINTEXT", "NAME:PROTOCOL"),
        ("advertised.listeners=OTHER://h:1", "not in listeners"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:1", "every address"),
        ("controller.listener.names=PLAINTEXT", "no listener to clients"),
        ("controller.quorum.voters=1@a:1,1@b:1", "node 1 twice"),
        ("controller.quorum.voters=7@a:1", "this node"),
        ("controller.quorum.voters=a:1", "ID@HOST:PORT"),
        ("controller.quorum.bootstrap.servers=a:1,b:1", "in controller.quorum.voters"),
        ("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "everybody"),
        ("security.inter.broker.protocol=SSL", "plain text"),
        ("config.providers=file", "as they stand"),
        ("memory.max.bytes=64MiB", "128 MiB"),
        ("broker.session.timeout.ms=1999", "two of broker.heartbeat.interval.ms=1000"),
        ("states.memory.max.bytes=1000", "1 MiB"),
    ],
)
def test_what_cannot_be_is_one_mistake(override: str, word: str) -> None:
    """Each wrong value alone is exactly one mistake, which names the key and the reason."""
    (mistake,) = mistakes_of(override)
    assert override.partition("=")[0] in mistake
    assert word in mistake


BUCKET = "s3.data.buckets=0@s3://lake"
CONTROLLER = (
    "process.roles=controller",
    BUCKET,
    "controller.quorum.voters=1@a:1,2@b:2,3@[::1]:3",
    "node.id=3",
)
OF_CLUSTER = "cluster.id=bWlsbHJhY2UtdGVzdC0wMQ"


def test_a_controller_among_several_voters() -> None:
    """It listens where the voters say that it is, and serves no clients."""
    settings = make(*CONTROLLER, OF_CLUSTER).settings
    assert not settings.is_broker
    assert settings.quorum.voters == {1: ("a", 1), 2: ("b", 2), 3: ("::1", 3)}
    assert settings.controller.voters == (1, 2, 3)
    assert settings.listeners.clients == ()
    assert [str(one) for one in settings.listeners.controllers] == ["CONTROLLER://[::1]:3"]
    elsewhere = make(*CONTROLLER, OF_CLUSTER, "listeners=C://:7", "controller.listener.names=C").settings
    assert [str(one) for one in elsewhere.listeners.controllers] == ["C://:7"]


OF_BROKER = (
    "process.roles=broker",
    BUCKET,
    "controller.quorum.voters=1@a:1,2@b:2,3@c:3",
    OF_CLUSTER,
    "node.id=9",
)


def test_a_broker_beside_controllers() -> None:
    settings = make(*OF_BROKER).settings
    assert (settings.is_broker, settings.is_controller) == (True, False)
    assert settings.controller.voters == (1, 2, 3)
    assert [str(one) for one in settings.listeners.clients] == ["PLAINTEXT://127.0.0.1:9092"]
    assert make(*OF_BROKER, "broker.session.timeout.ms=4000").settings.controller.session_ms == 4000
    assert make("broker.session.timeout.ms=4000").settings.controller.session_ms is None


OF_BOTH = (BUCKET, CONTROLLER[2], OF_CLUSTER)


def test_a_broker_that_is_a_voter_of_several() -> None:
    """It serves clients where a broker does, and the others where they look for it."""
    settings = make(*OF_BOTH).settings
    assert settings.is_broker
    assert settings.is_controller
    assert not settings.is_alone
    assert settings.controller.voters == (1, 2, 3)
    assert settings.controller.session_ms == 3000
    assert [str(one) for one in settings.listeners.clients] == ["PLAINTEXT://127.0.0.1:9092"]
    assert [str(one) for one in settings.listeners.controllers] == ["CONTROLLER://a:1"]
    assert make().settings.is_alone


def test_a_broker_that_is_the_whole_quorum() -> None:
    settings = make("controller.quorum.voters=1@a:1").settings
    assert settings.is_broker
    assert settings.controller.voters == (1,)
    assert (
        raft_settings(make().settings.controller)
        == raft_settings(settings.controller)
        == RaftSettings(1, (1,))
    )


OF_ONE = "listeners=PLAINTEXT://b:1,CONTROLLER://c:2"


@pytest.mark.parametrize("voters", ["", "controller.quorum.voters=1@a:1"])
def test_a_whole_quorum_with_a_controllers_listener_can_be_joined(voters: str) -> None:
    """It is a member of a quorum of one, which needs no bucket of its own words, and no cluster id."""
    settings = make(OF_ONE, *filter(None, [voters])).settings
    assert not settings.is_alone
    assert settings.serves_both
    assert settings.controller.voters == (1,)
    assert settings.controller.session_ms == 3000
    assert settings.controller.endpoints == (("CONTROLLER", "c", 2),)
    assert settings.shown["controller.listener.names"].text == "CONTROLLER"
    named = make("listeners=PLAINTEXT://b:1,Q://c:2", "controller.listener.names=Q").settings
    assert named.controller.endpoints == (("Q", "c", 2),)


def test_a_whole_quorum_that_others_cannot_tell_of_is_alone() -> None:
    """As clients are told each the address that they came to: it starts as before there was such a quorum."""
    loaded = make("listeners=PLAINTEXT://:1,CONTROLLER://c:2", "controller.listener.names=CONTROLLER")
    assert loaded.settings.is_alone
    assert any("advertised.listeners does not say" in warning for warning in loaded.warnings)
    accepts = make(OF_ONE, "controller.quorum.voters.change.accept=true")
    assert accepts.settings.is_alone
    assert any("nobody is served at the controller listener" in warning for warning in accepts.warnings)
    told = make(
        "listeners=PLAINTEXT://:1,CONTROLLER://c:2",
        "controller.listener.names=CONTROLLER",
        "advertised.listeners=PLAINTEXT://b:1",
    )
    assert not told.settings.is_alone
    assert not any("advertised.listeners" in warning for warning in told.warnings)


@pytest.mark.parametrize(
    ("overrides", "key", "word"),
    [
        ((*CONTROLLER, OF_CLUSTER, "listeners=PLAINTEXT://b:1"), "listeners", "serves no clients"),
        (CONTROLLER, "cluster.id", "the same"),
        ((*OF_BOTH, "listeners=PLAINTEXT://b:1"), "listeners", "other members do not reach it"),
        ((*OF_BOTH[1:],), "s3.data.buckets", "has to be given"),
        (
            (*OF_BOTH, "autobalancer.controller.exclude.broker.ids=1,x"),
            "autobalancer.controller.exclude.broker.ids",
            "no broker's id",
        ),
        ((*OF_BOTH, "node.id=4"), "controller.quorum.voters", "this node, 4"),
        ((*OF_BROKER[:3], OF_BROKER[4]), "cluster.id", "the same"),
        ((OF_BROKER[0], BUCKET, OF_CLUSTER), "controller.quorum.voters", "has to name the controllers"),
        ((*OF_BROKER, "node.id=2"), "controller.quorum.voters", "is no controller"),
        ((*CONTROLLER[:3], OF_CLUSTER, "node.id=4"), "controller.quorum.voters", "this node, 4"),
        ((CONTROLLER[0], *CONTROLLER[2:], OF_CLUSTER), "s3.data.buckets", "has to be given"),
    ],
)
def test_what_a_controller_cannot_be(overrides: tuple[str, ...], key: str, word: str) -> None:
    (mistake,) = mistakes_of(*overrides)
    assert mistake.startswith(key)
    assert word in mistake


FORMATTED = (
    BUCKET,
    "node.id=4",
    "controller.quorum.bootstrap.servers=a:1,[::1]:2",
    "listeners=PLAINTEXT://:1,CONTROLLER://0.0.0.0:3",
    "advertised.listeners=CONTROLLER://d:3,PLAINTEXT://d:1",
    "controller.listener.names=CONTROLLER",
)


def formatted(*overrides: str) -> BrokerSettings:
    """Of a directory whose log names the voters."""
    given, mistakes = gather(overrides, {}, None, "")
    return load(
        given, data_dir="/data", machine_bytes=GIB, mistakes=mistakes, is_formatted=lambda folder: True
    ).settings


@pytest.mark.parametrize("roles", ["broker,controller", "controller"])
def test_a_controller_whose_log_names_the_voters(roles: str) -> None:
    """It asks bootstrap servers, is reached where it is advertised, and is never alone; cluster.id stands in
    its meta.properties."""
    given = [one.replace("PLAINTEXT://:1,", "").replace(",PLAINTEXT://d:1", "") for one in FORMATTED]
    settings = formatted(f"process.roles={roles}", *(FORMATTED if "," in roles else given))
    assert not settings.is_alone
    assert settings.controller.is_dynamic
    assert settings.controller.voters == static_voters(settings.controller) == ()
    assert settings.controller.bootstrap_servers == (("a", 1), ("::1", 2))
    assert settings.controller.endpoints == (("CONTROLLER", "d", 3),)
    assert settings.controller.session_ms is not None


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_others_are_told_no_listener_on_every_address(host: str) -> None:
    """They would reach themselves. They are told what the list says of this node; where there is none, it
    has to be advertised."""
    of_both = f"listeners=PLAINTEXT://b:1,CONTROLLER://{host}:9093"
    settings = make(*OF_BOTH, of_both).settings
    assert settings.controller.endpoints == (("CONTROLLER", "a", 1),)
    advertised = make(*OF_BOTH, of_both, "advertised.listeners=CONTROLLER://d:3").settings
    assert advertised.controller.endpoints == (("CONTROLLER", "d", 3),)
    assert formatted(*OF_BOTH, of_both).controller.endpoints == (("CONTROLLER", "a", 1),)
    with pytest.raises(SettingsInvalid) as refused:
        formatted(*FORMATTED[:3], of_both, FORMATTED[5])
    (mistake,) = refused.value.mistakes
    assert mistake.startswith("advertised.listeners ")
    assert "has to name CONTROLLER" in mistake


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
@pytest.mark.parametrize("node", [OF_BOTH, OF_BROKER])
def test_clients_are_told_no_listener_on_every_address_by_other_brokers(
    node: tuple[str, ...], host: str
) -> None:
    """One that is alone knows by which address each came."""
    listeners = f"listeners=PLAINTEXT://{host}:1" + ",CONTROLLER://a:2" * (node is OF_BOTH)
    (mistake,) = mistakes_of(*node, listeners)
    assert mistake.startswith("advertised.listeners ")
    assert "has to name PLAINTEXT" in mistake
    assert make(*node, listeners, "advertised.listeners=PLAINTEXT://d:1")
    assert make(f"listeners=PLAINTEXT://{host}:1")


def test_a_list_says_nothing_where_the_log_names_the_voters() -> None:
    """It may be an old one, without this node; a broker without a list asks bootstrap servers."""
    settings = formatted(*FORMATTED, "controller.quorum.voters=1@a:1,2@b:2")
    assert (settings.controller.is_dynamic, settings.controller.voters) == (True, (1, 2))
    broker = make(
        "process.roles=broker", BUCKET, OF_CLUSTER, "controller.quorum.bootstrap.servers=a:1"
    ).settings
    assert (broker.controller.is_dynamic, broker.controller.voters) == (True, ())
    assert broker.quorum.bootstrap == (("a", 1),)


@pytest.mark.parametrize(
    ("files", "is_so"),
    [
        ({}, False),
        ({"quorum-state": '{"data_version":0}'}, False),
        ({"quorum-state": '{"data_version":1}'}, True),
        ({"quorum-state": "[]"}, False),
        ({"quorum-state": "{"}, False),
        ({"quorum-state": '{"data_version":"x"}'}, False),
        ({FIRST_CHECKPOINT: ""}, True),
        ({FIRST_CHECKPOINT: "", "quorum-state": '{"data_version":0}'}, False),
    ],
)
def test_a_directory_says_whether_its_log_names_the_voters(files: dict[str, str], is_so: bool) -> None:
    """By its quorum-state; by what it was formatted with before there is one."""
    found = {f"/log/__cluster_metadata-0/{name}": text for name, text in files.items()}
    assert has_voters_in_log("/log", found.get) is is_so


@pytest.mark.parametrize("election_ms", [100, 101, 999, 1000, 12_345, 2**31 - 1])
@pytest.mark.parametrize("fetch_ms", [100, 109, 2000, 2**31 - 1])
@pytest.mark.parametrize("backoff_ms", [0, 1, 1000, 2**31 - 1])
def test_all_time_outs_of_a_quorum_make_ticks(election_ms: int, fetch_ms: int, backoff_ms: int) -> None:
    """Whatever passes the checks makes sound settings of the core, and no time-out shorter than it was
    given."""
    settings = make(
        f"controller.quorum.election.timeout.ms={election_ms}",
        f"controller.quorum.fetch.timeout.ms={fetch_ms}",
        f"controller.quorum.election.backoff.max.ms={backoff_ms}",
    ).settings.controller
    raft = raft_settings(settings)
    assert raft.election_ticks * settings.ticks.ms >= election_ms
    assert raft.fetch_ticks * settings.ticks.ms >= fetch_ms
    assert raft.backoff_ticks_max * settings.ticks.ms >= backoff_ms
    assert raft.fetch_ticks * settings.ticks.ms < fetch_ms + settings.ticks.ms


def test_two_names_of_the_node_must_agree() -> None:
    """broker.id alone is node.id; a different node.id beside it is a mistake."""
    assert make("broker.id=7").settings.node_id == 7
    assert make("broker.id=7", "node.id=7").settings.node_id == 7
    assert make("broker.id=-1", "node.id=3").settings.node_id == 3
    assert "node.id=3" in mistakes_of("broker.id=7", "node.id=3")[0]


@pytest.mark.parametrize("path", ["0@file:///wal", "0@file:///wal/", "0@s3://lake"])
def test_the_logs_capacity_has_a_key_of_its_own(path: str) -> None:
    """It holds where the address gives none, for each kind of log; one that says the same is borne, one that
    differs is told with both."""
    assert (
        make("s3.wal.capacity=64MiB", f"s3.wal.path={path}").settings.wal_settings.capacity_bytes == 64 << 20
    )  # type: ignore[attr-defined]
    same = make("s3.wal.capacity=67108864", f"s3.wal.path={path}?capacity=64MiB")
    assert same.settings.wal_settings.capacity_bytes == 64 << 20  # type: ignore[attr-defined]
    assert not same.warnings
    (mistake,) = mistakes_of("s3.wal.capacity=64MiB", f"s3.wal.path={path}?capacity=1GiB")
    assert mistake == (
        "s3.wal.capacity=64MiB differs from capacity=1GiB in s3.wal.path: leave one of the two away "
        "(--override)"
    )
    (mistake,) = mistakes_of("s3.wal.capacity=4KiB", f"s3.wal.path={path}")
    assert mistake == "s3.wal.capacity=4KiB is below 262144 (256 KiB) (--override)"


def test_secrets_are_never_told() -> None:
    """A password shows in no mistake and in no warning."""
    values = Values(
        {"a.password": Key("a.password", PASSWORD, None, "x")},
        gather(["a.password=hunter2"], {}, None, "")[0],
    )
    values.mistake("a.password", "is wrong")
    assert "hunter2" not in str(values.mistakes)
    loaded = make("ssl.keystore.password=hunter2")
    assert "hunter2" not in str(loaded.warnings)
    assert loaded.settings.shown["ssl.keystore.password"].key.is_secret


ADDRESS = "0@s3://lake?accessKey=AK&secretKey=hush/+=&sessionToken=whisper"


def test_every_secret_of_an_address_is_known() -> None:
    assert [without_secrets(f"{name}=hush") for name in SECRETS] == [f"{name}=***" for name in SECRETS]


@pytest.mark.parametrize("name", ["s3.data.buckets", "s3.wal.path"])
def test_secrets_of_addresses_are_not_shown(name: str) -> None:
    """Whoever may ask for a broker's configuration is not to have its bucket."""
    shown = make(f"{name}={ADDRESS}").settings.shown[name].text
    assert shown == "0@s3://lake?accessKey=AK&secretKey=***&sessionToken=***"


@pytest.mark.parametrize(
    "given",
    [
        f"s3.wal.path={ADDRESS}&capacity=2GB",
        f"s3.wal.path={ADDRESS}&kind=x",
        f"s3.wal.path=1@s3:/lake?secretkey=hush&{ADDRESS}",
        f"s3.data.buckets=1@s3:/lake?secretkey=hush&{ADDRESS}",
        f"s3.data.buckets={ADDRESS},{ADDRESS}",
    ],
)
def test_secrets_of_addresses_are_in_no_mistake(given: str) -> None:
    """Nor is whoever reads the log."""
    told = str(mistakes_of(given))
    assert given.partition("=")[0] in told
    assert "hush" not in told
    assert "whisper" not in told


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (
            "s3.wal.path=0@file:///wal?capactiy=1GiB",
            "capactiy in s3.wal.path has no effect; did you mean capacity?",
        ),
        ("s3.wal.path=0@file:///wal?hedge=off", "hedge in s3.wal.path has no effect"),
        (
            "s3.wal.path=0@s3://b?pathstyle=true",
            "pathstyle in s3.wal.path has no effect; did you mean pathStyle?",
        ),
        (
            "s3.wal.path=0@s3://b?secretkey=hush",
            "secretkey in s3.wal.path has no effect; did you mean secretKey?",
        ),
        (
            "s3.data.buckets=0@s3://b?pathstyle=true",
            "pathstyle in s3.data.buckets has no effect; did you mean pathStyle?",
        ),
        ("s3.data.buckets=0@file:///o?capacity=1GiB", "capacity in s3.data.buckets has no effect"),
    ],
)
def test_an_option_that_nobody_reads_warns(given: str, hint: str) -> None:
    """In an address as among keys: of the store that is named, and of the kind of log."""
    assert make(given).warnings == (f"unknown option {hint}",)


def test_options_that_are_read_do_not_warn() -> None:
    """Each kind's own, and the store's beside them."""
    for given in (
        "s3.wal.path=0@file:///wal?capacity=1GiB&iops=100&iodepth=4&reservation=auto&kind=block",
        "s3.wal.path=0@file:///wal/?capacity=1GiB&kind=object",
        "s3.wal.path=0@s3://b?region=r&fence=reservation&readaheadDataSize=2MiB",
        "s3.data.buckets=0@s3://b?region=r&pathStyle=true&maxConnections=7",
    ):
        assert not make(given).warnings, given


def test_an_unknown_key_warns_and_the_nearest_is_named() -> None:
    """A misspelling starts all the same, with a hint; keys of old Kafkas are told apart; plugins' keys pass
    in silence."""
    warnings = make("num.partition=3", "frobnicate=1", "zookeeper.connect=z:2181", "rsm.config.x=1").warnings
    assert len(warnings) == 3
    assert "did you mean num.partitions?" in warnings[0]
    assert "frobnicate" in warnings[1]
    assert "did you mean" not in warnings[1]
    assert "removed in Kafka 4.0" in warnings[2]


def test_stored_keys_are_named_once() -> None:
    """What was given and has no effect is said in one line."""
    (warning,) = make("num.io.threads=8", "replica.lag.time.max.ms=10000").warnings
    assert "num.io.threads, replica.lag.time.max.ms" in warning


def test_settings_of_one_listener() -> None:
    """`listener.name.X.` keys are known by their inner key: silent where it is stored, a warning where it
    would be obeyed."""
    assert not make("listener.name.plaintext.ssl.client.auth=none").warnings
    assert "one listener alone" in make("listener.name.plaintext.max.connections=5").warnings[0]
    assert "unknown key" in make("listener.name.plaintext.nothing=5").warnings[0]


def test_a_refused_key_may_have_its_default() -> None:
    """Naming the value that holds anyway is no mistake."""
    make("security.inter.broker.protocol=PLAINTEXT", "authorizer.class.name=")


# What comes of it


def test_an_object_wal_is_told_by_its_address() -> None:
    """The parameters of the address under AutoMQ's names; bytes may have units."""
    address = "0@s3://b?batchInterval=100&maxBytesInBatch=1MiB&maxUnflushedBytes=1048576&maxInflightUploadCount=7&readaheadDataSize=2MiB"
    wal = make(
        f"s3.wal.path={address}&capacity=1GiB&fence=reservation&hedge=off&region=r"
    ).settings.wal_settings
    assert (wal.batch_interval_ms, wal.batch_bytes_max, wal.unflushed_bytes_max) == (100, 1 << 20, 1 << 20)
    assert (wal.uploads_max, wal.ahead_bytes, wal.capacity_bytes, wal.fence) == (
        7,
        2 << 20,
        GIB,
        "reservation",
    )
    assert (wal.hedge, wal.corruption) == ("off", "refuse")
    unset = make("s3.wal.path=0@file:///wal/", "wal.corruption=skip").settings.wal_settings
    assert (unset.fence, unset.hedge, unset.corruption) == ("conditional", "auto", "skip")


def test_a_start_without_settings() -> None:
    """Everything under the data directory, on loopback, one node with both roles."""
    settings = make().settings
    assert settings.node_id == 1
    assert settings.metadata_dir == "/data/metadata"
    assert (settings.data.scheme, settings.data.target) == ("file", "/data/objects")
    assert (settings.wal.scheme, settings.wal.target, settings.wal_settings.capacity_bytes) == (
        "file",
        "/data/wal",
        2 * GIB,
    )
    assert [str(endpoint) for endpoint in settings.listeners.clients] == ["PLAINTEXT://127.0.0.1:9092"]
    assert settings.listeners.admin == ("127.0.0.1", 9644)
    assert settings.controller.cluster_id is None
    assert settings.controller.voters == (1,)
    assert settings.shown["s3.data.buckets"].text == "0@file:///data/objects"


def test_kafkas_own_quick_start_file_starts() -> None:
    """The server.properties that Kafka ships for one node is taken as it is, and the controller's listener is
    told apart."""
    text = """
        process.roles=broker,controller
        node.id=1
        controller.quorum.bootstrap.servers=localhost:9093
        listeners=PLAINTEXT://:9092,CONTROLLER://:9093
        inter.broker.listener.name=PLAINTEXT
        advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
        controller.listener.names=CONTROLLER
        listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
        num.network.threads=3
        num.io.threads=8
        socket.send.buffer.bytes=102400
        socket.receive.buffer.bytes=102400
        socket.request.max.bytes=104857600
        log.dirs=/tmp/kraft-combined-logs
        num.partitions=1
        num.recovery.threads.per.data.dir=1
        offsets.topic.replication.factor=1
        share.coordinator.state.topic.replication.factor=1
        share.coordinator.state.topic.min.isr=1
        transaction.state.log.replication.factor=1
        transaction.state.log.min.isr=1
        log.retention.hours=168
        log.segment.bytes=1073741824
        log.retention.check.interval.ms=300000
    """
    loaded = make(text=text)
    listeners = loaded.settings.listeners
    assert [endpoint.listener for endpoint in listeners.clients] == ["PLAINTEXT"]
    assert [endpoint.listener for endpoint in listeners.controllers] == ["CONTROLLER"]
    assert [str(endpoint) for endpoint in listeners.advertised] == ["PLAINTEXT://localhost:9092"]
    assert loaded.settings.metadata_dir == "/tmp/kraft-combined-logs"
    assert not loaded.settings.is_alone
    assert loaded.settings.controller.endpoints == (("CONTROLLER", "localhost", 9093),)
    assert not any("unknown" in warning for warning in loaded.warnings)


def test_paths_with_odd_letters_survive() -> None:
    """A data directory whose name has address syntax in it reaches the stores unchanged."""
    given, _ = gather([], {}, None, "")
    settings = load(given, data_dir="/tmp/a b?c&d%20,e", machine_bytes=GIB).settings
    assert settings.data.target == "/tmp/a b?c&d%20,e/objects"
    assert settings.wal.target == "/tmp/a b?c&d%20,e/wal"


@pytest.mark.parametrize(
    ("overrides", "machine_mib", "split_mib"),
    [
        ([], 256, (128, 56, 12, 7, 8, 28, 16)),
        ([], 4096, (1024, 448, 140, 16, 67, 224, 128)),
        (["memory.max.bytes=400MiB"], 4096, (400, 175, 45, 16, 26, 87, 50)),
        (["memory.max.bytes=400MiB", "s3.wal.cache.size=100MiB"], 4096, (400, 100, 71, 16, 37, 125, 50)),
        (["memory.max.bytes=400MiB", "s3.block.cache.size=100MiB"], 4096, (400, 166, 54, 16, 30, 83, 50)),
        (["memory.max.bytes=400MiB", "queued.max.request.bytes=40MiB"], 4096, (400, 206, 56, 16, 30, 40, 50)),
        (["memory.max.bytes=400MiB", "states.memory.max.bytes=8MiB"], 4096, (400, 196, 52, 16, 29, 98, 8)),
    ],
)
def test_one_number_of_memory_is_split(
    overrides: list[str], machine_mib: int, split_mib: tuple[int, ...]
) -> None:
    """Total, log cache, block cache, indexes, compaction, requests, states: the parts make the total, and
    what is fixed stays fixed."""
    memory = make(*overrides, machine_bytes=machine_mib * MIB).settings.memory
    assert tuple(size_bytes // MIB for size_bytes in dataclasses.astuple(memory)) == split_mib
    assert 0 <= memory.total_bytes - sum(dataclasses.astuple(memory)[1:]) < 4


def test_fixed_parts_must_leave_room() -> None:
    """Caches that leave nothing for requests in flight are a mistake of the caches."""
    found = mistakes_of("memory.max.bytes=200MiB", "s3.wal.cache.size=190MiB")
    assert "s3.wal.cache.size" in found[0]
    values = Values(all_keys(), gather(["queued.max.request.bytes=1"], {}, None, "")[0])
    split_memory(values, 4 * GIB)
    assert "16 MiB" in values.mistakes[0]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("7", 7), ("7KiB", 7168), ("2 MiB", 2 * MIB), ("3gib", 3 * GIB), ("1TiB", 1 << 40)],
)
def test_sizes_have_units(text: str, size_bytes: int) -> None:
    """Powers of 1024, whatever the case."""
    assert parse_bytes(text) == size_bytes


# The table

OTHER_VALUES = {
    "autobalancer.controller.exclude.broker.ids": "7",
    "process.roles": "controller,broker",
    "cluster.id": "bWlsbHJhY2UtdGVzdC0wMQ",
    "listeners": "PLAINTEXT://127.0.0.1:1",
    "advertised.listeners": "PLAINTEXT://a:1",
    "admin.listener": "127.0.0.1:1",
    "log.level": "DEBUG",
    "max.connections.per.ip.overrides": "10.0.0.1:5",
    "s3.data.buckets": "0@s3://bucket",
    "s3.wal.path": "0@file:///other",
    "memory.max.bytes": "300MiB",
    "states.memory.max.bytes": "9MiB",
    "s3.wal.cache.size": "200MiB",
    "s3.block.cache.size": "200MiB",
    "s3.wal.upload.threshold": "1MiB",
    "s3.stream.set.object.compaction.cache.size": "5MiB",
    "queued.max.request.bytes": "200MiB",
    "log.message.timestamp.type": "LogAppendTime",
    "compression.type": "zstd",
    "record.validation": "records",
    "log.cleanup.policy": "compact",
    "wal.direct.io": "never",
    "s3.wal.capacity": "64MiB",
    "wal.corruption": "skip",
    "objects.corruption": "skip",
    "s3.network.bandwidth.mode": "shared",
    "group.min.session.timeout.ms": "7000",
}
# These say how the others are read, or are checked and kept to what holds anyway.
ASKED_ELSEWHERE = {
    "broker.id",
    "process.roles",
    "listener.security.protocol.map",
    "controller.listener.names",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
    "broker.session.timeout.ms",
}


def other_value(key: Key) -> str:
    """A value that is allowed and is not the default."""
    if key.name in OTHER_VALUES:
        return OTHER_VALUES[key.name]
    if key.kind == BOOLEAN:
        return "false" if key.default == "true" else "true"
    if key.kind in (STRING, LIST):
        return "something"
    step = 0.25 if key.kind == DOUBLE else 1
    number = (
        (float(key.default) if key.kind == DOUBLE else int(key.default)) if key.default else (key.low or 0)
    )
    is_last = number in (key.high, 2**31 - 1, 2**63 - 1)
    return str(number - step if is_last else number + step)


def facts(settings: BrokerSettings) -> dict[str, Any]:
    """All that the settings say, without the texts they were made of."""
    found = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    del found["shown"], found["static_configs"]
    found["controller"] = dataclasses.replace(settings.controller, static_configs={})
    return found


@pytest.mark.parametrize("key", OBEYED_KEYS, ids=lambda key: key.name)
def test_an_obeyed_key_changes_something(key: Key) -> None:
    """Each obeyed key, set to another value, changes a field of the settings, or is a broker-wide default of
    a topic's configuration."""
    if key.name in ASKED_ELSEWHERE:
        return
    changed = make(f"{key.name}={other_value(key)}").settings
    if key.name in SYNONYM_KEYS:
        assert changed.static_configs[key.name] == other_value(key)
    if key.name not in SYNONYM_KEYS:
        assert facts(changed) != facts(make().settings)


def test_every_default_is_allowed() -> None:
    """The default of every key passes the key's own check, and every key says what it means."""
    values = Values(all_keys(), {})
    for name, key in all_keys().items():
        values[name]
        assert key.meaning.endswith("."), name
        assert key.standing in (OBEYED, STORED, REFUSED)
    assert not set(REMOVED) & set(all_keys())


def test_topics_defaults_are_known_broker_keys() -> None:
    """Every broker-wide key that a topic's configuration takes its default from is in the table."""
    assert set(SYNONYM_KEYS) <= set(all_keys())


def test_the_reference_page_is_current() -> None:
    """docs/settings.md is what `millrace settings` prints."""
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == reference(), "run: millrace settings > docs/settings.md"
