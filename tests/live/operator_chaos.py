"""An operator at work on a real cluster while its brokers die, and clients use it: partitions moved, brokers
drained and unregistered, recoveries broken off, logs given up in vain.

    python -m tests.live.chaos --faults operators

One thing at a time: brokers die in the middle of a command, or who recovers the log of one dies, is stopped,
or stands still. All the while an unclean election is asked for, which is never granted, for there is always
somebody who can recover a log. Then every broker is started, and within BOUND_S everything goes on
(probe.py). What clients were told is judged at the end (history.py).
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from millrace.protocol.messages.elect_leaders import ElectLeadersRequest
from tests.live import LiveBroker, warm
from tests.live.client import Client
from tests.live.cluster import LiveCluster
from tests.live.probe import Probe
from tests.live.test_brokers import leaders
from tests.live.traffic import Traffic
from tests.patience import PATIENCE_S, until

TOPIC, PARTITIONS = "spread", 6
BROKERS = 4
BOUND_S = 60.0
RECOVERER_S = 6.0  # for a dead broker's session to be over, and another to be asked
UNCLEAN = 1
OBJECTS = "0@file://{folder}/logs/?kind=object"
FILES = (
    "64MiB",
    "64MiB&fencing=claim",
)  # logs of blocks, where others wait for a lock, and where they do not


class GivingUp:
    """Asks at every broker for an unclean election of all partitions, again and again. `granted`: what was
    given up."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="gives up")
        self.refused: Counter[str] = Counter()
        self.granted: list[str] = []

    def _ask_on(self) -> None:
        while not self._is_over.is_set():
            for node in list(self._cluster.brokers.values()):
                with suppress(OSError), Client(node.address, 3.0) as client:
                    for _ in range(20):
                        self._ask(client)
                        time.sleep(0.02)
                time.sleep(0.02)

    def _ask(self, client: Client) -> None:
        answer = client.ask("ElectLeaders", ElectLeadersRequest(UNCLEAN, None, 3_000))
        for topic in answer.replica_election_results:
            for one in topic.partition_result:
                if one.error_code:
                    self.refused[re.sub(r"\d+", "N", one.error_message or "")] += 1
                else:
                    self.granted.append(f"{topic.topic}-{one.partition_id}: {one.error_message}")

    def __enter__(self) -> GivingUp:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S)


class OperatorChaos:
    """`act` does one thing, starts who is gone, and returns when everything goes on."""

    def __init__(self, cluster: LiveCluster, probe: Probe, seed: int) -> None:
        self._cluster = cluster
        self._probe = probe
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.longest_s = 0.0

    def act(self, name: str = "") -> None:
        name = name or self._random.choice(list(ACTS))
        self.done[name] += 1
        self._spread()
        ACTS[name](self)
        self._begin_all()
        self.longest_s = max(self.longest_s, self._probe.wait(BOUND_S).read_s)

    # -- what an operator says

    def _say(self, *words: str) -> subprocess.CompletedProcess[str]:
        """To `millrace cluster`, whatever it answers: but never with a trace."""
        running = [node.address for node in self._cluster.brokers.values() if node.is_running()]
        asked = ["-m", "millrace.broker", "cluster", *words, "--bootstrap-server", ",".join(running)]
        done = warm.run(asked)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def _expect(self, code: int, *words: str) -> None:
        done = self._say(*words)
        assert done.returncode == code, f"{' '.join(words)}: {done.returncode}, {done.stdout}{done.stderr}"

    @contextmanager
    def _saying(self, *words: str) -> Iterator[None]:
        """Beside what is done within."""
        thread = threading.Thread(target=self._say, args=words)
        thread.start()
        try:
            yield
        finally:
            thread.join(PATIENCE_S)

    def _spread(self) -> None:
        for place, (node_id, node) in enumerate(self._cluster.brokers.items()):
            with Client(node.address) as client:
                client.move(TOPIC, range(place, PARTITIONS, BROKERS), node_id)

    # -- brokers

    def _one(self, but: int = -1) -> int:
        return self._random.choice([node_id for node_id in self._cluster.brokers if node_id != but])

    def _node(self, node_id: int) -> LiveBroker:
        return self._cluster.brokers[node_id]

    def _pause(self, *seconds: float) -> None:
        time.sleep(self._random.choice(seconds))

    def _begin(self, node_id: int) -> None:
        if not self._node(node_id).is_running():
            self._node(node_id).begin()

    def _begin_all(self) -> None:
        for node_id in self._random.sample(list(self._cluster.brokers), BROKERS):
            self._begin(node_id)

    def _dead_with_recoverer(self) -> tuple[int, int | None]:
        """A broker that was killed, and who is asked to recover its log; None: nobody, for it had nothing."""
        (controller,) = self._cluster.quorum.nodes.values()
        victim, told = self._one(), controller.log_path.stat().st_size
        self._node(victim).kill()
        ends_s = time.monotonic() + RECOVERER_S
        while time.monotonic() < ends_s:
            text = controller.log_path.read_bytes()[told:].decode()
            found = re.findall(rf"broker {victim}: broker (\d+) is to recover", text)
            if found:
                return victim, int(found[-1])
            time.sleep(0.005)
        return victim, None

    # -- what is done

    def move(self) -> None:
        """What a broker leads, which stands still or is there, and dies behind it."""
        victim = self._one()
        target = self._one(but=victim)
        led = [index for index, leader in leaders(self._node(target)).items() if leader == victim]
        if self._random.random() < 0.5:
            os.kill(self._node(victim).pid, signal.SIGSTOP)
        with Client(self._node(target).address) as client:
            client.move(TOPIC, led, target)
        self._pause(0, 0.02, 0.1)
        self._node(victim).kill()
        self._pause(0, 1, 5)
        self._say("status")

    def drain(self) -> None:
        victim = str(self._one())
        with self._saying("drain", victim, "--at-once", "1", "--timeout", "20"):
            self._pause(0.3, 0.5, 0.8)
            self._node(int(victim)).kill()
        self._say("drain", victim, "--timeout", "5")
        self._begin(int(victim))
        self._say("undrain", victim)
        until(self._node(int(victim)).is_ready, "it does not start")
        self._expect(0, "undrain", victim)

    def spread(self) -> None:
        """The controller is killed below it."""
        self._node(self._one()).kill()
        (controller,) = self._cluster.quorum.nodes.values()
        with self._saying("spread", "--at-once", "1", "--timeout", "20"):
            self._pause(0.3, 0.5, 0.8)
            controller.kill()
            self._pause(0, 2)
            controller.start()

    def unregister(self) -> None:
        """One that serves, is dead, and starts: it comes back whatever was said."""
        victim = str(self._one())
        self._expect(1, "unregister", victim)
        self._node(int(victim)).kill()
        self._pause(0, 3.1, 5)
        self._say("unregister", victim)
        self._begin(int(victim))
        self._pause(0.3, 0.8)
        self._say("unregister", victim)

    def kill_recoverer(self) -> None:
        victim, recoverer = self._dead_with_recoverer()
        self._pause(0, 0.05, 0.1, 0.3)
        if self._random.random() < 0.3:
            self._begin(victim)
        if recoverer is not None:
            self._node(recoverer).kill()
            self._pause(0, 4)

    def stop_recoverer(self) -> None:
        _, recoverer = self._dead_with_recoverer()
        self._pause(0, 0.05, 0.2)
        if recoverer is not None:
            node = self._node(recoverer)
            code = node.stop()
            assert code == 0, f"a stop ended with {code}:\n{node.log_path.read_text()[-4000:]}"

    def halt_recoverer(self) -> None:
        """For less than a session, or more: the dead one may be back by then."""
        victim, recoverer = self._dead_with_recoverer()
        self._pause(0, 0.02, 0.1, 0.3)
        if recoverer is None:
            return
        os.kill(self._node(recoverer).pid, signal.SIGSTOP)
        try:
            self._pause(0.5, 3.5, 5)
            if self._random.random() < 0.5:
                self._begin(victim)
            self._pause(0, 1)
        finally:
            os.kill(self._node(recoverer).pid, signal.SIGCONT)

    def kill_all(self) -> None:
        for node in self._cluster.brokers.values():
            node.kill()
        self._pause(0, 4)


ACTS: dict[str, Callable[[OperatorChaos], None]] = {
    "moved from one that dies": OperatorChaos.move,
    "dies while it is drained": OperatorChaos.drain,
    "spread without the controller": OperatorChaos.spread,
    "unregistered": OperatorChaos.unregister,
    "who recovers is killed": OperatorChaos.kill_recoverer,
    "who recovers is stopped": OperatorChaos.stop_recoverer,
    "who recovers stands still": OperatorChaos.halt_recoverer,
    "all are killed": OperatorChaos.kill_all,
}


def run(
    folder: Path, seconds: float, seed: int, log: str, settings: dict[str, str], plan: Sequence[str] = ()
) -> str:
    """What was done, and how it went: acts of the plan, then drawn ones for so long. Raises AssertionError
    for what must not be."""
    more = {"s3.wal.path": OBJECTS.format(folder=folder)} if log == "object" else {}
    with LiveCluster(folder, 1, BROKERS, {**settings, **more}, FILES[seed % 2]) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        traffic = Traffic(cluster.addresses, TOPIC, PARTITIONS)
        probe = Probe(cluster, traffic, TOPIC, PARTITIONS)
        chaos = OperatorChaos(cluster, probe, seed)
        traffic.start()
        try:
            with GivingUp(cluster) as giving_up:
                probe.wait(BOUND_S)
                for name in plan:
                    chaos.act(name)
                ends_s = time.monotonic() + seconds
                while time.monotonic() < ends_s:
                    chaos.act()
        finally:
            traffic.finish()
        assert not giving_up.granted, giving_up.granted[:5]
        count, errors = traffic.check(), traffic.told.errors
    assert not errors, errors[:5]
    done = ", ".join(f"{name} {times}" for name, times in sorted(chaos.done.items()))
    ended = "".join(f"; ended {times} times: {said}" for said, times in sorted(probe.ended.items()))
    return (
        f"{count} records acknowledged, longest send {max(traffic.told.send_s):.1f} s; longest until "
        f"everything goes on: {chaos.longest_s:.1f} s; {done}; {sum(giving_up.refused.values())} elections "
        f"refused{ended}"
    )
