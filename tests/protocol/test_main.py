"""The command that prints compiled text."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millrace.protocol.__main__ import show
from tests.patience import PATIENCE_S


def test_show_prints_both_directions() -> None:
    """`show Metadata 12` gives the functions of the request and of the response, and they compile."""
    text = show(["show", "Metadata", "12"])
    for function in (
        "read_MetadataRequest",
        "write_MetadataRequest",
        "read_MetadataResponse",
        "write_MetadataResponse",
    ):
        assert f"def {function}(" in text
    compile(text, "shown", "exec")
    assert "Response" not in show(["show", "Metadata", "12", "request"])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["show", "Metadata"],
        ["show", "Metadata", "x"],
        ["show", "Nothing", "1"],
        ["show", "Metadata", "99"],
    ],
)
def test_mistakes_are_told(arguments: list[str]) -> None:
    """Anything else is a ValueError that says what was wrong, and exit code 2."""
    with pytest.raises(ValueError):
        show(arguments)


def test_exit_codes() -> None:
    """0 with text, 2 with a complaint on stderr."""
    command = [sys.executable, "-m", "millrace.protocol"]
    good = subprocess.run(
        [*command, "show", "Heartbeat", "4"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (good.returncode, good.stderr) == (0, "")
    bad = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert bad.returncode == 2
    assert bad.stderr.startswith("usage:")
