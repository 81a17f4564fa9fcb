"""A store that is away while the node serves: what is said of it, how often, and whether the node is
ready."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millrace.broker.background import outage_watch
from millrace.broker.background.outage_watch import OutageWatch
from millrace.broker.background.start_watch import StartWatch
from tests.sim.loop import SimLoop, run_simulation


def test_an_outage_is_said_each_minute_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """Its length is measured from when it was first seen. One that is over within a minute was said by who
    waited, and not here."""
    caplog.set_level(logging.INFO, outage_watch.__name__)
    reasons = {"wal": "", "uploads": ""}

    async def main(loop: SimLoop) -> None:
        watch = OutageWatch(lambda: reasons["wal"], lambda: reasons["uploads"])
        task = asyncio.ensure_future(watch.run())
        reasons["uploads"] = "503"
        await asyncio.sleep(20)
        reasons["uploads"] = ""
        reasons["wal"] = "no route to the store"
        await asyncio.sleep(6)
        assert watch.unready_reason() == "", "one request that is tried again is no outage"
        await asyncio.sleep(124)
        assert watch.unready_reason() == "no route to the store"
        assert 120 <= watch.wal.seconds() <= 130
        assert watch.uploads.seconds() == 0
        reasons["wal"] = ""
        await asyncio.sleep(10)
        assert watch.wal.seconds() == 0
        task.cancel()

    run_simulation(main)
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" for")[0].partition(" after")[0] for line in said] == [
        "writes of the write-ahead log have waited",
        "writes of the write-ahead log have waited",
        "writes of the write-ahead log go on",
    ]
    assert "no route to the store; nothing is acknowledged" in said[0]


def test_a_node_without_its_wal_is_not_ready() -> None:
    """While it starts the stage is what is said; uploads that wait leave a node ready."""
    watch = StartWatch()
    watch.wal_reason, watch.blocked_reason = lambda: "503", lambda: "uploads: 503"
    assert watch.reason == "starting (uploads: 503)"
    watch.leave()
    assert watch.reason == "the write-ahead log cannot be written, and nothing is acknowledged: 503"
    watch.wal_reason = lambda: ""
    assert watch.reason == ""
