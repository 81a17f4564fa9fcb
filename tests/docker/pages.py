"""What Dockerfile, docker-compose.yml and README.md say, read from their texts. Pure: no engine, no files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

KAFKA_PORT, ADMIN_PORT = 9092, 9644  # in a container


def python_snippet(markdown: str) -> str:
    """The first block of Python. Raises ValueError when the page has none."""
    found = re.search(r"^```python\n(.*?)^```$", markdown, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("the page has no block of Python")
    return found[1]


@dataclass(frozen=True, slots=True)
class Image:
    """What a Dockerfile's last stage makes of a container. `bases`: what all stages begin from."""

    base: str
    bases: tuple[str, ...]
    env: Mapping[str, str]
    entrypoint: tuple[str, ...]
    health_command: tuple[str, ...]
    user: str


def read_dockerfile(text: str) -> Image:
    """Instructions of the last stage, each in its form on one line. Raises KeyError for one that is not
    there."""
    found: dict[str, str] = {}
    env: dict[str, str] = {}
    bases: list[str] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found, env = {}, {}
            bases.append(rest.split()[0])
        if word == "ENV":
            env |= dict(pair.split("=", 1) for pair in rest.split())
        elif word.isupper():
            found[word] = rest
    health = found["HEALTHCHECK"].partition("CMD ")[2]
    return Image(
        base=bases[-1],
        bases=tuple(dict.fromkeys(bases)),
        env=env,
        entrypoint=tuple(json.loads(found["ENTRYPOINT"])),
        health_command=tuple(json.loads(health)),
        user=found["USER"],
    )


@dataclass(frozen=True, slots=True)
class Service:
    """`ports`: where on the host, by the container's port. `volumes`: what is mounted, and where.
    `waits_for`: services, and what has to be true of each."""

    ports: Mapping[int, tuple[str, int]]
    env: Mapping[str, str]
    command: tuple[str, ...]
    volumes: tuple[tuple[str, str], ...]
    waits_for: Mapping[str, str]
    restart: str
    grace_s: int
    profiles: tuple[str, ...]

    def address(self, port: int) -> str:
        host, outer = self.ports[port]
        return f"{host}:{outer}"


def read_compose(text: str) -> dict[str, Service]:
    """By name. Ports in their form ADDRESS:PORT:PORT, the environment as a mapping, the command as one text,
    the time to stop in seconds. Raises ValueError for others."""
    whole: dict[str, Any] = yaml.safe_load(text)
    found = {}
    for name, service in whole["services"].items():
        ports = {}
        for mapping in service.get("ports", ()):
            address, port, inner = mapping.split(":")
            ports[int(inner)] = address, int(port)
        mounts = (mount.split(":") for mount in service.get("volumes", ()))
        found[name] = Service(
            ports=ports,
            env={key: str(value) for key, value in service.get("environment", {}).items()},
            command=tuple(service.get("command", "").split()),
            volumes=tuple((source, target) for source, target, *_ in mounts),
            waits_for={one: said["condition"] for one, said in service.get("depends_on", {}).items()},
            restart=service["restart"],
            grace_s=int(service.get("stop_grace_period", "10s").removesuffix("s")),
            profiles=tuple(service.get("profiles", ())),
        )
    return found


def pinned_names(requirements: str) -> set[str]:
    """The distributions that a file of pinned requirements installs on this system's kind."""
    return {
        normal_name(line.partition("==")[0])
        for line in requirements.splitlines()
        if re.match(r"[A-Za-z]", line)
    }


def normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def image_name(project: str, service: str, compose_words: Sequence[str]) -> str:
    """What compose calls the image that it builds for a service; its first edition joined by `_`."""
    return f"{project}_{service}" if tuple(compose_words) == ("docker-compose",) else f"{project}-{service}"
