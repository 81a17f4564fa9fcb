"""`make docker-test`: Dockerfile and docker-compose.yml as a user has them, in a real engine.

Builds the image, looks into it, starts the compose file unchanged and waits for its health, runs the snippet
of README.md against the published port and reads the published admin pages, then stops, kills and replaces
the container and compares, each time, all records, the group's offsets and the cluster's id with what there
was before. Takes all of it down, volumes too. Exit code 1 when something is not as it should be, 2 when there
is no engine. DEBIAN_BASE=FILE: base_image.py.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from tests.docker.base_image import provide_base
from tests.docker.commands import Failed, run, say, step
from tests.docker.engine import Engine, Missing, find_compose, find_engine
from tests.docker.pages import (
    ADMIN_PORT,
    KAFKA_PORT,
    image_name,
    normal_name,
    pinned_names,
    python_snippet,
    read_compose,
    read_dockerfile,
)

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "millrace-docker-test"  # apart from what a user of this engine runs by the same compose file
HEALTHY_S = 180.0
STEPS = re.compile(r"^(Step \d+/\d+|#\d+ \[)")
ORDERLY = "stopped in order"
MIB = 1 << 20
INSIDE = """
import importlib.metadata, importlib.util, json, os, stat
data = os.stat("/data")
print(json.dumps({
    "uid": os.getuid(), "owner": data.st_uid, "mode": oct(stat.S_IMODE(data.st_mode)),
    "is_compiled": importlib.util.find_spec("millrace.protocol._record_walk") is not None,
    "distributions": [found.metadata["Name"] for found in importlib.metadata.distributions()],
}))
"""


def expect(is_so: bool, what: str, seen: object) -> None:
    if not is_so:
        raise Failed(f"NOT SO: {what}; seen: {seen}")
    say(f"  {what}")


def snippet_lines(first: int) -> list[str]:
    return [f"0 {first + number} hello {number}" for number in range(10)]


class Trial:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.compose_words = find_compose(engine)
        self.compose_file = read_compose((ROOT / "docker-compose.yml").read_text())
        self.dockerfile = read_dockerfile((ROOT / "Dockerfile").read_text())
        self.image = image_name(PROJECT, self.compose_file.service, self.compose_words)
        self.is_base_made = False

    # --- the image

    def build(self, debian_base: Path | None) -> None:
        self.is_base_made = provide_base(self.engine, self.dockerfile.base, debian_base)
        with step(f"building the image {self.image}"):
            words = ("docker", "build", *self.engine.build_words, "--tag", self.image, str(ROOT))
            run(words, self.engine.env, STEPS)
        base, own = self.size_of(self.dockerfile.base), self.size_of(self.image)
        say(f"  {own / MIB:.0f} MiB, {(own - base) / MIB:.0f} of them above {self.dockerfile.base}")
        layers = self.engine.docker(
            "history", "--format", "{{.Size}} {{.CreatedBy}}", self.image
        ).splitlines()
        for size, _, command in (layer.partition(" ") for layer in layers):
            if size != "0B":
                say(f"  {size:>8} {command}")

    def size_of(self, image: str) -> int:
        return int(self.engine.docker("image", "inspect", "--format", "{{.Size}}", image))

    def look_inside(self) -> None:
        with step("looking into the image"):
            words = ("run", "--rm", "--network=none", "--entrypoint=python")
            found = json.loads(self.engine.docker(*words, self.image, "-c", INSIDE))
            in_base = (
                "import importlib.metadata as m; print(*(d.metadata['Name'] for d in m.distributions()))"
            )
            base = {
                normal_name(name)
                for name in self.engine.docker(*words, self.dockerfile.base, "-c", in_base).split()
            }
        expect(found["uid"] not in (0,), f"it runs as user {found['uid']}, not as root", found)
        expect(
            found["owner"] == found["uid"] and found["mode"] == "0o700", "/data is that user's alone", found
        )
        added = {normal_name(name) for name in found["distributions"]} - base
        allowed = pinned_names((ROOT / "requirements" / "run.txt").read_text()) | {"millrace-kafka"}
        expect(added <= allowed, "nothing is installed beside what the broker needs", sorted(added - allowed))
        expect(
            found["is_compiled"], "the walk over records is compiled", "in Python: the build had no compiler"
        )
        expect(
            "millrace-kafka" in added, f"millrace-kafka and {len(added) - 1} pinned requirements are", added
        )

    # --- the compose file

    def compose(self, *words: str) -> str:
        own = ("-p", PROJECT, "-f", str(ROOT / "docker-compose.yml"))
        return run((*self.compose_words, *own, *words), self.engine.env)

    def up(self, what: str) -> None:
        with step(what):
            self.compose("up", "-d", "--no-build")
            self.wait_for_health()

    def container(self) -> str:
        return self.compose("ps", "--all", "--quiet", self.compose_file.service).strip()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.engine.docker("inspect", "--format", "{{json .State}}", self.container())
        )
        return found

    def log(self) -> str:
        return run(("sh", "-c", 'docker logs "$1" 2>&1', "sh", self.container()), self.engine.env)

    def wait_for_health(self) -> None:
        """By the image's own HEALTHCHECK."""
        deadline = time.monotonic() + HEALTHY_S
        while (state := self.state())["Health"]["Status"] != "healthy":
            if (
                not state["Running"]
                or state["Health"]["Status"] == "unhealthy"
                or time.monotonic() > deadline
            ):
                raise Failed(f"the container is not healthy: {json.dumps(state)}\n{self.log()[-3000:]}")
            time.sleep(0.2)

    # --- a user's side

    def published(self, port: int) -> str:
        host, outer = self.compose_file.ports[port]
        return f"{host}:{outer}"

    def client(self, command: str, port: int = KAFKA_PORT) -> Any:
        words = [sys.executable, "-m", "tests.docker.client", command, self.published(port)]
        return json.loads(run(self.engine.within(words)))

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
            self.compose("stop")
        expect(
            self.state()["ExitCode"] == 0,
            "it ended by itself, within the grace time, with code 0",
            self.state(),
        )
        last = self.log().rstrip().splitlines()[-1]
        expect(last.endswith(ORDERLY), f"its last line: {last.partition('INFO')[2].strip() or last}", last)
        self.start_again(before)

    def kill_and_start(self, before: Any) -> None:
        with step("docker-compose kill"):
            self.compose("kill")
        expect(self.state()["ExitCode"] == 137, "it was killed", self.state())
        self.start_again(before)

    def start_again(self, before: Any) -> None:
        with step("docker-compose start, until it is healthy"):
            self.compose("start")
            self.wait_for_health()
        self.compare(before)

    def replace(self, before: Any) -> None:
        first = self.container()
        with step("docker-compose down, the volume stays"):
            self.compose("down")
        self.up("docker-compose up")
        expect(self.container() != first, "another container has the volume", first)
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

    def all_in_order(self, debian_base: Path | None) -> None:
        self.build(debian_base)
        self.look_inside()
        self.engine.serve()
        self.up("docker-compose up, until it is healthy")
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

    def take_down(self) -> None:
        with step("taking all down, the volume too"):
            self.compose("down", "--volumes", "--timeout", "30")
            images = [self.image, *[self.dockerfile.base] * self.is_base_made]
            for image in filter(self.engine.has, images):
                self.engine.docker("image", "rm", "--force", image)
        left = self.engine.docker("volume", "ls", "--quiet", "--filter", f"name={PROJECT}").split()
        expect(not left, "no volume is left", left)


def on_terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # through every `finally`


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.docker")
    parser.add_argument(
        "--debian-base", type=Path, metavar="FILE", help="where no registry answers (base_image.py)"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, on_terminated)
    began = time.monotonic()
    try:
        engine = find_engine()
        try:
            trial = Trial(engine)
            try:
                trial.all_in_order(options.debian_base)
            finally:
                trial.take_down()
        finally:
            engine.close()
    except Missing as missing:
        say(str(missing))
        return 2
    except Failed as failed:
        say(f"FAILED: {failed}")
        return 1
    say(f"All as it should be, {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
