"""Controllers as real processes: three that are no brokers elect a leader, take commands wherever they are
asked, and go on when one of them is killed, stopped in order, or stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.describe_cluster import DescribeClusterRequest
from millrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.compat.jvm import java_command
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import CLUSTER, LiveControllers
from tests.patience import PATIENCE_S, until

BROKER_RESOURCE, LOGGERS = 4, 8
QUICK = {
    "controller.quorum.election.timeout.ms": "400",
    "controller.quorum.fetch.timeout.ms": "800",
    "controller.quorum.election.backoff.max.ms": "200",
}


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[LiveControllers]:
    with LiveControllers(tmp_path, 3, QUICK) as started:
        yield started


def address_of(quorum: LiveControllers, node_id: int) -> str:
    return f"127.0.0.1:{quorum.ports[node_id]}"


def set_default(quorum: LiveControllers, node_id: int, value: str) -> None:
    assert try_default(quorum, node_id, value) == 0


def try_default(quorum: LiveControllers, node_id: int, value: str) -> int:
    """A command: every broker's default for a setting, asked of that node; its error code."""
    config = AlterableConfig("log.retention.ms", 0, value)
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(BROKER_RESOURCE, "", [config])])
    with Client(address_of(quorum, node_id)) as client:
        response = client.ask("IncrementalAlterConfigs", request)
    return int(response.responses[0].error_code)


def described(quorum: LiveControllers, node_id: int) -> DescribeQuorumResponse:
    topic = DescribeQuorumRequestTopicData("__cluster_metadata", [DescribeQuorumRequestPartitionData(0)])
    with Client(address_of(quorum, node_id)) as client:
        found: DescribeQuorumResponse = client.ask("DescribeQuorum", DescribeQuorumRequest([topic]))
    return found


def test_any_controller_takes_commands_and_all_hold_them(quorum: LiveControllers) -> None:
    """Whoever is asked: the one that leads decides. A tool that is told of one of them finds all."""
    leader = quorum.leader()
    for node_id in quorum.nodes:
        set_default(quorum, node_id, str(100_000 + node_id))
    assert quorum.wait_equal(quorum.nodes) > 0
    for node_id in quorum.nodes:
        partition = described(quorum, node_id).topics[0].partitions[0]
        assert partition.leader_id == leader
        assert sorted(one.replica_id for one in partition.current_voters) == [1, 2, 3]
    with Client(address_of(quorum, 2)) as client:
        cluster = client.ask("DescribeCluster", DescribeClusterRequest(endpoint_type=2))
        refused = client.ask("DescribeCluster", DescribeClusterRequest(endpoint_type=1))
    assert (cluster.cluster_id, cluster.controller_id) == (CLUSTER, leader)
    assert {one.broker_id: one.port for one in cluster.brokers} == quorum.ports
    assert refused.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_the_others_go_on_when_the_leader_is_killed(quorum: LiveControllers) -> None:
    """kill -9. It comes back, and has what was decided without it; then all are killed at once, and nothing
    is missing."""
    first = quorum.leader()
    set_default(quorum, first, "100001")
    quorum.nodes[first].kill()
    second = quorum.leader(is_other_than=first)
    set_default(quorum, second, "100002")
    quorum.start([first])
    end = quorum.wait_equal(quorum.nodes)
    for node in quorum.nodes.values():
        node.kill()
    quorum.start()
    third = quorum.leader()
    assert quorum.wait_equal(quorum.nodes) > end
    set_default(quorum, third, "100003")


def test_a_leader_that_is_stopped_hands_over(tmp_path: Path) -> None:
    """SIGTERM: it ends in order, and tells the others, who would not miss it for ten minutes."""
    with LiveControllers(tmp_path, 3, {**QUICK, "controller.quorum.fetch.timeout.ms": "600000"}) as quorum:
        first = quorum.leader()
        set_default(quorum, first, "100001")
        quorum.wait_equal(quorum.nodes)
        assert quorum.nodes[first].stop() == 0
        set_default(quorum, quorum.leader(is_other_than=first), "100002")


def test_a_leader_that_stood_still_follows_when_it_goes_on(quorum: LiveControllers) -> None:
    """SIGSTOP for longer than the others wait, then SIGCONT: it may take one more command, and says that its
    outcome is unknown; what it is asked then, the new one decides."""
    first = quorum.leader()
    stopped = quorum.nodes.pop(first)
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        second = quorum.leader(is_other_than=first)
        set_default(quorum, second, "100001")
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
        quorum.nodes[first] = stopped
    assert try_default(quorum, first, "100002") in (0, ErrorCode.REQUEST_TIMED_OUT)
    set_default(quorum, first, "100003")
    assert quorum.leader(is_other_than=first) == second
    quorum.wait_equal(quorum.nodes)


@pytest.mark.parametrize("is_leader", [True, False])
def test_without_a_majority_nothing_is_decided_and_it_says_so(
    quorum: LiveControllers, is_leader: bool
) -> None:
    """Be the one that is left the one that led, or one that followed."""
    left_id = next(node_id for node_id in quorum.nodes if (node_id == quorum.leader()) == is_leader)
    gone = [node_id for node_id in quorum.nodes if node_id != left_id]
    for node_id in gone:
        quorum.nodes[node_id].kill()
    left = quorum.nodes[left_id]
    until(lambda: "no controller leads" in ready_page(left), "it does not say so")
    quorum.start(gone[:1])
    set_default(quorum, quorum.leader(), "100001")
    until(lambda: ready_page(left) == "ready\n", "it is not ready again")


def ready_page(node: LiveBroker) -> str:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{node.admin_port}/health/ready", timeout=PATIENCE_S
        ) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as error:
        return str(error.read(), "utf-8")


def test_kafkas_quorum_tool_describes_it(quorum: LiveControllers) -> None:
    """kafka-metadata-quorum, pointed at a controller that does not lead."""
    leader = quorum.leader()
    asked = next(node_id for node_id in quorum.nodes if node_id != leader)
    words = ("--bootstrap-controller", address_of(quorum, asked), "describe", "--status")
    tool = java_command("org.apache.kafka.tools.MetadataQuorumCommand", *words)
    printed = subprocess.run(tool, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    assert f"LeaderId:               {leader}" in printed, printed
    assert CLUSTER in printed


def test_kafkas_configs_tool_describes_controllers(quorum: LiveControllers) -> None:
    """kafka-configs, pointed at a controller: what is set for each and for all is told by each itself, and
    what it was started with; nothing is set for a node that there is not."""

    def configs(*words: str, code: int = 0) -> str:
        asked = ("--bootstrap-controller", address_of(quorum, 1), "--entity-type", *words)
        tool = java_command("kafka.admin.ConfigCommand", *asked)
        done = subprocess.run(tool, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    set_default(quorum, 1, "7000000")
    configs("brokers", "--entity-name", "2", "--alter", "--add-config", "message.max.bytes=2000000")
    quorum.wait_equal(quorum.nodes)
    told = configs("brokers", "--describe")
    assert [f"Dynamic configs for broker {node_id} are:" in told for node_id in (1, 2, 3, 4)] == [
        *(True,) * 3,
        False,
    ]
    assert told.count("  message.max.bytes=2000000 ") == 1
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=7000000" in told
    everything = configs("brokers", "--entity-name", "3", "--describe", "--all")
    assert "  process.roles=controller " in everything
    assert "root=" in configs("broker-loggers", "--entity-name", "1", "--describe")
    change = "--alter", "--add-config", "message.max.bytes=1"
    assert "No node with id 9 found." in configs("brokers", "--entity-name", "9", *change, code=1)


def test_what_is_turned_off_is_told_by_controllers(quorum: LiveControllers) -> None:
    """kafka-acls, pointed at a controller: no access control, and not a controller that does not know it."""
    words = ("--bootstrap-controller", address_of(quorum, 1), "--list")
    tool = java_command("org.apache.kafka.tools.AclCommand", *words)
    done = subprocess.run(tool, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "SecurityDisabledException: no authorizer is configured" in done.stderr + done.stdout


def test_loggers_of_a_controller_change_while_it_runs(quorum: LiveControllers) -> None:
    """A controller that is no broker has no other listener for that: its own loggers by the API, and
    log.level as it is set for it in the metadata; another's are no matter of it."""

    def change(kind: int, node_id: int, name: str, value: str) -> int:
        configs = [AlterableConfig(name, 0, value)]
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, str(node_id), configs)])
        with Client(address_of(quorum, 1)) as client:
            return int(client.ask("IncrementalAlterConfigs", request).responses[0].error_code)

    def level(node_id: int, logger: str) -> str:
        asked = DescribeConfigsRequest([DescribeConfigsResource(LOGGERS, str(node_id), [logger])])
        with Client(address_of(quorum, node_id)) as client:
            (found,) = client.ask("DescribeConfigs", asked).results[0].configs
        return str(found.value)

    before = level(1, "millrace.kraft")
    assert change(LOGGERS, 1, "millrace.kraft", "ERROR") == 0
    assert (before, level(1, "millrace.kraft"), level(2, "millrace.kraft")) == ("INFO", "ERROR", "INFO")
    assert change(LOGGERS, 2, "millrace.kraft", "ERROR") == ErrorCode.INVALID_REQUEST
    assert change(BROKER_RESOURCE, 2, "log.level", "INFO,wal=WARN") == 0
    until(lambda: level(2, "millrace.wal") == "WARN", "log.level is not followed")
