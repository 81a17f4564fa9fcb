"""A broker whose WAL is a raw block device: first start, kill -9, an orderly restart, more and less capacity,
a device that is too small."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import LiveBroker
from tests.live.client import MIB, Client
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("losetup") is None, reason="needs root and losetup"
)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    """A loop device of 64 MiB that was cleared."""
    backing = tmp_path / "backing"
    backing.write_bytes(bytes(64 * MIB))
    made = subprocess.run(
        ["losetup", "--find", "--show", str(backing)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(made.stderr)
    try:
        yield made.stdout.strip()
    finally:
        subprocess.run(["losetup", "--detach", made.stdout.strip()], check=False)


def broker_on(folder: Path, device: str, capacity: str, **more: str) -> LiveBroker:
    options = "".join(f"&{name}={value}" for name, value in more.items())
    return LiveBroker(folder, {"s3.wal.path": f"0@file://{device}?capacity={capacity}{options}"})


def test_a_raw_device_is_a_wal(tmp_path: Path, device: str) -> None:
    """Through kill -9 and with another capacity at each start every record is there, in order; nothing beyond
    the capacity is touched."""
    values: list[bytes] = []
    beyond = os.urandom(16 * MIB)
    for number, capacity in enumerate(("16MiB", "48MiB", "8MiB", "32MiB")):
        with broker_on(tmp_path / "node", device, capacity) as broker, Client(broker.address) as client:
            if number == 0:
                client.create("t")
            assert client.read("t") == values
            for _ in range(6):
                values.append(os.urandom(MIB // 2))
                client.produce("t", [values[-1]])
            if number % 2:
                assert broker.stop() == 0
            else:
                broker.kill()
        if number == 0:
            with open(device, "r+b") as raw:
                raw.seek(48 * MIB)
                raw.write(beyond)
    assert Path(tmp_path / "backing").read_bytes()[48 * MIB :] == beyond


def refusal(broker: LiveBroker) -> str:
    process = subprocess.run(
        broker.command(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert process.returncode == 1, process.stderr
    return process.stderr.splitlines()[-1]


def test_what_a_device_cannot_be_is_said(tmp_path: Path, device: str) -> None:
    """A capacity beyond the device, a device without reservations where one is required, and a device that
    holds a file system."""
    assert f"the WAL {device} is {64 * MIB} bytes, and {128 * MIB} are due" in refusal(
        broker_on(tmp_path / "large", device, "128MiB")
    )
    assert f"the WAL {device} is on no device that keeps other machines out" in refusal(
        broker_on(tmp_path / "reserved", device, "16MiB", reservation="require")
    )
    with open(device, "r+b") as raw:
        raw.seek(MIB)
        raw.write(b"left over")
    assert f"{device} holds no WAL, but the bytes 6c 65 66 74 20 6f 76 65 at byte {MIB}" in refusal(
        broker_on(tmp_path / "left", device, "16MiB")
    )
    subprocess.run(["mkswap", device], capture_output=True, check=True)
    before = Path(tmp_path / "backing").read_bytes()
    assert f"{device} holds no WAL, but swap space at byte 4086" in refusal(
        broker_on(tmp_path / "other", device, "16MiB")
    )
    assert Path(tmp_path / "backing").read_bytes() == before


def test_an_empty_log_dir_beside_a_used_device_is_refused(tmp_path: Path, device: str) -> None:
    """The device of another node's log is told from a new one, wherever it lies."""
    with broker_on(tmp_path / "node", device, "16MiB"):
        pass
    assert "the metadata log directory is empty, but the WAL" in refusal(
        broker_on(tmp_path / "other", device, "16MiB")
    )
