"""`millrace cluster start`: the nodes of a cluster on this machine, and one screen that shows them.

A node that ends by itself is started again after `RESTART_S`, unless it could not start. Ctrl-C, SIGTERM or
a closed terminal stops all of them at once, a second one ends them without order. Exit code: 0 when all ended
in order, 1 when one did not or none could start, 2 for a mistake in what was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.broker.cli import RunLoop
from millrace.broker.cli.cluster_node import LocalNode, State
from millrace.broker.cli.table import counted, size_text, table
from millrace.broker.cluster.client import ClusterClient
from millrace.broker.cluster.plan import NODES_MAX, NODES_MIN, decode_cluster, new_cluster, plan_nodes
from millrace.broker.cluster.view import look
from millrace.broker.settings.addresses import join_host_port
from millrace.protocol.errors import KafkaError, WireError
from millrace.runtime import process
from millrace.runtime.errors import Unavailable
from millrace.runtime.net import LoopNet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millrace.broker.cluster.plan import NodePlan
    from millrace.broker.cluster.view import ClusterView

PORT = 9092
LOOK_S = 1.0
PAUSE_PART = 10.0  # of the last look: so much longer is the pause before the next
ANSWER_S = 1.0  # of a node that is only looked at
RESTART_S = 10.0
FILE = "cluster.json"
USED = b"millrace_wal_used_bytes "


def start(given: argparse.Namespace, run_loop: RunLoop) -> int:
    if not NODES_MIN <= given.nodes <= NODES_MAX:
        print(
            f"millrace: --nodes is none of {NODES_MIN} to {NODES_MAX}: one node alone is millrace serve, and "
            "two have no majority once one is gone",
            file=sys.stderr,
        )
        return 2
    try:
        plans = read_plans(given)
    except (ValueError, OSError) as error:
        print(f"millrace: {error}", file=sys.stderr)
        return 2
    return run_loop(Screen([LocalNode(plan) for plan in plans], is_terminal=sys.stdout.isatty()).run())


def read_plans(given: argparse.Namespace) -> list[NodePlan]:
    """Those of the cluster in the folder, or of a new one, which is noted there. Raises ValueError,
    OSError."""
    from millrace.broker.settings.source import gather
    from millrace.protocol.ids import uuid_text
    from millrace.runtime.rand import Rand

    data_dir = os.path.abspath(given.data_dir)
    overrides, mistakes = gather(tuple(given.override), {}, None, "")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    path = Path(data_dir) / FILE
    try:
        cluster, is_new = decode_cluster(path.read_text()), False
    except FileNotFoundError:
        new_id = uuid_text(Rand.from_system().uuid())
        cluster, is_new = new_cluster(new_id, given.nodes, PORT if given.port is None else given.port), True
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if given.port not in (None, cluster.port):
        raise ValueError(f"the cluster in {data_dir} is at port {cluster.port}: that stays")
    settings = {key: one.text for key, one in overrides.items()}
    fencing = given.wal_fencing or usual_fencing(data_dir, settings)
    plans = plan_nodes(cluster, given.nodes, data_dir, process.memory_bytes(), settings, fencing)
    if is_new:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".new")
        written.write_text(cluster.encode())
        written.replace(path)
    return plans


def usual_fencing(data_dir: str, settings: Mapping[str, str]) -> str:
    """Claims, but where the nodes would be refused with them. A log that has them keeps them whatever is said
    here."""
    from millrace.runtime.disk.opening import takes_direct

    is_direct = settings.get("wal.direct.io") != "never" and takes_direct(data_dir)
    return "claim" if is_direct else "lock"


class Screen:
    """Starts the nodes, shows them until somebody asks to stop, and stops them."""

    def __init__(self, nodes: list[LocalNode], *, is_terminal: bool) -> None:
        self._nodes = nodes
        self._is_terminal = is_terminal
        self._asked = asyncio.Event()
        self._drawn = 0  # lines
        self._looked_s = 0.0  # that the last look took: of a large cluster it is work for its brokers
        self._said: dict[str, str] = {}
        self._used: dict[int, int] = {}  # bytes of write-ahead logs
        self._view: ClusterView | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        code = 1
        try:
            for node in self._nodes:
                await node.begin()
            code = await self._show()
        finally:
            ended_in_order = await self._stop()
        return code or int(not ended_in_order)

    def _on_signal(self) -> None:
        if self._asked.is_set():
            for node in self._nodes:
                node.kill()
        self._asked.set()

    async def _show(self) -> int:
        async with ClusterClient(LoopNet(), [node.plan.clients for node in self._nodes]) as client:
            while not self._asked.is_set():
                self._draw()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(LOOK_S, PAUSE_PART * self._looked_s)):
                        await self._asked.wait()
                began_s = asyncio.get_running_loop().time()
                await self._look(client)
                self._looked_s = asyncio.get_running_loop().time() - began_s
                self._restart()
                if all(node.state is State.ENDED and not node.was_ready for node in self._nodes):
                    self._draw()
                    return 1
        return 0

    async def _look(self, client: ClusterClient) -> None:
        self._view = None
        if any(node.state is State.READY for node in self._nodes):
            with contextlib.suppress(TimeoutError, Unavailable, WireError, KafkaError):
                async with asyncio.timeout(ANSWER_S):
                    self._view = await look(client)
        ready = [node for node in self._nodes if node.state is State.READY]
        used = await asyncio.gather(*(used_bytes(*node.plan.admin) for node in ready))
        self._used = {
            node.plan.node_id: size for node, size in zip(ready, used, strict=True) if size is not None
        }

    def _restart(self) -> None:
        for node in self._nodes:
            if node.state is State.ENDED and node.was_ready and not node.is_restarting:
                node.restart_in(RESTART_S)

    async def _stop(self) -> bool:
        """Whether all ended in order."""
        for node in self._nodes:
            node.stop()
        if self._is_terminal:
            self._draw()
        else:
            print("stopping; a second signal ends the nodes at once", flush=True)
        await asyncio.gather(*(node.wait_end() for node in self._nodes))
        self._draw()
        return all(node.code == 0 or node.ended_early for node in self._nodes)

    def _draw(self) -> None:
        if self._is_terminal:
            lines = self.lines()
            up = f"\x1b[{self._drawn}F" if self._drawn else ""
            print(up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J", end="", flush=True)
            self._drawn = len(lines)
            return
        for node in self._nodes:
            process_text = f", pid {node.pid}" if node.pid else ""
            self._say(f"node {node.plan.node_id}", node_text(node) + process_text)
        if self._view is not None:
            self._say("cluster", view_text(self._view, [node.plan for node in self._nodes]))

    def _say(self, of: str, text: str) -> None:
        """Once for as long as it stays the same."""
        if self._said.get(of) != text:
            self._said[of] = text
            print(f"{of}: {text}", flush=True)

    def lines(self) -> list[str]:
        view = self._view
        known = {} if view is None else {one.node_id: one for one in view.nodes}
        rows = []
        for node in self._nodes:
            node_id, told = node.plan.node_id, known.get(node.plan.node_id)
            is_controller = view is not None and view.controller_id == node_id
            rows.append(
                (
                    str(node_id),
                    node.plan.roles + (" (leads)" if is_controller else ""),
                    join_host_port(*node.plan.clients),
                    str(node.pid) if node.pid else "-",
                    "-" if told is None else f"{told.led} led",
                    size_text(self._used[node_id]) if node_id in self._used else "-",
                    "-" if told is None or told.behind < 0 else f"{told.behind} behind",
                    node_text(node),
                )
            )
        head = ("node", "roles", "clients at", "pid", "partitions", "WAL", "metadata", "state")
        told_text = "no broker tells of it yet" if view is None else view_text(view, [])
        return [*table(head, rows), "", f"{told_text}. Ctrl-C stops all."]


def node_text(node: LocalNode) -> str:
    if node.state is not State.ENDED:
        return str(node.state.value)
    if node.code is None:
        return f"not started: {node.failure}"
    again = f"; starts again in {RESTART_S:.0f} s" if node.is_restarting else ""
    if node.ended_early:
        return f"ended before it served{again}"
    if node.code < 0:
        return f"ended by signal {-node.code}{again}"
    said = f"; {node.log_path} ends: {node.last_words()}" if node.code else ""
    return f"ended with code {node.code}{again}{said}"


def view_text(view: ClusterView, plans: list[NodePlan]) -> str:
    addresses = ",".join(join_host_port(*plan.clients) for plan in plans)
    where = f"bootstrap servers {addresses}; " if plans else ""
    leads = f"node {view.controller_id} leads the quorum" if view.controller_id >= 0 else "nobody leads"
    waiting = len(view.leaderless)
    waits = f"; {counted(waiting, 'partition')} without a leader" if waiting else ""
    return f"{where}{leads}; {len(view.serving)} of {counted(len(view.nodes), 'node')} serve{waits}"


async def used_bytes(host: str, port: int) -> int | None:
    """What a node's write-ahead log holds, as its page of metrics says; None where it does not answer."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: millrace\r\n\r\n")
                async for line in reader:
                    if line.startswith(USED):
                        return int(float(line[len(USED) :]))
            finally:
                writer.close()
    except (TimeoutError, OSError, ValueError):
        pass
    return None
