"""The Go clients' suites, and what each needs to find our broker."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.compat.suites.containers import as_containers
from tests.compat.suites.golang import GoSuite, fetch_module
from tests.compat.suites.suite import Excuse, Outcome
from tests.live import free_port
from tests.live.cluster import LiveNodes
from tests.patience import PATIENCE_S

NO_TRANSACTIONS = "transactions are not served yet"
NO_AUTHORIZER = "no authorizer is configured: SECURITY_DISABLED, as Kafka says then"
NO_SASL = "authentication is not served yet"


def franz_go(nodes: int) -> GoSuite:
    return GoSuite(
        "franz-go",
        "github.com/twmb/franz-go",
        "v1.22.2",
        nodes=nodes,
        package="./pkg/kgo",
        marks=r"newTestClient|tmpTopic|adm\(\)|getSeedBrokers|testClientOpts",
        environment={
            "KGO_SEEDS": "ADDRESS",
            "KGO_TEST_RF": str(nodes),
            "KGO_TEST_RECORDS": "50000",
            "KGO_LOG_LEVEL": "none",
        },
        unasked={"TestTxnEtl": f"{NO_TRANSACTIONS}, and it waits for them for ever"},
        passed_min=35,
        known={
            "ShareGroup": Excuse(
                "asks whether ShareFetch is there, and not whether share.version has it on", "FAILED TESTING"
            ),
            "848RegexBrokerResolves": Excuse(
                "asks whether ConsumerGroupHeartbeat is there, and not whether group.version has it on",
                "FAILED TESTING",
            ),
        },
    )


FRANZ_GO, FRANZ_GO_THREE = franz_go(1), franz_go(3)


def point_kafka_go(source: Path, address: str) -> None:
    """Its tests have the address in their text."""
    host, port = address.split(":")
    for path in source.glob("*_test.go"):
        if path.name != "address_test.go":
            text = path.read_text().replace("localhost:9092", address).replace("127.0.0.1:9092", address)
            text = text.replace('TCP("localhost")', f'TCP("{address}")')
            text = re.sub(r'Host: "localhost", Port: 9092', f'Host: "{host}", Port: {port}', text)
            text = re.sub(r'(\.Host != )"localhost"', rf'\1"{host}"', text)
            path.write_text(re.sub(r"(\.Port != )9092", rf"\g<1>{port}", text))


KAFKA_GO = GoSuite(
    "kafka-go",
    "github.com/segmentio/kafka-go",
    "v0.4.51",
    marks=r"localhost:9092|[nN]ewLocal\w*\(|makeTopic\(|createTopic\(|DefaultDialer|\bDial\w*\(|newClient\(|testReader|testWriter",
    prepare=point_kafka_go,
    environment={"KAFKA_VERSION": "3.7.0", "KAFKA_SKIP_NETTEST": "1"},  # as its own checks have it
    overrides={"message.max.bytes": "200000000"},
    unasked={
        "TestReaderConsumerGroup/.*commit.*": "they call a function that they never set, and end the process"
    },
    passed_min=124,
    known={
        "ACLs": Excuse(
            NO_AUTHORIZER, "Security Disabled|Not equal: expected: kafka.(Delete|Describe)ACLsResponse"
        ),
        "DialerResolver": Excuse(
            "wants the broker at port 9092", "127.0.0.1:9092: connect: connection refused"
        ),
        "UnsupportedSASLMechanism": Excuse(NO_SASL, "127.0.0.1:9093: connect: connection refused"),
        "SASL_Plain": Excuse(NO_SASL, "Unknown Topic Or Partition"),
        "UserScramCredentials": Excuse(NO_SASL, "SCRAM users are not served"),
        "AlterClientQuotas": Excuse(
            "quotas are not served yet", "Not equal: expected: kafka.AlterClientQuotasResponse"
        ),
        "FindCoordinator": Excuse(NO_TRANSACTIONS, "Coordinator should be found"),
        "delete_topics": Excuse(
            "wants a topic that its own question makes again to be still without partitions in the answer; "
            "ours has them by then",
            "partitions to be empty",
        ),
        "ReaderReadCompactedMessage": Excuse(
            "wants segment.bytes=200; the least is 1 MiB, as since Kafka 4.0", "Invalid Configuration"
        ),
    },
    fickle={
        "consumer_group_rebalance$": Excuse(
            "wants two of three partitions read out before the second member comes",
            "expect to read from reader",
        ),
    },
)


class SaramaSuite(GoSuite):
    """Its functional tests speak through Toxiproxy, at five ports, to five brokers that are told to name
    these."""

    PORTS = range(29091, 29096)
    _started: LiveNodes  # before a run

    def on_started(self, nodes: LiveNodes) -> None:
        self._started = nodes

    def of_node(self, number: int) -> Mapping[str, str]:
        return {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.PORTS[number - 1]}"}

    def fetch(self, folder: Path) -> None:
        super().fetch(folder)
        fetch_module("github.com/Shopify/toxiproxy/v2", "v2.12.0", folder / "toxiproxy")
        words = ["go", "build", "-o", str(folder / "toxiproxy-server"), "./cmd/server"]
        subprocess.run(words, cwd=folder / "toxiproxy", check=True)

    def run(self, folder: Path, address: str) -> Outcome:
        port = free_port()
        words = [str(folder / "toxiproxy-server"), "-host", "127.0.0.1", "-port", str(port)]
        toxiproxy = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for_port(port)
            for number, (listen, upstream) in enumerate(zip(self.PORTS, address.split(","), strict=True), 1):
                proxy = {"name": f"kafka{number}", "listen": f"127.0.0.1:{listen}", "upstream": upstream}
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}/proxies", json.dumps(proxy).encode()
                )
                urllib.request.urlopen(request, timeout=PATIENCE_S).close()
            with as_containers(self._started, folder / "bin") as path:
                self._environment = {
                    "TOXIPROXY_ADDR": f"http://127.0.0.1:{port}",
                    "KAFKA_VERSION": "4.3.1",
                    "PATH": path,
                }
                return super().run(folder, address)
        finally:
            toxiproxy.kill()
            toxiproxy.wait()


def wait_for_port(port: int) -> None:
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"nothing listens on port {port}")


SARAMA = SaramaSuite(
    "sarama",
    "github.com/IBM/sarama",
    "v1.61.1",
    nodes=len(SaramaSuite.PORTS),
    marks=r"^func TestFunc|setupFunctionalTest\(|FunctionalTestEnv",
    flags=("-tags=functional",),
    overrides={"auto.create.topics.enable": "false"},
    unasked={"TestFuncTxn.*": f"{NO_TRANSACTIONS}, and each asks for them for half a minute"},
    passed_min=61,
    known={
        "Transactions|InitProducerId3": Excuse(NO_TRANSACTIONS, "Transactional ID authorization failed"),
        "ConsumerFetchFollowerFailover": Excuse("wants a follower to read from", "Should not be: -1"),
        "AdminQuotas": Excuse("quotas are not served yet", "client quotas are not served"),
        "AdminAlterPartitionReassignments": Excuse(
            "wants a second replica; a partition has one, whose broker leads it",
            "Replica assignment is invalid",
        ),
        "IdempotentBufferedSequence": Excuse(
            "all was sent and acknowledged; then it reads the log of a broker's container", "exit status 125"
        ),
    },
)
