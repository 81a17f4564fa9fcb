"""The log directory is lost a moment after streams were opened, and the write-ahead log on its disk is still
there.

The bucket does not know these openings yet. A stream that it knows is recovered; one that was made since is
named by the restore and by the start, which goes on only by the operator's word.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.attack.test_restore import restore
from tests.attack.test_swapped_places import broker_on, produce, read, refusal, values, wal_at
from tests.live.client import Client

LATE = {"s3.metadata.upload.interval.ms": "3600000", "s3.wal.upload.interval.ms": "3600000"}


def test_streams_that_were_opened_just_before_the_loss_are_recovered_or_named(tmp_path: Path) -> None:
    """One topic is older and was written again, one is new: all of the first is there, and the second is not
    given up unsaid."""
    wal, logs = tmp_path / "wal", tmp_path / "data" / "metadata"
    settings = wal_at(wal)
    with broker_on(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        assert broker.stop() == 0  # the bucket has everything, and the streams are closed
    with broker_on(tmp_path, settings, LATE) as broker:
        produce(broker, range(10, 25))
        with Client(broker.address) as client:
            client.create("new")
        produce(broker, range(7), "new")
        broker.kill()
    shutil.rmtree(logs)
    broker = broker_on(tmp_path, settings, LATE)
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 1, told.stdout + told.stderr
    named = [line.strip() for line in told.stdout.splitlines() if " of node 1: offsets [" in line]
    assert any(line.endswith("offsets [0, 7)") for line in named), told.stdout
    assert "wal.lost.accept=true" in told.stdout
    for _ in range(2):
        said = refusal(broker)
        assert "were opened after what the metadata here knows: " in said
        assert all(line in said for line in named)
    with broker_on(tmp_path, settings, LATE, {"wal.lost.accept": "true"}) as broker:
        assert read(broker) == values(range(25))
        with Client(broker.address) as client:
            client.create("new")
        produce(broker, range(3), "new")
        broker.kill()
        said = broker.log_path.read_text()
        assert all(f"WAL loss accepted: {line}, given up" in said for line in named)
    with broker_on(tmp_path, settings, LATE) as broker:  # as any other start
        assert read(broker) == values(range(25))
        assert read(broker, "new") == values(range(3))
