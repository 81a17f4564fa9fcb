"""Stores that answer nothing until somebody has mended something here: the start waits, and the log and the ready page say what is to be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live import LiveBroker
from tests.live.test_s3 import ready_page, wait_until
from tests.live.test_s3_lacking import running


@pytest.mark.parametrize(
    ("fault", "remedy"), [("skewed", "set the clock"), ("expired", "the session token has expired")]
)
def test_what_can_be_mended_is_waited_for_and_told(tmp_path: Path, fault: str, remedy: str) -> None:
    """A clock that is wrong, a token that has expired; once it is mended the start goes on."""
    with running(fault) as store:
        broker = LiveBroker(tmp_path, {"s3.data.buckets": store.address}, wal="64MiB")
        broker.begin()
        with broker:
            wait_until(lambda: remedy in ready_page(broker), 30)
            wait_until(lambda: remedy in broker.log_path.read_text(), 30)
            store.faults.clear()
            broker.wait_ready()
            assert ready_page(broker) == "ready\n"


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
