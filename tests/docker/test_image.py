"""What the image and the compose file say can be obeyed; whether it is, `make docker-test` tries in an
engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from millrace.broker.app import BACKUP_CLOSE_MS, CLOSE_MS, DRAIN_MS
from millrace.broker.cli.serve import parse_options, read_settings
from millrace.broker.config import Loaded
from tests.docker.pages import ADMIN_PORT, KAFKA_PORT, read_compose, read_dockerfile
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "docker-compose.single.yml").read_text()
SPARK_DOCKERFILE = (ROOT / "spark_jobs/Dockerfile").read_text()
DOCKERFILES = ("Dockerfile", "spark_jobs/Dockerfile", "tests/s3server/Dockerfile")


def loaded(env: dict[str, str]) -> Loaded:
    """As the container reads its settings: the image's words and environment, and the container's over it."""
    image = read_dockerfile(DOCKERFILE)
    program, command, *words = image.entrypoint
    assert (program, command) == ("millrace", "serve")
    return read_settings(parse_options(words), {**image.env, **env})


def test_a_dockerfile_is_read_by_its_last_stage() -> None:
    """What earlier stages set does not reach the container."""
    found = read_dockerfile(
        "FROM first AS build\nENV A=1\nUSER root\nFROM second\nRUN a \\\n    && b\nENV B=2 C=x=y\nUSER 7:7\n"
        'HEALTHCHECK --interval=5s CMD ["python", "-c", "1"]\nENTRYPOINT ["a", "b"]\n'
    )
    assert (found.base, found.env, found.user) == ("second", {"B": "2", "C": "x=y"}, "7:7")
    assert found.bases == ("first", "second")
    assert (found.entrypoint, found.health_command) == (("a", "b"), ("python", "-c", "1"))


def test_the_images_environment_is_obeyed() -> None:
    """Every variable that Dockerfile and compose file set, the one behind a comment too, is a setting's; both
    listeners are reached from outside the container, at the ports that the compose file publishes to this
    machine alone."""
    (compose,) = read_compose(COMPOSE).values()
    commented = dict(re.findall(r"# (KAFKA_\w+): (\S+)", COMPOSE))
    assert commented
    found = loaded({**compose.env, **commented})
    assert not found.warnings
    (clients,) = found.settings.listeners.clients
    assert str(clients) == f"PLAINTEXT://0.0.0.0:{KAFKA_PORT}"
    assert found.settings.listeners.admin == ("0.0.0.0", ADMIN_PORT)
    assert {port: host for port, (host, _) in compose.ports.items()} == {
        KAFKA_PORT: "127.0.0.1",
        ADMIN_PORT: "127.0.0.1",
    }


@pytest.mark.parametrize(
    ("given", "clients", "admin"),
    [
        ({}, "PLAINTEXT://0.0.0.0:9092", ("0.0.0.0", 9644)),
        ({"KAFKA_LISTENERS": "PLAINTEXT://10.0.0.1:19092"}, "PLAINTEXT://10.0.0.1:19092", ("0.0.0.0", 9644)),
        ({"KAFKA_ADMIN_LISTENER": "127.0.0.1:1"}, "PLAINTEXT://0.0.0.0:9092", ("127.0.0.1", 1)),
    ],
)
def test_the_images_listeners_give_way_to_a_containers(
    given: dict[str, str], clients: str, admin: tuple[str, int]
) -> None:
    """The image serves on all addresses without being told, and on others when the container's environment
    says so."""
    listeners = loaded(given).settings.listeners
    assert [str(endpoint) for endpoint in listeners.clients] == [clients]
    assert listeners.admin == admin


@pytest.mark.parametrize("path", DOCKERFILES)
def test_an_image_has_a_user_that_is_seen_not_to_be_root(path: str) -> None:
    """By its number: an orchestrator that refuses root refuses a name as well."""
    user, _, group = read_dockerfile((ROOT / path).read_text()).user.partition(":")
    assert int(user) > 0
    assert int(group) > 0


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_asks_where_the_environment_says(status: int, code: int) -> None:
    """Readiness, at whatever port the admin listener was given."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *words: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        _, *words = read_dockerfile(DOCKERFILE).health_command
        env = {**os.environ, "KAFKA_ADMIN_LISTENER": f"0.0.0.0:{server.server_port}"}
        done = subprocess.run(
            [sys.executable, *words], env=env, capture_output=True, timeout=PATIENCE_S, check=False
        )
    assert (done.returncode, asked) == (code, ["/health/ready"])


def test_a_container_may_end_in_order() -> None:
    """The compose file's grace is longer than draining clients, closing the log and backing up the metadata
    may take."""
    (compose,) = read_compose(COMPOSE).values()
    assert compose.grace_s * 1000 > DRAIN_MS + CLOSE_MS + BACKUP_CLOSE_MS


def test_the_build_is_given_what_a_wheel_is_made_of() -> None:
    """Every package and file that pyproject.toml and Spark's image name, and no checkout's data, environment,
    tests or compiled files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.split(".")[1] for name in project["tool"]["setuptools"]["packages"] if "." in name}
    files = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    files |= {f"{name}.py" for name in project["tool"]["setuptools"]["py-modules"]}
    files |= {
        "__main__.py",
        *project["tool"]["setuptools"]["package-data"]["millrace"],
        "requirements/run.txt",
        *re.findall(r"^COPY (requirements\S+|tests\S+)", SPARK_DOCKERFILE, re.MULTILINE),
    }
    first, *rest = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert first == "*"
    assert {line[1:] for line in rest if line.startswith("!")} == packages | files
    assert {"**/__pycache__", "**/*.so", "spark_jobs/jars"} <= set(rest)
