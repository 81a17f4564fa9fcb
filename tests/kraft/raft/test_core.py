"""The core, as dialogues: tests/transcripts/raft/*.txt, rewritten with MILLRACE_REWRITE=1 and read as a diff.

A block is a command, a line of dashes, and what it printed. Commands:

    cluster 1 2 3 [observers 4]   voters, and nodes that only follow
    cluster 1 dynamic [observers 2]   the same at kraft.version 1: voters are an id and a disk
    tick N... [xCOUNT]            time passes at some nodes, or `all`
    run COUNT                     time passes everywhere, and all is delivered, so often; fetches of nothing
                                  are not printed
    deliver [A->B]                delivers everything until it is quiet, or one round of one pair
    drop [A->B]                   loses what is queued
    reverse A->B                  what is queued arrives in the other order: it goes by several connections
    cut N... / heal               a node hears and is heard no more / all are again
    propose N NAME...             one record each
    crash N / restart N           forgets what is not durable
    wipe N                        its disk is lost; it is up again, and empty
    add L N / remove L N          the leader L changes the voters; N as it is now
    upgrade L                     to kraft.version 1, with all voters as they are now
    voters                        whom each holds for the voters
    require N EPOCH END           metadata is known to be committed up to there
    compact N END                 a snapshot takes the place of the log below END
    resign N
    state
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.kraft.errors import NotLeader
from tests.kraft.raft.cluster import Cluster, Node

FOLDER = Path(__file__).parents[2] / "transcripts" / "raft"
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))


def run_command(cluster: Cluster | None, line: str) -> tuple[Cluster, list[str]]:
    words = line.split()
    verb, rest = words[0], words[1:]
    if verb == "cluster":
        is_dynamic = "dynamic" in rest
        rest = [word for word in rest if word != "dynamic"]
        split = rest.index("observers") if "observers" in rest else len(rest)
        ids = tuple(map(int, rest[:split])), tuple(map(int, rest[split + 1 :]))
        cluster = Cluster(*ids, is_dynamic=is_dynamic)
    assert cluster is not None
    nodes = cluster.nodes
    if verb == "tick":
        count = int(rest.pop()[1:]) if rest[-1].startswith("x") else 1
        cluster.tick(list(nodes) if rest == ["all"] else [int(word) for word in rest], count)
    elif verb == "run":
        for _ in range(int(rest[0])):
            cluster.tick(list(nodes), 1)
            cluster.deliver(is_brief=True)
    elif verb == "deliver":
        cluster.deliver(rest[0] if rest else None)
    elif verb == "drop":
        cluster.queue = [m for m in cluster.queue if rest and f"{m.source}->{m.target}" != rest[0]]
    elif verb == "reverse":
        pair = [m for m in cluster.queue if f"{m.source}->{m.target}" == rest[0]]
        cluster.queue = pair[::-1] + [m for m in cluster.queue if f"{m.source}->{m.target}" != rest[0]]
    elif verb == "cut":
        cluster.cut = [int(word) for word in rest]
    elif verb == "heal":
        cluster.cut = []
    elif verb == "propose":
        node = nodes[int(rest[0])]
        try:
            for name in rest[1:]:
                node.core.propose(name, 1)
        except NotLeader as error:
            cluster.out.append(f"not leader, leader={error.leader_id}")
        cluster.settle(node)
    elif verb == "crash":
        nodes[int(rest[0])].raft = None
    elif verb == "restart":
        nodes[int(rest[0])].boot()
        cluster.settle(nodes[int(rest[0])])
    elif verb == "wipe":
        node = nodes[int(rest[0])]
        known = node.voters, node.disk_count + 1, node.bootstrap
        nodes[node.node_id] = node = Node(node.node_id, known[0], disk_count=known[1], bootstrap=known[2])
        node.boot()
        cluster.settle(node)
    elif verb == "require":
        nodes[int(rest[0])].core.require(int(rest[1]), int(rest[2]))
    elif verb == "compact":
        node, end = nodes[int(rest[0])], int(rest[1])
        epoch = next(entry.epoch for entry in node.entries if entry.end == end)
        cluster.compact(node, end, epoch)
    elif verb in ("add", "remove", "upgrade"):
        cluster.change(int(rest[0]), verb, int(rest[-1]))
    elif verb == "voters":
        cluster.voters()
    elif verb == "resign":
        nodes[int(rest[0])].core.resign()
        cluster.settle(nodes[int(rest[0])])
    elif verb == "state":
        cluster.states()
    else:
        assert verb == "cluster", f"no command {verb}"
    printed, cluster.out = cluster.out, []
    return cluster, printed


def replay(text: str) -> str:
    """The transcript with what its commands print now."""
    cluster: Cluster | None = None
    out: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line.strip() or line.startswith("#"):
            out.append(line)
            continue
        cluster, printed = run_command(cluster, line)
        out += [line, "----", *(printed or ["ok"]), ""]
        for old in lines:  # what it printed the last time
            if not old.strip():
                break
    return "\n".join(out).rstrip() + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """Each dialogue prints what was reviewed."""
    text = path.read_text()
    printed = replay(text)
    if os.environ.get("MILLRACE_REWRITE"):
        path.write_text(printed)
    assert printed == text


def test_there_are_transcripts() -> None:
    """The dialogues are found."""
    assert len(TRANSCRIPTS) >= 8
