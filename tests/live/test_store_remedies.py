"""Stores that answer nothing until somebody has mended something here: the start waits, and the log and the
ready page say what is to be done."""

from __future__ import annotations

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.live import LiveBroker, free_port
from tests.live.test_s3 import ready_page
from tests.live.test_s3_lacking import running
from tests.patience import until


@pytest.mark.parametrize("setting", ["s3.data.buckets", "s3.wal.path"])
@pytest.mark.parametrize(
    ("fault", "remedy"), [("skewed", "set the clock"), ("expired", "the session token has expired")]
)
def test_what_can_be_mended_is_waited_for_and_told(
    tmp_path: Path, setting: str, fault: str, remedy: str
) -> None:
    """A clock that is wrong, a token that has expired; once it is mended the start goes on. The WAL's root is
    looked for with a HEAD, which is answered without a word for why."""
    with running(fault) as store:
        broker = LiveBroker(tmp_path, {setting: store.address}, wal="64MiB")
        broker.begin()
        with broker:
            until(lambda: remedy in ready_page(broker))
            until(lambda: remedy in broker.log_path.read_text())
            store.faults.clear()
            broker.wait_ready()
            assert ready_page(broker) == "ready\n"


class _Keys(BaseHTTPRequestHandler):
    """A machine's own source of credentials."""

    def do_GET(self) -> None:
        keys = {
            "AccessKeyId": "a",
            "SecretAccessKey": "b",
            "Token": "c",
            "Expiration": "2999-01-01T00:00:00Z",
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(keys).encode())

    def log_message(self, *words: object) -> None:
        pass


@pytest.mark.parametrize("setting", ["s3.data.buckets", "s3.wal.path"])
def test_a_source_of_credentials_that_is_away_is_waited_for(tmp_path: Path, setting: str) -> None:
    """At a machine's boot it may come later than the broker; whose store waits for it is told."""
    whose = "the WAL's store" if setting == "s3.wal.path" else "the object store"
    port = free_port()
    env = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{port}/keys",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_CONFIG_FILE": os.devnull,
    }
    with running() as store:
        address = store.address.partition("&accessKey")[0]
        broker = LiveBroker(tmp_path, {setting: address}, env, wal="64MiB")
        broker.begin()
        with broker:
            until(lambda: "credentials" in ready_page(broker))
            assert whose in ready_page(broker)
            until(lambda: "not ready" in broker.log_path.read_text())
            with ThreadingHTTPServer(("127.0.0.1", port), _Keys) as source:
                Thread(target=source.serve_forever, daemon=True).start()
                broker.wait_ready()
                assert ready_page(broker) == "ready\n"
                source.shutdown()


@pytest.mark.parametrize("setting", ["s3.data.buckets", "s3.wal.path"])
def test_an_address_with_a_prefix_is_a_mistake_in_the_settings(tmp_path: Path, setting: str) -> None:
    """Told with what to say instead, before anything is made."""
    broker = LiveBroker(tmp_path, {setting: "0@s3://buck/prefix?region=eu-west-1"})
    broker.begin()
    assert broker.wait_end() == 2
    told = broker.log_path.read_text()
    assert f"  {setting}=0@s3://buck/prefix" in told
    assert "say s3://buck" in told
    assert "Traceback" not in told
    assert not (tmp_path / "data").exists()
