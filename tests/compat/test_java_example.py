"""The example of a Java client behind `millrace test`, as its reader would run it."""

from __future__ import annotations

import subprocess
import sys

from tests.compat.jvm import java_command
from tests.patience import PATIENCE_S
from tests.testing.test_examples import EXAMPLES


def test_the_java_example_passes() -> None:
    """With Kafka's own client, of the jars that are here; its exit code and output come through."""
    words = [
        sys.executable,
        "-m",
        "millrace.broker",
        "test",
        "--topic",
        "orders:3",
        "--",
        *java_command("Orders.java"),
    ]
    done = subprocess.run(
        words, cwd=EXAMPLES / "java_orders", capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "read 1\n"), done.stderr[-4000:]
