"""One node: docker-compose.single.yml as a user has it.

Starts it and waits for its health, runs the snippet of README.md against the published port and reads the
published admin pages, then stops, kills and replaces the container and compares, each time, all records, the
group's offsets and the cluster's id with what there was before.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.docker.commands import run, say, step
from tests.docker.containers import Containers, expect
from tests.docker.engine import Engine
from tests.docker.pages import ADMIN_PORT, KAFKA_PORT, python_snippet

ROOT = Path(__file__).resolve().parents[2]
FILE = "docker-compose.single.yml"
ORDERLY = "stopped in order"


def snippet_lines(first: int) -> list[str]:
    return [f"0 {first + number} hello {number}" for number in range(10)]


class SingleTrial:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.containers = Containers(engine, FILE)
        ((self.name, self.service),) = self.containers.services.items()

    def all_in_order(self) -> None:
        """Raises Failed."""
        self.containers.up("one node: docker-compose up, until it is healthy", [self.name])
        self.admin_pages()
        self.snippet(0)
        self.fill()
        found = self.observe()
        expect(found["topics"].keys() == {"greetings", "filled"}, "both topics are there", found)
        expect(found["groups"] == {"readers": {"greetings-0": 10}}, "the group has read ten records", found)
        self.stop_and_start(found)
        self.fill()
        found = self.observe()
        self.kill_and_start(found)
        self.replace(found)
        self.snippet(10)

    # --- a user's side

    def client(self, command: str, port: int = KAFKA_PORT) -> Any:
        return self.containers.client(command, self.service.address(port))

    def snippet(self, first: int) -> None:
        """`first`: the offset of the first record that it prints."""
        with tempfile.TemporaryDirectory() as folder, step("running the snippet of README.md"):
            program = Path(folder) / "snippet.py"
            program.write_text(python_snippet((ROOT / "README.md").read_text()))
            lines = run(self.engine.within([sys.executable, str(program)])).splitlines()
        expect(lines == snippet_lines(first), f"it prints {lines[:1]} to {lines[-1:]}", lines)

    def admin_pages(self) -> None:
        with step("reading the published admin pages"):
            found = self.client("pages", ADMIN_PORT)
        for path, (status, text) in found.items():
            expect(
                status == 200 and bool(text), f"{path} answers 200, {len(text)} bytes", (status, text[:200])
            )
        expect(
            "millrace_build_info" in found["/metrics"][1],
            "/metrics names the build",
            found["/metrics"][1][:500],
        )

    def fill(self) -> None:
        with step("writing records"):
            count = self.client("fill")
        say(f"  {count} acknowledged")

    def observe(self) -> Any:
        with step("reading all that there is"):
            found = self.client("observe")
        return found

    # --- what a container goes through

    def stop_and_start(self, before: Any) -> None:
        with step("docker-compose stop"):
            self.containers.compose("stop")
        state = self.containers.state(self.name)
        expect(state["ExitCode"] == 0, "it ended by itself, within the grace time, with code 0", state)
        last = self.containers.log(self.name).rstrip().splitlines()[-1]
        expect(last.endswith(ORDERLY), f"its last line: {last.partition('INFO')[2].strip() or last}", last)
        self.start_again(before)

    def kill_and_start(self, before: Any) -> None:
        with step("docker-compose kill"):
            self.containers.compose("kill")
        state = self.containers.state(self.name)
        expect(state["ExitCode"] == 137, "it was killed", state)
        self.start_again(before)

    def start_again(self, before: Any) -> None:
        with step("docker-compose start, until it is healthy"):
            self.containers.compose("start")
            self.containers.wait_for_health([self.name])
        self.compare(before)

    def replace(self, before: Any) -> None:
        first = self.containers.container(self.name)
        with step("docker-compose down, the volume stays"):
            self.containers.compose("down")
        self.containers.up("docker-compose up", [self.name])
        expect(self.containers.container(self.name) != first, "another container has the volume", first)
        self.compare(before)

    def compare(self, before: Any) -> None:
        found = self.observe()
        expect(
            found == before,
            f"cluster {found['cluster']}, groups {found['groups']} as before",
            (before, found),
        )
        for topic, digest in found["topics"].items():
            say(f"  {topic}: {digest} as before")
