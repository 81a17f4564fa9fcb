"""Three nodes over an S3 server: docker-compose.yml as a user has it.

While producers and a group are at work a node's container is killed, the one whose controller leads: what it
led goes on at the others. It comes back; another's process ends by itself, and the engine starts it again;
then all are replaced, one after the other. What clients were told is compared with what is there at the end.
With the images of Spark its service takes all of it into a table.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.docker.commands import Failed, say, step
from tests.docker.containers import Containers, expect
from tests.docker.engine import Engine
from tests.docker.pages import ADMIN_PORT
from tests.docker.single import ORDERLY
from tests.docker.traffic import BEGUN
from tests.patience import PATIENCE_S, until

FILE = "docker-compose.yml"
HOST_PORT = 19092  # in a container
STORE, SPARK = "s3", "spark"
LINES = 40  # of a log, where something is not as it should be
BETWEEN_S = 3.0  # of traffic, with all nodes there
END = "import os, signal; os.kill(1, signal.SIGTERM)"
ROWS = """
import json
import pyarrow.dataset as datasets
from pyarrow.fs import S3FileSystem
store = S3FileSystem(endpoint_override="s3:9000", scheme="http", region="us-east-1")
try:
    table = datasets.dataset("lake/events", filesystem=store, partitioning="hive")
    columns = ["topic", "partition", "offset"]
    rows = table.to_table(columns=columns).to_pylist() if "topic" in table.schema.names else []
except FileNotFoundError:
    rows = []  # no batch was begun
places = [(row["topic"], row["partition"], row["offset"]) for row in rows]
print(json.dumps({"rows": len(places), "twice": len(places) - len(set(places)),
                  "topics": sorted({topic for topic, _, _ in places})}))
"""


class ClusterTrial:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.containers = Containers(engine, FILE)
        services = self.containers.services
        self.nodes = {name: one for name, one in services.items() if HOST_PORT in one.ports}
        self.addresses = ",".join(one.address(HOST_PORT) for one in self.nodes.values())

    def all_in_order(self, *, is_with_spark: bool) -> None:
        """Raises Failed, with the last words of each container."""
        try:
            self._try_all(is_with_spark=is_with_spark)
        except (Failed, AssertionError) as error:
            last = [f"{name}:\n{self._last_words(name)}" for name in self.containers.services]
            raise Failed("\n".join([str(error), *last])) from error

    def _last_words(self, name: str) -> str:
        if not self.containers.container(name):
            return "not there"
        return "\n".join(self.containers.log(name).splitlines()[-LINES:])

    def _try_all(self, *, is_with_spark: bool) -> None:
        self.containers.up("three nodes: docker-compose up, until all are healthy", [STORE, *self.nodes])
        self.look_from_the_host()
        self.expect_all_well()
        with self.traffic() as told:
            time.sleep(BETWEEN_S)
            self.kill_and_start()
            self.end_and_see_it_started()
            self.roll()
            time.sleep(BETWEEN_S)
        expect(not told["errors"], "no client was told an error", told["errors"])
        say(
            f"  {told['acknowledged']} records acknowledged, each there once and read by the group; the "
            f"longest send took {told['longest_send_s']} s"
        )
        self.expect_all_well()
        if is_with_spark:
            self.stream(told["acknowledged"])

    def look_from_the_host(self) -> None:
        """Each port of this machine serves, and tells of all three."""
        for name, service in self.nodes.items():
            found = self.containers.client("cluster", service.address(HOST_PORT))
            expect(
                ",".join(found["brokers"]) == self.addresses,
                f"{name} at {service.address(HOST_PORT)} tells this machine of {', '.join(found['brokers'])}",
                found,
            )
            status, text = self.containers.client("pages", service.address(ADMIN_PORT))["/health/ready"]
            expect(status == 200, f"{service.address(ADMIN_PORT)}/health/ready: {text.strip()}", text)

    # --- the cluster, as it tells of itself

    def status(self, asked: str) -> dict[str, Any] | None:
        """By `millrace cluster status` in a container. None: nobody answers there, or it ends meanwhile."""
        words = ("exec", "-T", asked, "millrace", "cluster", "status", "--json")
        try:
            found: dict[str, Any] = json.loads(self.containers.compose(*words, codes=(0, 1)))
        except Failed:
            return None
        return found

    def expect_all_well(self) -> None:
        asked = next(iter(self.nodes))
        with step(f"millrace cluster status in {asked}"):
            told = self.containers.compose("exec", "-T", asked, "millrace", "cluster", "status")
        for line in filter(None, told.splitlines()):
            say(f"  {line}")
        expect("3 nodes" in told and "3 voters" in told, "three nodes, three voters, none is gone", told)

    def name_of(self, node_id: int) -> str:
        return next(
            one for one, service in self.nodes.items() if service.env["KAFKA_NODE_ID"] == f"{node_id}"
        )

    # --- what becomes of nodes

    @contextmanager
    def traffic(self) -> Iterator[dict[str, Any]]:
        """Clients on this machine's ports, for as long as the block lasts; then the dict has what they were
        told."""
        words = self.engine.within([sys.executable, "-m", "tests.docker.traffic", self.addresses])
        told: dict[str, Any] = {}
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            assert clients.stdin is not None
            assert clients.stdout is not None
            try:
                if clients.stdout.readline().strip() != BEGUN:
                    raise Failed("the clients did not begin")
                yield told
                with step("the clients end, and all is read anew"):
                    clients.stdin.close()
                    line = clients.stdout.read()
                    if clients.wait(PATIENCE_S):
                        raise Failed("what clients were told is not what is there (above)")
            except BaseException:
                clients.kill()
                raise
        told |= json.loads(line)

    def kill_and_start(self) -> None:
        before = self.status(next(iter(self.nodes)))
        assert before is not None, "nobody answers"
        victim = self.name_of(before["controller_id"])
        asked = next(one for one in self.nodes if one != victim)
        led = next(one["partitions_led"] for one in before["nodes"] if self.name_of(one["node_id"]) == victim)
        with step(f"docker-compose kill {victim}, whose controller leads, and which leads {led} partitions"):
            self.containers.compose("kill", victim)
        killed_s = time.monotonic()
        with step("until the others lead what it led"):
            until(lambda: self._is_led_without(victim, asked), f"{victim} leads partitions", pause_s=0.1)
        say(f"  {time.monotonic() - killed_s:.1f} s after the kill every partition is led by another")
        others = ",".join(one.address(HOST_PORT) for name, one in self.nodes.items() if name != victim)
        with step("writing records to all partitions of another topic"):
            count = self.containers.client("fill", others)
        say(f"  {count} acknowledged")
        state = self.containers.state(victim)
        expect(state["ExitCode"] == 137 and not state["Running"], f"{victim} was killed, and is gone", state)
        with step(f"docker-compose start {victim}, until it is healthy"):
            self.containers.compose("start", victim)
            self.containers.wait_for_health([victim])
        self.wait_for_all(asked)

    def _is_led_without(self, victim: str, asked: str) -> bool:
        found = self.status(asked)
        if found is None:
            return False
        led = {self.name_of(one["node_id"]): one["partitions_led"] for one in found["nodes"]}
        return found["controller_id"] >= 0 and not found["without_leader"] and not led.get(victim)

    def wait_for_all(self, asked: str) -> None:
        def is_whole() -> bool:
            found = self.status(asked)
            if found is None:
                return False
            serving = [one for one in found["nodes"] if not one["is_fenced"]]
            return len(serving) == len(self.nodes) and not found["without_leader"]

        with step("until all nodes serve"):
            until(is_whole, "a node does not serve", pause_s=0.1)

    def end_and_see_it_started(self) -> None:
        name = list(self.nodes)[-1]
        with step(f"the process of {name} ends, and the engine starts it again"):
            self.containers.compose("exec", "-T", name, "python", "-c", END)
            until(lambda: self.containers.inspect(name, ".RestartCount") == 1, f"{name} was not started")
            self.containers.wait_for_health([name])
        self.wait_for_all(name)

    def roll(self) -> None:
        """A container of its own for each, as a new image would have it; the volumes stay."""
        for name in self.nodes:
            first = self.containers.container(name)
            with step(f"{name}: stop, and replace by another container"):
                self.containers.compose("stop", name)
                state, log = self.containers.state(name), self.containers.log(name)
                self.containers.compose("up", "-d", "--no-build", "--no-deps", "--force-recreate", name)
                self.containers.wait_for_health([name])
            expect(
                state["ExitCode"] == 0 and log.rstrip().endswith(ORDERLY),
                f"{name} ended in order, within the grace time",
                (state, log[-1000:]),
            )
            expect(self.containers.container(name) != first, "another container has the volume", first)
            self.wait_for_all(name)

    # --- the table

    def stream(self, count: int) -> None:
        """`count`: records at least that the topics have."""
        self.containers.up("docker-compose --profile spark up, until it is healthy", [SPARK], "--no-deps")
        found: dict[str, Any] = {}

        def is_all() -> bool:
            found.update(json.loads(self.containers.compose("exec", "-T", SPARK, "python", "-c", ROWS)))
            return bool(found["rows"] >= count and "traffic" in found["topics"])

        with step("until the table has all records"):
            until(is_all, f"the table lacks records: {found}", pause_s=1.0)
        expect(not found["twice"], f"{found['rows']} rows of {', '.join(found['topics'])}, none twice", found)
        with step("docker-compose stop spark"):
            self.containers.compose("stop", SPARK)
        state = self.containers.state(SPARK)
        expect(state["ExitCode"] == 0, "it ended by itself, within the grace time, with code 0", state)

    def take_down(self) -> None:
        self.containers.take_down()
