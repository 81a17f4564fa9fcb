"""`millrace clock`: what it shows of a node's time, and the word that it takes from an operator."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.broker.cli import clock
from millrace.broker.cli.clock import Times, lines
from millrace.broker.cli.serve import Options, read_settings
from millrace.broker.identity.known_time import CONFIRMED, NEWEST
from millrace.broker.identity.known_time_text import decode_time, encode_time
from millrace.runtime.bundle import Runtime, real_runtime
from millrace.runtime.clock import Clock
from millrace.runtime.objectstore import ObjectStore, StoreDate
from millrace.runtime.objectstore.address import StoreAddress
from millrace.runtime.objectstore.memory import MemoryObjectStore
from tests.broker.partitions.build import SteppedClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
T = 1_700_000_000_000
META = "version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\n"


class DatedStore(MemoryObjectStore):
    last_date: StoreDate | None = None


class Node:
    """A data directory, a clock, and a bucket whose clock says `store_ms`; None: a directory of objects."""

    def __init__(self, folder: Path, wall_ms: int, store_ms: int | None = None) -> None:
        self.log_dir = folder / "metadata"
        self.log_dir.mkdir(parents=True)
        bucket = f"0@{'s3' if store_ms else 'file'}://{'lake' if store_ms else folder / 'objects'}"
        options = Options(None, (f"s3.data.buckets={bucket}", f"log.dirs={self.log_dir}"), str(folder))
        self.settings = read_settings(options, {}).settings
        self.runtime: Runtime = replace(real_runtime(), clock=SteppedClock(wall_ms), open_store=self._open)
        self._store_ms = store_ms

    async def _open(self, address: StoreAddress, clock: Clock) -> ObjectStore:
        store = DatedStore(clock)
        assert self._store_ms is not None
        store.last_date = StoreDate(self._store_ms, 0.0)
        return store

    def used(self, newest_ms: int | None) -> Node:
        (self.log_dir / "meta.properties").write_text(META)
        if newest_ms is not None:
            (self.log_dir / NEWEST).write_bytes(encode_time(newest_ms))
        return self

    def run(self, *, confirm: bool = False, anyway: bool = False, as_json: bool = False) -> int:
        given = argparse.Namespace(confirm=confirm, anyway=anyway, json=as_json)
        return asyncio.run(clock.look(self.runtime, self.settings, given))

    @property
    def confirmed_ms(self) -> int | None:
        path = self.log_dir / CONFIRMED
        return decode_time(path.read_bytes()) if path.exists() else None


@pytest.mark.parametrize(
    ("newest_ms", "store_ms", "is_doubted", "says"),
    [
        (None, None, False, "nothing is known"),
        (T - DAY_MS, None, False, "nothing speaks against it"),
        (T - 8 * DAY_MS, None, True, "--confirm"),
        (T + 8 * DAY_MS, None, True, "--confirm"),
        (T - 8 * DAY_MS, T + HOUR_MS // 2, False, "agrees"),
        (T, T - 2 * HOUR_MS, True, "Set this machine's clock right"),
    ],
)
def test_the_times_are_shown_and_judged(
    newest_ms: int | None, store_ms: int | None, is_doubted: bool, says: str
) -> None:
    """As a start would judge them."""
    found, texts = lines(Times(T, newest_ms, store_ms), DAY_MS)
    assert found == is_doubted
    assert says in texts[-1]
    assert "2023-11-14 22:13:20 UTC" in texts[0]


def test_an_operator_confirms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the broker takes is this machine's time."""
    node = Node(tmp_path, T).used(T - 14 * DAY_MS)
    assert node.run() == 1
    assert node.run(as_json=True) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["doubted"] is True
    assert node.confirmed_ms is None
    assert node.run(confirm=True) == 0
    assert node.confirmed_ms == T


def test_nothing_is_confirmed_against_the_bucket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless the operator says that the bucket is the one that is wrong."""
    node = Node(tmp_path, T, T - 8 * DAY_MS).used(T - 8 * DAY_MS)
    assert node.run(confirm=True) == 2
    assert "--anyway" in capsys.readouterr().err
    assert node.confirmed_ms is None
    assert node.run(confirm=True, anyway=True) == 0
    assert node.confirmed_ms == T


def test_a_directory_that_was_never_used_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written where no node lives."""
    node = Node(tmp_path, T)
    assert node.run(confirm=True) == 2
    assert "holds no metadata log" in capsys.readouterr().err
    assert node.confirmed_ms is None
