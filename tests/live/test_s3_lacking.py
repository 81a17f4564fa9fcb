"""The broker on a store that lacks all that can be lacked: it works, and says in a sentence what is not
guarded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live import LiveBroker
from tests.live.bad_s3 import BadS3
from tests.live.client import Client
from tests.live.test_s3 import begun, check_refusal
from tests.patience import PATIENCE_S, until

LACKING = ("ignores-if-match", "refuses-checksums", "no-bulk-delete")


@contextmanager
def running(*faults: str) -> Iterator[BadS3]:
    """The store on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    store = BadS3(*faults)
    asyncio.run_coroutine_threadsafe(store.__aenter__(), loop).result(PATIENCE_S)
    try:
        yield store
    finally:
        asyncio.run_coroutine_threadsafe(store.__aexit__(None, None, None), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


def objects(store: BadS3) -> list[str]:
    return [key for key in list(store.objects) if "/objects/" in key]


@pytest.mark.parametrize("condition", ["ignores-if-none-match", "refuses-if-none-match"])
def test_a_broker_lives_on_a_store_that_lacks_nearly_all(tmp_path: Path, condition: str) -> None:
    """Records go to objects and come back after a restart, deleted topics leave the store, and each lack is
    said once in the log."""
    with running(condition, *LACKING) as store:
        overrides = {
            "s3.data.buckets": store.address,
            "s3.wal.upload.interval.ms": "200",
            "s3.object.delete.retention.minutes": "0",
        }
        with LiveBroker(tmp_path, overrides, wal="64MiB") as broker:
            values = [b"%d " % number * 300 for number in range(50)]
            with Client(broker.address) as client:
                client.create("kept")
                client.produce("kept", values)
            until(lambda: objects(store))
            broker.restart()
            with Client(broker.address) as client:
                assert client.read("kept") == values
                assert broker.metrics()['millrace_storage_reads_total{source="objects"}'] > 0
                assert client.delete("kept") == 0
            until(lambda: not objects(store))
            assert broker.stop() == 0
        said = (tmp_path / "broker.log").read_text()
        assert said.count("is not guarded") == 1, said
        for lack in ("refuses checksum headers", "refuses bulk deletion"):
            assert 1 <= said.count(lack) <= 2, said  # once a start
        assert "secretKey=secret" not in said


def test_an_object_wal_is_not_begun_where_it_cannot_be_fenced(tmp_path: Path) -> None:
    """The start ends with a sentence that names two ways out."""
    with running("ignores-if-none-match") as store:
        wal = f"{store.address}&capacity=64MiB"
        broker = LiveBroker(tmp_path, {"s3.data.buckets": store.address, "s3.wal.path": wal})
        check_refusal(begun(broker), "fence=reservation")
