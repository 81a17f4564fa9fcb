"""A command whose output nobody reads, or that cannot write it: quiet, with the exit code of a closed pipe,
or one sentence; `serve` serves on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.cli.test_wal import write
from tests.patience import PATIENCE_S

CLOSED_PIPE = 128 + signal.SIGPIPE
COMMAND = [sys.executable, "-m", "millrace.broker"]


def into_closed_pipe(*words: str, unbuffered: bool = False) -> tuple[int, str]:
    """Exit code and stderr of a command whose reader has gone before it begins to write."""
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "PYTHONUNBUFFERED": "1"} if unbuffered else dict(os.environ)
    found = subprocess.run(
        [*COMMAND, *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=env,
    )
    os.close(writer)
    return found.returncode, found.stderr


@pytest.mark.parametrize("words", ["--help", "--version", "fsck --help", "settings", "pipeline list"])
@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_closed_pipe_ends_a_command_quietly(words: str, unbuffered: bool) -> None:
    """What fits the buffer meets the pipe at the end alone, what does not in the middle: either way 141 and
    no word."""
    assert into_closed_pipe(*words.split(), unbuffered=unbuffered) == (CLOSED_PIPE, "")


@pytest.mark.parametrize("action", ["list", "show", "verify"])
def test_a_log_is_shown_to_nobody(action: str, tmp_path: Path) -> None:
    """`millrace wal show F | head`, which says much and catches errors of the disk on its way."""
    path = tmp_path / "wal"
    asyncio.run(write(path))
    assert into_closed_pipe("wal", action, str(path)) == (CLOSED_PIPE, "")


def test_a_full_disk_is_a_sentence() -> None:
    """Output that goes to a file on a full disk: one line that says so, code 2."""
    with open("/dev/full", "wb") as full:
        found = subprocess.run(
            [*COMMAND, "settings"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert (found.returncode, found.stderr) == (2, "millrace: standard output: No space left on device\n")


def test_nobody_reads_the_mistakes() -> None:
    """What goes to stderr alone is dropped, and the exit code is what it was."""
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(
        [*COMMAND, "nosuch"],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    os.close(writer)
    assert (found.returncode, found.stdout) == (2, "")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_ends_nobody_who_serves(stream: str) -> None:
    """A broker whose log goes to a disk without room serves on, and its end is what it was."""
    script = "import sys; from millrace.broker.cli.output import take_over; take_over(is_lasting=True)"
    script += f"; print('ready', file=sys.{stream}, flush=True)"
    with open("/dev/full", "wb") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        found = subprocess.run([sys.executable, "-c", script], timeout=PATIENCE_S, check=False, **streams)
    assert (found.returncode, found.stdout or b"", found.stderr or b"") == (0, b"", b"")


def test_a_full_disk_takes_no_mistakes() -> None:
    """What stderr has no room for is lost, and the exit code is what it was."""
    with open("/dev/full", "wb") as full:
        found = subprocess.run(
            [*COMMAND, "nosuch"], stdout=subprocess.PIPE, stderr=full, timeout=PATIENCE_S, check=False
        )
    assert (found.returncode, found.stdout) == (2, b"")


def test_streams_that_were_closed_at_the_start_are_no_files(tmp_path: Path) -> None:
    """`>&- 2>&- <&-`: the loop's own descriptors get other numbers (it aborts where they do not), and the
    code is the command's."""
    script = '"$0" -m millrace.broker fsck --data-dir "$1" <&- >&- 2>&-'
    found = subprocess.run(
        ["sh", "-c", script, sys.executable, str(tmp_path)], timeout=PATIENCE_S, check=False
    )
    assert found.returncode == 2


def test_who_serves_lets_go_of_its_output() -> None:
    """A broker whose ready line nobody reads serves on: what it says is dropped, without an error then or at
    its end."""
    reader, writer = os.pipe()
    os.close(reader)
    script = (
        "from millrace.broker.cli.output import take_over; take_over(is_lasting=True); print('ready', "
        "flush=True); print('on')"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False
    )
    os.close(writer)
    assert (found.returncode, found.stderr) == (0, b"")


@pytest.mark.parametrize("name", ["cli", "cli.output", "cli.restore", "config", "restore.restoring"])
def test_a_command_that_is_interrupted_as_it_is_loaded_leaves_no_trace(name: str, tmp_path: Path) -> None:
    """Ctrl-C in an import, as of the first tenth of a second: 130 and nothing else, also where it meets a
    callback that cannot raise."""
    script = """
import os, signal, sys
from millrace.broker.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)
class Meeting:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "millrace.broker." + sys.argv[1]:
            Meeting()
sys.meta_path.insert(0, Finder())
sys.exit(main(["restore", "--data-dir", sys.argv[2]]))
"""
    words = [sys.executable, "-c", script, name, str(tmp_path / "none")]
    found = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (128 + signal.SIGINT, "", "")


def test_little_is_loaded_before_an_interrupt_is_met() -> None:
    """What is loaded before `main` is called may still print a trace: two small files of ours, and nothing of
    the library."""
    script = (
        "import sys; before = set(sys.modules); import millrace.broker.__main__; "
        "print(*sorted(set(sys.modules) - before))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    ours = {"millrace", "millrace.broker", "millrace.broker.__main__", "millrace.broker.interrupts"}
    assert set(found.stdout.split()) <= {*ours, "__future__", "_signal"}


def test_an_interrupted_command_leaves_no_trace() -> None:
    """Ctrl-C during a long check: 130 and nothing else."""
    script = """
import os, signal, sys
from millrace.broker import __main__, cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is begun with it ignored
cli.run = lambda words, env, run_loop: run_loop(interrupted())
async def interrupted():
    import asyncio
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)
sys.exit(__main__.main(["fsck"]))
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (128 + signal.SIGINT, "", "")
