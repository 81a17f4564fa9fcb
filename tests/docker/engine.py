"""The Docker engine that the image is built and run by: the one that is there, or one of our own for as long
as it is needed.

An engine of our own has all its files in one folder and changes nothing outside it: it builds on this
machine's network without a bridge, and runs containers in a network namespace of its own, where a bridge
gives the compose file's port mappings what they need. So no rule and no interface of this machine is touched;
whoever wants to reach a published port enters that namespace (`within`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.docker.commands import Failed, run, say, step, succeeds

READY_S, END_S = 60.0, 60.0
FREE_BYTES_MIN = 8 << 30  # the base, a compiler for the build, and a log of 2 GiB
OWN_NEEDS = ("dockerd", "containerd", "runc", "unshare", "nsenter", "ip")
BRIDGE, BRIDGE_NET = "br0", "172.31.250.1/24"
IN_NAMESPACE = (
    f"ip link set lo up && ip link add {BRIDGE} type bridge && ip addr add {BRIDGE_NET} dev {BRIDGE} && "
    f'ip link set {BRIDGE} up && exec "$@"'
)
REMEDY = """\
No Docker engine answers. Either start one (DOCKER_HOST, where it is not at its usual place), or run this as
root where Docker's parts are installed: on Debian and Ubuntu
  apt-get install docker.io docker-compose iproute2 util-linux
An engine of its own is then started for the test, and ended after it."""


class Missing(Exception):
    """There is no engine and none can be started; the message says what to do."""


class Engine:
    """One that is there already. `env`: what its clients need to find it."""

    def __init__(self) -> None:
        self.env: dict[str, str] = {}
        if not succeeds(("docker", "buildx", "version")):
            self.env["DOCKER_BUILDKIT"] = "0"
        self.build_words: tuple[str, ...] = ()

    def docker(self, *words: str) -> str:
        return run(("docker", *words), self.env)

    def has(self, image: str) -> bool:
        return succeeds(("docker", "image", "inspect", image), self.env)

    def within(self, words: Sequence[str]) -> list[str]:
        """The command as it reaches published ports."""
        return list(words)

    def serve(self) -> None:
        """From here on containers are run."""

    def close(self) -> None:
        """Leaves nothing."""


class OwnEngine(Engine):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.env["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
        self.build_words = ("--network=host",)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._run_engine((), "none")

    def serve(self) -> None:
        with step("starting the engine again, in a network namespace of its own"):
            self._end()
            self._run_engine(("unshare", "--net", "sh", "-c", IN_NAMESPACE, "sh"), BRIDGE)

    def within(self, words: Sequence[str]) -> list[str]:
        assert self._process is not None
        return ["nsenter", f"--target={self._process.pid}", "--net", "--", *words]

    def close(self) -> None:
        with step("ending the engine"):
            self._end()
        with step(f"removing {self.folder}"):
            self._remove()

    def _remove(self) -> None:
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for place in sorted((place for place in mounts if place.startswith(f"{self.folder}/")), reverse=True):
            run(("umount", place))
        shutil.rmtree(self.folder)

    def _run_engine(self, before: Sequence[str], bridge: str) -> None:
        words = ["--iptables=false", "--ip-masq=false", "--ip-forward=false", f"--bridge={bridge}"]
        words += [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec"]
        words += [f"--pidfile={self.folder}/docker.pid", f"--host={self.env['DOCKER_HOST']}"]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                (*before, "dockerd", *words), stdout=log, stderr=log, start_new_session=True
            )  # a session of its own: Ctrl-C is for us, who end it when the containers are gone
        self._process = process
        deadline = time.monotonic() + READY_S
        while not succeeds(("docker", "version"), self.env):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-20:])
                raise Failed(f"the Docker engine did not start:\n{tail}")
            time.sleep(0.1)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def find_engine() -> Engine:
    """Raises Missing."""
    if succeeds(("docker", "version")):
        host = os.environ.get("DOCKER_HOST", "")
        if host and not host.startswith("unix://"):
            raise Missing(
                f"The engine at {host} publishes ports on its own machine; the compose file is tried where "
                "it publishes them."
            )
        say("engine: the one that is running")
        return Engine()
    if os.geteuid() or not all(map(shutil.which, ("docker", *OWN_NEEDS))):
        raise Missing(REMEDY)
    folder = Path(tempfile.mkdtemp(prefix="millrace-docker-"))
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES_MIN:
        folder.rmdir()
        raise Missing(
            f"{folder.parent} has {free >> 20} MiB free; an engine's folder needs {FREE_BYTES_MIN >> 20}. "
            "TMPDIR names another."
        )
    engine = OwnEngine(folder)
    say(f"engine: our own, in {folder}")
    try:
        with step("starting it"):
            engine.start()
    except BaseException:
        engine.close()
        raise
    return engine


def find_compose(engine: Engine) -> tuple[str, ...]:
    """Docker's plugin, or the program before it. Raises Missing."""
    for words in (("docker", "compose"), ("docker-compose",)):
        if succeeds((*words, "version"), engine.env):
            return words
    raise Missing("There is no compose: on Debian, apt-get install docker-compose.")
