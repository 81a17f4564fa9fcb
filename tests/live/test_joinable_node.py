"""A node that is its own whole quorum and has a listener for others is refused what a lone node is refused,
before it leads, and with nothing changed: no other voter has what it lacks."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.broker.identity.ownership import HALT_MS
from tests.live import LiveBroker, free_port, warm
from tests.live.client import Client
from tests.live.test_first_start import tree

QUICK = {"s3.metadata.upload.interval.ms": "200"}


def joinable(folder: Path) -> LiveBroker:
    """Its bucket is `folder`/bucket, its metadata log `folder`/data/metadata."""
    node = LiveBroker(folder, {**QUICK, "s3.data.buckets": f"0@file://{folder}/bucket"}, wal="64MiB")
    at = f"PLAINTEXT://{node.address},CONTROLLER://127.0.0.1:{free_port()}"
    node.override({"listeners": at})
    return node


def test_one_that_stood_still_acknowledges_no_metadata_beside_its_copy(tmp_path: Path) -> None:
    """A process on a copy of its folder took the node over meanwhile, and knows of nothing that came later:
    so nothing that was asked of the one that stood still is told to be done."""
    answers: list[object] = []

    def ask(client: Client) -> None:
        try:
            client.create("late")
            answers.append("made")
        except (AssertionError, OSError) as error:
            answers.append(error)

    with joinable(tmp_path) as node, Client(node.address) as client:
        client.create("early")
        os.kill(node.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        shutil.copytree(tmp_path / "data", tmp_path / "copy" / "data")
        copy = joinable(tmp_path / "copy")
        copy.override({"s3.data.buckets": f"0@file://{tmp_path}/bucket"})
        with copy:
            asking = threading.Thread(target=ask, args=[client])
            asking.start()
            time.sleep(max(0.0, began_s + HALT_MS / 1000 + 1.0 - time.monotonic()))  # it has to notice
            os.kill(node.pid, signal.SIGCONT)
            assert node.wait_end() == 1
            asking.join()
            assert answers != ["made"]
            with Client(copy.address) as other:
                assert sorted(other.topic_ids()) == ["early"]


def contents(folder: Path) -> dict[str, bytes]:
    """Of what a start may change; the lock's file names who looked last."""
    kept = [name for name in tree(folder) if not name.endswith((".lock", ".log.old", "broker.log"))]
    return {name: (folder / name).read_bytes() for name in kept if (folder / name).is_file()}


def raise_level(node: LiveBroker) -> None:
    words = ["cluster", "upgrade", "kraft.version=1", "--bootstrap-server", node.address]
    assert warm.run(["-m", node.module, *words]).returncode == 0


def with_older_log(folder: Path) -> None:
    shutil.rmtree(folder / "data" / "metadata")
    shutil.copytree(folder / "kept" / "metadata", folder / "data" / "metadata")


def with_lost_log(folder: Path) -> None:
    shutil.rmtree(folder / "data" / "metadata")


def with_older_bucket(folder: Path) -> None:
    shutil.rmtree(folder / "bucket")
    shutil.copytree(folder / "kept" / "bucket", folder / "bucket")


@pytest.mark.parametrize(
    ("change", "said", "where"),
    [
        (with_older_log, "the metadata log is older than", "list"),
        (with_lost_log, "the metadata log directory is empty, but", "list"),
        (with_lost_log, "the metadata log directory is empty, but", "log"),
        (with_older_bucket, "is older than the metadata log: claim", "list"),
        (with_older_bucket, "is older than the metadata log: claim", "log"),
    ],
)
def test_what_is_older_or_lost_is_refused(
    tmp_path: Path, change: Callable[[Path], None], said: str, where: str
) -> None:
    """`where`: what names the only voter. Where its log does, it may have led before it is told."""
    with joinable(tmp_path) as node:
        if where == "log":
            raise_level(node)
        with Client(node.address) as client:
            client.create("early")
            client.produce("early", [b"1"])
        assert node.stop() == 0
        for part in (tmp_path / "data" / "metadata", tmp_path / "bucket"):
            shutil.copytree(part, tmp_path / "kept" / part.name)
        node.start()
        with Client(node.address) as client:
            client.create("late")
            client.produce("early", [b"2"])
        assert node.stop() == 0
        change(tmp_path)
        kept = tmp_path / "bucket" if where == "log" else tmp_path
        before = contents(kept)
        node.begin()
        assert node.wait_end() == 1
        assert said in node.run_log()
        assert contents(kept) == before
