"""Containers: what compose runs of one file of ours, apart from what a user of this engine runs by it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.docker.commands import Failed, run, say, step
from tests.docker.engine import Engine, find_compose
from tests.docker.pages import image_name, read_compose

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "millrace-docker-test"
HEALTHY_S = 180.0


def expect(is_so: bool, what: str, seen: object) -> None:
    """Raises Failed."""
    if not is_so:
        raise Failed(f"NOT SO: {what}; seen: {seen}")
    say(f"  {what}")


class Containers:
    def __init__(self, engine: Engine, file_name: str) -> None:
        self.engine = engine
        self.file = ROOT / file_name
        self.services = read_compose(self.file.read_text())
        self._compose_words = find_compose(engine)
        self._own_words = ["-p", PROJECT, "-f", str(self.file)]
        for profile in sorted({one for service in self.services.values() for one in service.profiles}):
            self._own_words += ["--profile", profile]

    def image(self, service: str) -> str:
        return image_name(PROJECT, service, self._compose_words)

    def compose(self, *words: str, codes: Sequence[int] = (0,)) -> str:
        """Of services of all profiles. Raises Failed."""
        return run((*self._compose_words, *self._own_words, *words), self.engine.env, codes=codes)

    def up(self, what: str, services: Sequence[str], *options: str) -> None:
        with step(what):
            self.compose("up", "-d", "--no-build", *options, *services)
            self.wait_for_health(services)

    def container(self, service: str) -> str:
        return self.compose("ps", "--all", "--quiet", service).strip()

    def inspect(self, service: str, part: str) -> Any:
        return json.loads(
            self.engine.docker("inspect", "--format", f"{{{{json {part}}}}}", self.container(service))
        )

    def state(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = self.inspect(service, ".State")
        return found

    def log(self, service: str) -> str:
        return run(("sh", "-c", 'docker logs "$1" 2>&1', "sh", self.container(service)), self.engine.env)

    def wait_for_health(self, services: Sequence[str]) -> None:
        """By the images' own HEALTHCHECK. Raises Failed."""
        deadline = time.monotonic() + HEALTHY_S
        for service in services:
            while (state := self.state(service))["Health"]["Status"] != "healthy":
                is_lost = not (state["Running"] or state["Restarting"])
                if is_lost or state["Health"]["Status"] == "unhealthy" or time.monotonic() > deadline:
                    raise Failed(
                        f"{service} is not healthy: {json.dumps(state)}\n{self.log(service)[-3000:]}"
                    )
                time.sleep(0.2)

    def client(self, command: str, address: str) -> Any:
        """One of tests.docker.client, on the host's side of the published ports."""
        words = [sys.executable, "-m", "tests.docker.client", command, address]
        return json.loads(run(self.engine.within(words)))

    def take_down(self) -> None:
        """Raises Failed where volumes are left."""
        with step("taking all down, the volumes too"):
            self.compose("down", "--volumes", "--timeout", "30")
        left = self.engine.docker("volume", "ls", "--quiet", "--filter", f"name={PROJECT}").split()
        expect(not left, "no volume is left", left)
