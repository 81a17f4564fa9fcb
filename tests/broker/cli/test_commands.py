"""The command line: what it prints, its exit codes, signals, and how long it takes to load."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.broker.cli import COMMANDS
from millrace.broker.cli.serve import parse_options, read_settings, within_files
from millrace.broker.config import load
from millrace.broker.errors import SettingsInvalid
from millrace.broker.settings.connection_limits import ConnectionLimits
from millrace.broker.version import VERSION
from tests.patience import PATIENCE_S, next_line

ROOT = Path(__file__).resolve().parents[3]

# A broker of real parts, without storage: the shell with ApiVersions and a Heartbeat that never finishes.
STANDALONE = """
import asyncio, sys
from millrace.broker.__main__ import run_loop
from millrace.broker.cli import serve
from millrace.broker.requests.dispatch import Dispatcher
from millrace.broker.network.memory import RequestBudget
from millrace.broker.network.server import Server, bind_all
from millrace.runtime import process
from millrace.runtime.net import LoopNet
from millrace.runtime.scheduling.yield_queue import YieldQueue

class ShellBroker:
    admin_port = 9644
    def __init__(self, settings):
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        self.settings, self.mode = settings, sys.argv[1]
        memory = RequestBudget(settings.memory.requests_bytes, loop.call_soon)
        queue = YieldQueue()
        handlers = {12: lambda context, request: loop.create_future()}
        dispatcher = Dispatcher(handlers, loop.create_task, queue)
        self.server = Server(LoopNet(), dispatcher, memory, settings.server, queue)
    async def start(self):
        if self.mode == "slow-start":
            print("starting", flush=True)
            await asyncio.sleep(60)
        self.listeners = await self.server.start(await bind_all(LoopNet(), self.settings.listeners.clients))
        if self.mode.startswith("broken"):
            asyncio.get_running_loop().call_later(0.05, process.read_text, "/nowhere")
        if self.mode == "fail":
            asyncio.get_running_loop().call_later(0.05, self.failed.set_exception, OSError("the WAL is gone"))
    async def stop(self):
        print("stopping", flush=True)
        await self.server.stop()
        if self.mode == "fail-at-stop":
            self.failed.set_exception(OSError("the WAL is gone"))
        if self.mode.endswith("slow-stop"):
            await asyncio.sleep(60)

async def serve_shell(settings, replaced_pid):
    return await serve.run_broker(ShellBroker(settings), settings)

serve.serve = serve_shell
serve.STOP_BROKEN_S = 0.2 if sys.argv[1] == "broken-slow-stop" else 600
sys.exit(serve.run(sys.argv[2:], {}, run_loop))
"""


def millrace(
    *words: str, flags: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, "-m", "millrace.broker", *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **(env or {})},
        check=False,
    )


def start_shell(mode: str, *words: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        STANDALONE,
        mode,
        "--override",
        "listeners=PLAINTEXT://127.0.0.1:0",
        *words,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    return next_line(process.stdout)


def test_help_names_every_command() -> None:
    """`--help` goes to stdout with code 0; no command at all is told the same on stderr with code 2."""
    found = millrace("--help")
    assert found.returncode == 0
    assert all(name in found.stdout for name in COMMANDS)
    found = millrace()
    assert (found.returncode, found.stdout) == (2, "")
    assert "usage" in found.stderr
    found = millrace("servee")
    assert found.returncode == 2
    assert "'servee'; did you mean serve?" in found.stderr
    assert "did you mean" not in millrace("frobnicate").stderr


def test_the_module_is_the_command() -> None:
    """`python -m millrace`, as many try first."""
    found = subprocess.run(
        [sys.executable, "-m", "millrace", "--version"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (found.returncode, found.stdout) == (0, f"millrace {VERSION}\n")


@pytest.mark.parametrize("command", ["serve", "restore", "fsck", "clock", "objects list", "streams show 1"])
def test_an_empty_data_directory_is_a_mistake(command: str) -> None:
    """An unset variable in a script would serve from the working directory, or restore into it."""
    found = millrace(*command.split(), "--data-dir", "")
    assert (found.returncode, found.stdout) == (2, "")
    assert "argument --data-dir: it is empty" in found.stderr


def test_a_data_directory_whose_name_is_not_utf8_is_a_mistake() -> None:
    """Settings hold it, and settings are text."""
    found = millrace("serve", "--data-dir", "/tmp/\udcff")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.endswith(
        "argument --data-dir: /tmp/\\udcff is not UTF-8: say a folder whose name is\n"
    )


def test_every_command_is_there() -> None:
    """Each name in the list is a module with a `run`."""
    for name in COMMANDS:
        module = __import__(f"millrace.broker.cli.{name}", fromlist=["run"])
        assert callable(module.run)


def test_the_version_is_the_projects() -> None:
    """`--version` prints what pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert millrace("--version").stdout == f"millrace {VERSION}\n"


def test_how_memory_is_split_is_told_at_the_start() -> None:
    """One line of the log has the whole and every part in whole MiB, and the parts are the whole; those that
    were given have their number."""
    process = start_shell(
        "", "--override", "memory.max.bytes=512MiB", "--override", "s3.wal.cache.size=200MiB"
    )
    assert first_line(process).startswith("millrace ready")
    process.send_signal(signal.SIGTERM)
    told = [line for line in process.communicate(timeout=PATIENCE_S)[1].splitlines() if "; memory " in line]
    assert len(told) == 1, told
    total, _, parts = told[0].partition("; memory ")[2].partition(" MiB: ")
    sizes = {name: int(size) for name, _, size in (part.rpartition(" ") for part in parts.split(", "))}
    assert list(sizes) == [
        "log cache",
        "block cache",
        "indexes",
        "compaction",
        "requests in flight",
        "states",
    ]
    assert int(total) == 512
    assert sizes["log cache"] == 200
    assert 512 - len(sizes) < sum(sizes.values()) <= 512  # whole MiB of each
    assert all(sizes.values()), sizes


@pytest.mark.parametrize(
    ("file_limit", "given", "left"),
    [(20_000, 2**31 - 1, 18_676), (20_000, 50, 50), (256, 2**31 - 1, 86), (-1, 7, 7), (2**63 - 1, 7, 7)],
)
def test_connections_fit_into_the_files(file_limit: int, given: int, left: int) -> None:
    """What the process needs for itself, and a full line of accepts, is kept back; a limit that is none
    changes nothing."""
    settings = load({}, data_dir="/d", machine_bytes=1 << 30).settings
    settings = replace(settings, server=replace(settings.server, connections=ConnectionLimits(given)))
    assert within_files(settings, file_limit).server.connections.total_max == left


def test_members_of_a_quorum_have_a_part_of_the_connections() -> None:
    """Of a node that serves clients, too: both together fit into the files."""
    alone = load({}, data_dir="/d", machine_bytes=1 << 30).settings
    both = within_files(replace(alone, quorum=replace(alone.quorum, is_alone=False)), 20_000)
    clients, members = both.server.connections, both.member_server.connections
    assert clients.total_max + members.total_max == within_files(alone, 20_000).server.connections.total_max
    assert clients.files_max == clients.total_max == 3 * members.total_max


def test_members_of_a_quorum_have_a_part_of_the_memory_for_requests() -> None:
    """Of a node that serves clients, too: both together have what queued.max.request.bytes says."""
    alone = load({}, data_dir="/d", machine_bytes=1 << 30).settings
    both = replace(alone, quorum=replace(alone.quorum, is_alone=False))
    whole_bytes = alone.memory.requests_bytes
    assert alone.client_requests_bytes == whole_bytes
    assert both.client_requests_bytes + both.member_requests_bytes == whole_bytes
    assert both.member_requests_bytes == whole_bytes // 4
    assert replace(both, is_broker=False).member_requests_bytes == whole_bytes


def test_it_does_not_run_without_assertions() -> None:
    """-O and PYTHONOPTIMIZE are refused with code 2."""
    for found in (millrace("--version", flags=("-O",)), millrace("--version", env={"PYTHONOPTIMIZE": "1"})):
        assert found.returncode == 2
        assert "assertions" in found.stderr


def test_mistakes_end_with_code_2_and_all_of_them(tmp_path: Path) -> None:
    """Mistakes of the file, the environment and the command line are printed together, and beside them
    a key that nobody knows, before anything is opened."""
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=none\n")
    found = millrace(
        "serve", "--config", str(config), "--override", "fetch.max.bytes=1", "--override", "num.partition=3",
        "--data-dir", str(tmp_path / "data"),
        env={"KAFKA_GROUP_MAX_SIZE": "x"},
    )  # fmt: skip
    assert found.returncode == 2
    for word in (
        f"{config}, line 1",
        "fetch.max.bytes=1",
        "KAFKA_GROUP_MAX_SIZE",
        "did you mean num.partitions?",
    ):
        assert word in found.stderr
    assert not (tmp_path / "data").exists()
    assert millrace("serve", "--bogus").returncode == 2


def test_an_unreadable_file_is_a_mistake_like_others(tmp_path: Path) -> None:
    """A --config that is not there is told beside the other mistakes."""
    options = parse_options(["--config", str(tmp_path / "none"), "--override", "x"])
    with pytest.raises(SettingsInvalid) as found:
        read_settings(options, {})
    assert len(found.value.mistakes) == 2
    assert "No such file" in found.value.mistakes[0]


def test_a_file_in_latin_1_is_read(tmp_path: Path) -> None:
    """UTF-8 and, as Java would, Latin 1."""
    for encoding in ("utf-8", "latin-1"):
        config = tmp_path / encoding
        config.write_bytes("broker.rack=zürich".encode(encoding))
        assert read_settings(parse_options(["--config", str(config)]), {}).settings.rack == "zürich"


def test_the_data_directory_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--data-dir is taken from where the command stands; the default is ./millrace-data."""
    monkeypatch.chdir(tmp_path)
    assert parse_options([]).data_dir == str(tmp_path / "millrace-data")
    assert parse_options(["--data-dir", "d"]).data_dir == str(tmp_path / "d")


def test_a_ready_line_and_an_orderly_end() -> None:
    """`millrace ready` comes with the real ports; SIGTERM ends with code 0 after stop, and SIGINT does the
    same."""
    for number in (signal.SIGTERM, signal.SIGINT):
        process = start_shell("plain")
        line = first_line(process)
        assert line.startswith("millrace ready PLAINTEXT://127.0.0.1:")
        assert not line.startswith("millrace ready PLAINTEXT://127.0.0.1:0 ")
        assert line.endswith(" admin http://127.0.0.1:9644\n")
        process.send_signal(number)
        rest, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, rest) == (0, "stopping\n"), errors
        assert "memory" in errors
        places = re.search(r"data directory (\S+); metadata log (\S+); WAL (\S+); data bucket (\S+)", errors)
        assert places is not None, errors
        folder = os.path.abspath("millrace-data")
        found = [folder, f"{folder}/metadata", f"0@file://{folder}/wal", f"0@file://{folder}/objects"]
        assert [place.partition("?")[0] for place in places.groups()] == found
        assert errors.rstrip().endswith("stopped in order")


def test_a_second_signal_ends_at_once() -> None:
    """While the orderly end drags on, another signal ends the process with 128 + its number."""
    process = start_shell("slow-stop")
    first_line(process)
    process.send_signal(signal.SIGTERM)
    assert first_line(process) == "stopping\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_signal_during_the_start_stops_it() -> None:
    """SIGTERM before the broker is ready cancels the start and still stops in order."""
    process = start_shell("slow-start")
    assert first_line(process) == "starting\n"
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, rest) == (0, "stopping\n")


def test_a_broker_that_cannot_go_on_ends_with_code_1() -> None:
    """A failure after the start is logged with its trace, and the broker is stopped in order."""
    process = start_shell("fail")
    first_line(process)
    rest, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, rest) == (1, "stopping\n")
    assert "the WAL is gone" in errors


def test_a_failure_on_the_way_out_is_no_orderly_end() -> None:
    """A write that fails while the broker stops is told, and the exit code is 1."""
    process = start_shell("fail-at-stop")
    first_line(process)
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, rest) == (1, "stopping\n")
    assert "millrace: did not end in order: the WAL is gone" in errors
    assert "never retrieved" not in errors


@pytest.mark.parametrize("mode", ["broken", "broken-slow-stop"])
def test_a_callback_that_fails_ends_the_broker(mode: str) -> None:
    """Its trace is logged, one sentence says that the broker cannot go on, and it ends with code 1: in order,
    or at once when that takes too long."""
    process = start_shell(mode)
    first_line(process)
    rest, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, rest) == (1, "stopping\n")
    (sentence,) = [line for line in errors.splitlines() if line.startswith("millrace: ")]
    assert sentence.startswith("millrace: cannot go on: a callback failed (FileNotFoundError: ")
    assert errors.count("Traceback") == 1
    assert ("did not end in order" in errors) is (mode == "broken-slow-stop")


def test_a_taken_address_is_one_line() -> None:
    """When the address is in use the broker says which, without a trace, and ends with code 1."""
    holder = start_shell("plain")
    address = first_line(holder).split()[2]
    process = start_shell("plain", "--override", f"listeners={address}")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert f"cannot listen on {address.removeprefix('PLAINTEXT://')}: " in errors
    assert "Traceback" not in errors
    holder.kill()
    holder.communicate(timeout=PATIENCE_S)


def test_plain_commands_load_nothing_heavy() -> None:
    """--version and --help import neither asyncio nor the broker; uvloop is named in broker/__main__.py
    alone."""
    words = "import sys; from millrace.broker.__main__ import main; main(['--version']); main(['--help'])"
    heavy = (
        "sys.exit(sorted({'asyncio', 'uvloop', 'argparse', 'millrace.broker.config'} & "
        "set(sys.modules)) "
        "or 0)"
    )
    found = subprocess.run(
        [sys.executable, "-c", f"{words}; {heavy}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    named = [path for path in ROOT.glob("broker/**/*.py") if "uvloop" in path.read_text()]
    assert [path.name for path in named] == ["__main__.py"]
