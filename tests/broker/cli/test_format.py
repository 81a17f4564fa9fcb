"""`millrace format`: what it makes of an empty directory, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.cli import format as command
from millrace.broker.cli.serve import Options, read_settings
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.log.snapshot import load_snapshot
from millrace.kraft.raft.voters import DYNAMIC, Endpoint, VoterSet
from millrace.protocol.ids import uuid_bytes, uuid_text
from millrace.runtime.disk.posix import PosixDisk

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
A, B = uuid_text(b"a" * 16), uuid_text(b"b" * 16)
SETTINGS = {
    "node.id": "2",
    "s3.data.buckets": "0@s3://lake",
    "controller.quorum.bootstrap.servers": "a:1,b:2",
    "controller.listener.names": "C",
    "listeners": "PLAINTEXT://:1,C://0.0.0.0:2",
    "advertised.listeners": "PLAINTEXT://b:1,C://b:2",
}


def run(folder: Path, *words: str, **settings: str) -> int:
    def run_loop(work: Coroutine[Any, Any, int]) -> int:
        return asyncio.run(work)

    return command.run([*options(folder, settings), *words], {}, run_loop)


def options(folder: Path, settings: dict[str, str]) -> list[str]:
    given = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
    found = ["--data-dir", str(folder)]
    for name, value in given.items():
        found += ["--override", f"{name}={value}"]
    return found


def first_voters(folder: Path) -> VoterSet | None:
    log = f"{folder}/metadata/__cluster_metadata-0"
    return asyncio.run(load_snapshot(PosixDisk(), log, SnapshotId(0, 0))).voters


def meta_of(folder: Path) -> dict[str, str]:
    lines = (folder / "metadata" / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def is_dynamic(folder: Path) -> bool:
    """As `serve` reads the settings of the directory."""
    given = tuple(options(folder, {"cluster_id": CLUSTER})[3::2])
    return read_settings(Options(None, given, str(folder)), {}).settings.controller.is_dynamic


def test_a_quorum_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its voter has the directory's id, and the listener that is advertised; a second time it is refused, and
    left as it is."""
    assert run(tmp_path, "--standalone", cluster_id=CLUSTER) == 0
    meta, voters = meta_of(tmp_path), first_voters(tmp_path)
    assert (meta["cluster.id"], meta["node.id"]) == (CLUSTER, "2")
    assert voters is not None
    (voter,) = voters.voters
    assert (voters.kraft_version, voter.node_id) == (DYNAMIC, 2)
    assert voter.directory_id == uuid_bytes(meta["directory.id"])
    assert voter.endpoints == (Endpoint("C", "b", 2),)
    assert meta["directory.id"] in capsys.readouterr().out
    assert is_dynamic(tmp_path)
    assert run(tmp_path, "--standalone", cluster_id=CLUSTER) == 2
    assert "already" in capsys.readouterr().err
    assert meta_of(tmp_path) == meta


def test_a_node_that_joins_knows_nobody(tmp_path: Path) -> None:
    """It has an id of its directory, and no voters; settings take it for one of a quorum all the same."""
    assert run(tmp_path, "--no-initial-controllers", cluster_id=CLUSTER) == 0
    assert not list((tmp_path / "metadata").rglob("*.checkpoint"))
    assert len(meta_of(tmp_path)["directory.id"]) == 22
    assert is_dynamic(tmp_path)


def test_several_first_nodes_have_the_list(tmp_path: Path) -> None:
    """And each the directory that the list gives it."""
    assert run(tmp_path, "--initial-controllers", f"3@c:3:{B},2@[::1]:2:{A}", cluster_id=CLUSTER) == 0
    voters = first_voters(tmp_path)
    assert voters is not None
    assert [(one.node_id, one.endpoints[0].host) for one in voters.voters] == [(2, "::1"), (3, "c")]
    assert meta_of(tmp_path)["directory.id"] == A


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (f"3@c:3:{B}", "does not name this node, 2"),
        (f"2@b:2:{A},2@c:3:{B}", "twice"),
        ("2", "ID@HOST:PORT:DIRECTORY"),
        ("2@b:2", "22 characters"),
        ("2@b:2:x", "22 characters"),
        (f"2@b:2:{uuid_text(bytes(16))}", "names no directory"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(
    text: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a sentence, and nothing is made."""
    assert run(tmp_path, "--initial-controllers", text, cluster_id=CLUSTER) == 2
    assert word in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_broker_alone_is_not_formatted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"process_roles": "broker", "cluster_id": CLUSTER, "listeners": "PLAINTEXT://:1"}
    assert run(tmp_path, "--standalone", **words, advertised_listeners="PLAINTEXT://b:1") == 2
    assert "no controller" in capsys.readouterr().err
