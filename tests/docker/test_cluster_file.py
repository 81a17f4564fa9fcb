"""What docker-compose.yml says fits together, service by service; whether it holds, `make docker-test` tries
in an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from millrace.broker.app import BACKUP_CLOSE_MS, CLOSE_MS, DRAIN_MS
from millrace.spark_jobs.config import IngestSettings, read_settings
from tests.docker.cluster import FILE, HOST_PORT, SPARK, STORE
from tests.docker.pages import ADMIN_PORT, KAFKA_PORT, Service, read_compose, read_dockerfile
from tests.docker.test_image import loaded

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / FILE).read_text()
SERVICES = read_compose(TEXT)
NODES = {name: one for name, one in SERVICES.items() if HOST_PORT in one.ports}
OWN = ("KAFKA_NODE_ID", "KAFKA_ADVERTISED_LISTENERS")  # what differs between nodes


def kafka_settings(service: Service) -> dict[str, str]:
    return {key: value for key, value in service.env.items() if key.startswith("KAFKA_")}


def store_words() -> dict[str, str]:
    """What its command says, by flag."""
    is_atomic, *words = SERVICES[STORE].command
    assert is_atomic == "-xattr", "the log needs conditions that hold"
    return dict(zip(words[::2], words[1::2], strict=True))


def buckets() -> Iterator[tuple[str, str]]:
    """Each address in the nodes' settings: its bucket and its endpoint."""
    for service in NODES.values():
        for key in ("KAFKA_S3_DATA_BUCKETS", "KAFKA_S3_WAL_PATH"):
            address = urlsplit(service.env[key].removeprefix("0@"))
            yield address.netloc, parse_qs(address.query)["endpoint"][0]


@pytest.mark.parametrize("name", NODES)
def test_a_nodes_settings_are_obeyed(name: str) -> None:
    """All are known, it is a voter under its service's name at the port where its controller listens, and
    holds its log where the others reach it."""
    found = loaded(kafka_settings(NODES[name]))
    assert not found.warnings
    (controller,) = found.settings.listeners.controllers
    voter = f"{NODES[name].env['KAFKA_NODE_ID']}@{name}:{controller.port}"
    assert voter in NODES[name].env["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")
    assert NODES[name].env["KAFKA_S3_WAL_PATH"].startswith("0@s3://")
    assert found.settings.listeners.admin == ("0.0.0.0", ADMIN_PORT)


def test_nodes_differ_in_their_id_and_what_they_tell_clients() -> None:
    """Three of them, every other setting the same, each with a volume of its own."""
    shared = [{key: one for key, one in node.env.items() if key not in OWN} for node in NODES.values()]
    assert len(shared) == 3
    assert shared[0] == shared[1] == shared[2]
    assert len(NODES["node1"].env["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")) == 3
    assert [node.volumes for node in NODES.values()] == [((name, "/data"),) for name in NODES]
    assert set(NODES) | {STORE} == set(yaml.safe_load(TEXT)["volumes"])


@pytest.mark.parametrize("name", NODES)
def test_clients_are_told_where_they_reach_a_node(name: str) -> None:
    """Containers by the service's name, this machine by the port that is published, to itself alone."""
    listeners = {one.listener: one for one in loaded(kafka_settings(NODES[name])).settings.listeners.clients}
    assert {one: found.port for one, found in listeners.items()} == {
        "PLAINTEXT": KAFKA_PORT,
        "HOST": HOST_PORT,
    }
    told = NODES[name].env["KAFKA_ADVERTISED_LISTENERS"].split(",")
    assert told == [f"PLAINTEXT://{name}:{KAFKA_PORT}", f"HOST://{NODES[name].address(HOST_PORT)}"]
    assert {host for host, _ in NODES[name].ports.values()} == {"127.0.0.1"}
    assert set(NODES[name].ports) == {HOST_PORT, ADMIN_PORT}


def test_no_port_is_published_twice() -> None:
    published = [port for service in SERVICES.values() for _, port in service.ports.values()]
    assert len(published) == len(set(published)) == 2 * len(NODES)


def test_the_store_has_the_buckets_that_are_asked_for() -> None:
    """At the address that nodes and pipeline name, with the keys that they have."""
    words = store_words()
    port = words["-listen"].removeprefix(":")
    made = words["-make"].split(",")
    found = list(buckets())
    assert {bucket for bucket, _ in found} | {urlsplit(ingest().table_path).netloc} == set(made)
    assert {endpoint for _, endpoint in found} == {f"http://{STORE}:{port}"}
    for service in (*NODES.values(), SERVICES[SPARK]):
        keys = service.env["AWS_ACCESS_KEY_ID"], service.env["AWS_SECRET_ACCESS_KEY"]
        assert keys == (words["-access"], words["-secret"])
    assert (STORE, words["-dir"]) in SERVICES[STORE].volumes


def ingest() -> IngestSettings:
    return read_settings(ROOT / "spark_jobs/ingest.toml")


def test_the_pipeline_is_pointed_at_the_nodes_and_the_store() -> None:
    """Its file is in order, and is where its image looks for it."""
    settings = ingest()
    assert settings.bootstrap_servers == ",".join(f"{name}:{KAFKA_PORT}" for name in NODES)
    assert settings.spark["spark.hadoop.fs.s3a.endpoint"] in {endpoint for _, endpoint in buckets()}
    (mount,) = SERVICES[SPARK].volumes
    image = read_dockerfile((ROOT / "spark_jobs/Dockerfile").read_text())
    assert mount == ("./spark_jobs/ingest.toml", image.entrypoint[-1])


def test_services_wait_for_what_they_need_and_are_started_again() -> None:
    """A node for the store, the pipeline for all nodes: until they are healthy by their images' checks."""
    healthy = "service_healthy"
    waits = {name: service.waits_for for name, service in SERVICES.items()}
    assert waits == {
        **{name: {STORE: healthy} for name in NODES},
        STORE: {},
        SPARK: dict.fromkeys(NODES, healthy),
    }
    assert {service.restart for service in SERVICES.values()} == {"unless-stopped"}
    assert [name for name, service in SERVICES.items() if service.profiles] == [SPARK]


@pytest.mark.parametrize("name", NODES)
def test_a_nodes_container_may_end_in_order(name: str) -> None:
    assert NODES[name].grace_s * 1000 > DRAIN_MS + CLOSE_MS + BACKUP_CLOSE_MS
