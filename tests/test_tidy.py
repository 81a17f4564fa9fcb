"""The style as a test: layering, the list of pure modules, banned calls, sizes, banners, and what is
installed.

It reads the source as syntax trees; it imports nothing of the project.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.log_calls import repr_of_errors

ROOT = Path(__file__).resolve().parent.parent
LAYERS = {"runtime": 0, "protocol": 0, "wal": 1, "s3stream": 2, "kraft": 3, "broker": 4}
PACKAGES = (*LAYERS, "spark_jobs", "testing")
TESTING_COMMANDS = ("broker/cli/test.py", "broker/cli/dev.py", "broker/cli/testing_options.py")
FILE_LINES_MAX = 700
LATE_DATACLASS = "millrace.protocol.dataclass"
# Who takes the library's decorator: for a class without slots, and to make the late ones with.
EARLY_DATACLASSES = ("protocol/apis.py", "protocol/dataclass.py")
FUNCTION_LINES_MAX = 70

# What asyncio's loop and uvloop do differently, or one of them not at all, and what to do in its place.
LOOP_WORDS = {
    "when": "uvloop's call_later gives a handle without it for waits below half a millisecond: keep the time "
    "yourself",
    "call_soon_threadsafe": "what a thread finds comes through runtime/",
    "add_reader": "files and sockets come through runtime/",
    "add_writer": "files and sockets come through runtime/",
    "remove_reader": "files and sockets come through runtime/",
    "remove_writer": "files and sockets come through runtime/",
    "sendfile": "uvloop has none",
    "slow_callback_duration": "uvloop ignores it",
    "get_event_loop": "which loop that is depends on who asks: get_running_loop",
    "set_event_loop": "broker/__main__.py chooses the loop",
    "get_event_loop_policy": "broker/__main__.py chooses the loop",
    "set_event_loop_policy": "broker/__main__.py chooses the loop",
}
# Of asyncio's loop alone; an object's own attribute of such a name is another.
LOOP_INNERS = frozenset(
    ("_clock_resolution", "_csock", "_default_executor", "_ready", "_run_once", "_scheduled", "_selector",
    "_ssock",
     "_stopping", "_thread_id", "_write_to_self")
)  # fmt: skip

# Modules that decide and do no I/O: no `async`, no asyncio, nothing of runtime but its errors and what is
# pure itself. May only grow.
PURE = (
    "runtime/disk/lock_keeper.py",
    "broker/settings/addresses.py",
    "broker/inspection/bucket_check_ranges.py",
    "broker/identity/claim_format.py",
    "broker/settings/checks.py",
    "broker/settings/key.py",
    "broker/settings/refused.py",
    "broker/settings/source.py",
    "broker/settings/stored.py",
    "broker/settings/table.py",
    "broker/settings/values.py",
    "broker/network/connection_machine.py",
    "broker/coordinators/groups/config.py",
    "broker/coordinators/groups/deadlines.py",
    "broker/coordinators/groups/group.py",
    "broker/coordinators/groups/members.py",
    "broker/coordinators/groups/membership.py",
    "broker/coordinators/groups/offsets.py",
    "broker/coordinators/groups/records.py",
    "broker/coordinators/groups/state_machine.py",
    "broker/coordinators/runtime/partitioning.py",
    "broker/coordinators/runtime/records.py",
    "broker/coordinators/runtime/state_machine.py",
    "broker/coordinators/runtime/timers.py",
    "broker/coordinators/runtime/unknown_records.py",
    "broker/background/pending_deletions.py",
    "broker/settings/dynamic_configs.py",
    "broker/settings/dynamic_values.py",
    "broker/requests/fetch_machine.py",
    "broker/requests/fetch_sessions.py",
    "broker/inspection/inventory.py",
    "broker/network/arrival.py",
    "broker/identity/known_time_text.py",
    "broker/settings/listener_rules.py",
    "broker/network/memory.py",
    "broker/settings/java_pattern.py",
    "broker/settings/other_checks.py",
    "broker/settings/other_configs.py",
    "broker/network/pace.py",
    "broker/partitions/cold_producers.py",
    "broker/partitions/epochs.py",
    "broker/partitions/producers.py",
    "broker/partitions/rewrite.py",
    "broker/partitions/segments.py",
    "broker/partitions/settings.py",
    "broker/partitions/state.py",
    "broker/partitions/time_index.py",
    "broker/partitions/true_times.py",
    "broker/partitions/validation.py",
    "broker/partitions/visibility.py",
    "broker/requests/shared_replies.py",
    "broker/state_memory.py",
    "broker/state_refusals.py",
    "broker/told.py",
    "broker/identity/restored_claim.py",
    "broker/restore/continued.py",
    "broker/restore/other_logs.py",
    "broker/restore/plan.py",
    "broker/purgatory.py",
    "broker/identity/wall_watch.py",
    "kraft/image/applier.py",
    "kraft/image/bulk.py",
    "kraft/bucket/layout.py",
    "kraft/bucket/settings.py",
    "kraft/log/checked_text.py",
    "kraft/commands/decision.py",
    "kraft/commands/folding.py",
    "kraft/image/delta.py",
    "kraft/peers/wire.py",
    "kraft/peers/places.py",
    "kraft/commands/voters.py",
    "kraft/raft/agreement.py",
    "kraft/raft/describe_quorum.py",
    "kraft/image/image.py",
    "kraft/raft/log_view.py",
    "kraft/raft/messages.py",
    "kraft/raft/progress.py",
    "kraft/raft/quorum.py",
    "kraft/raft/core.py",
    "kraft/raft/ready.py",
    "kraft/image/records.py",
    "kraft/image/voter_records.py",
    "kraft/commands/refusals.py",
    "kraft/raft/roles.py",
    "kraft/raft/voters.py",
    "kraft/hand_over.py",
    "kraft/tables/sorted_map.py",
    "kraft/commands/brokers.py",
    "kraft/tables/brokers.py",
    "kraft/commands/claims.py",
    "kraft/tables/claims.py",
    "kraft/commands/compaction.py",
    "kraft/commands/configs.py",
    "kraft/tables/configs.py",
    "kraft/commands/create_topics.py",
    "kraft/commands/delete_topics.py",
    "kraft/commands/features.py",
    "kraft/commands/cut_off.py",
    "kraft/commands/heirs.py",
    "kraft/commands/takers.py",
    "kraft/tables/features.py",
    "kraft/commands/objects.py",
    "kraft/tables/objects.py",
    "kraft/tables/objects_edit.py",
    "kraft/tables/packing.py",
    "kraft/commands/partitions.py",
    "kraft/tables/ranges.py",
    "kraft/tables/stream_set_groups.py",
    "kraft/commands/streams.py",
    "kraft/tables/streams.py",
    "kraft/tables/topics.py",
    "kraft/commands/wals.py",
    "kraft/tables/wals.py",
    "kraft/topic_configs.py",
    "runtime/objectstore/sigv4.py",
    "runtime/scheduling/keyed_queue.py",
    "runtime/scheduling/yielding.py",
    "s3stream/block_lru.py",
    "s3stream/compaction/aged.py",
    "s3stream/compaction/choose.py",
    "s3stream/compaction/config.py",
    "s3stream/compaction/damage.py",
    "s3stream/compaction/known_rows.py",
    "s3stream/compaction/plan.py",
    "s3stream/compaction/spent.py",
    "s3stream/compaction/stream_plan.py",
    "s3stream/compaction/windows.py",
    "s3stream/damaged_reads.py",
    "s3stream/ghosts.py",
    "s3stream/read_accumulator.py",
    "s3stream/ids.py",
    "s3stream/limiter.py",
    "s3stream/log_cache.py",
    "s3stream/objects/composite.py",
    "s3stream/objects/format.py",
    "s3stream/objects/index.py",
    "s3stream/objects/joiner.py",
    "s3stream/objects/keys.py",
    "s3stream/objects/packed.py",
    "s3stream/objects/writer.py",
    "s3stream/pace.py",
    "s3stream/read_plan.py",
    "s3stream/readahead.py",
    "s3stream/upload_plan.py",
    "spark_jobs/agreement.py",
    "spark_jobs/binding.py",
    "spark_jobs/claims.py",
    "spark_jobs/places.py",
    "spark_jobs/progress.py",
    "spark_jobs/refusal.py",
    "wal/block/batcher.py",
    "wal/block/blank.py",
    "wal/block/layout.py",
    "wal/block/pace.py",
    "wal/block/recovery.py",
    "wal/identity.py",
    "wal/object/batcher.py",
    "wal/object/cost.py",
    "wal/object/hedging.py",
    "wal/object/layout.py",
    "wal/object/recovery.py",
    "wal/object/space.py",
    "wal/record.py",
)

COORDINATORS = "broker/coordinators/"

# Outside runtime/: what would make a run depend on something that a seed does not fix, and what to use in its
# place.
BANNED_CALLS = {
    "time.time": "Clock.wall_ms",
    "time.time_ns": "Clock.wall_ms",
    "time.monotonic": "loop.time()",
    "time.sleep": "asyncio.sleep",
    "datetime.now": "Clock.wall_ms",
    "datetime.utcnow": "Clock.wall_ms",
    "uuid.uuid4": "Rand.uuid",
    "os.urandom": "Rand",
    "secrets.token_bytes": "Rand",
    "open": "Disk",
    "os.open": "Disk",
}
BANNED_IMPORTS = {
    "random": "Rand",
    "secrets": "Rand",
    "socket": "Net",
    "threading": "Offload",
    "concurrent": "Offload",
    "uuid": "Rand.uuid",
}
# The edges of the process: where arguments, files named by the user and the system's limits come in. testing/
# runs in its user's process.
EDGES = ("broker/__main__.py", "broker/cli/", "spark_jobs/", "protocol/__main__.py", "testing/")


@cache
def sources() -> tuple[Path, ...]:
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return tuple(path for path in found if "__pycache__" not in path.parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_modules(tree: ast.Module) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            if node.module == "millrace":
                found += [(node.lineno, f"millrace.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, node.module))
    return found


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def layering_faults(package: str, module: str, name: str = "") -> str | None:
    if not module.startswith("millrace."):
        return "tests are never imported" if module.split(".")[0] == "tests" else None
    target = module.split(".")[1]
    if package == "spark_jobs":
        allowed = target in ("protocol", "spark_jobs") or module == "millrace.s3stream.objects.format"
        return None if allowed else "spark_jobs imports format modules only"
    if target == "spark_jobs":
        return "nothing imports spark_jobs"
    if package == "testing":
        return (
            None
            if target in ("protocol", "testing")
            else "testing imports protocol, and starts a broker as a process"
        )
    if target == "testing":
        is_command = name in TESTING_COMMANDS
        return (
            None if is_command else "nothing imports testing but the commands that start a broker for tests"
        )
    if target == package:
        return None
    if package == "kraft" and (
        target == "wal" or (target == "s3stream" and module != "millrace.s3stream.ids")
    ):
        return "kraft sees s3stream.ids alone"
    if target not in LAYERS or LAYERS[target] >= LAYERS[package]:
        return "imports go runtime, protocol <- wal <- s3stream <- kraft <- broker"
    return None


def coordinator_faults(name: str, module: str) -> str | None:
    """The runtime of coordinators knows none of them, nor their records; of one another coordinators know
    nothing."""
    if not name.startswith(COORDINATORS):
        return None
    own = name.removeprefix(COORDINATORS).split("/")[0]
    if own == "runtime" and module == "millrace.protocol.coordinator_records":
        return "the runtime of coordinators knows no coordinator's records"
    prefix = "millrace." + COORDINATORS.replace("/", ".")
    if module == prefix.rstrip("."):
        return "which of the coordinators is not seen here: name its module"
    other = module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else "runtime"
    return None if other in (own, "runtime") else f"{own} of the coordinators does not know {other}"


def test_imports_go_one_way() -> None:
    """No package imports one above it, handlers never import one another, the connection or the dispatcher,
    and the runtime of coordinators imports no coordinator."""
    faults = []
    for path in sources():
        name = name_of(path)
        package = name.split("/")[0]
        for line, module in imported_modules(tree_of(path)):
            fault = layering_faults(package, module, name)
            if name.startswith("broker/handlers/") and not name.endswith("__init__.py"):
                tail = module.removeprefix("millrace.broker.")
                if tail.startswith("handlers.") or tail in ("connection", "dispatch", "app"):
                    fault = "a handler imports no handler, connection or dispatch"
            fault = fault or coordinator_faults(name, module)
            if fault:
                faults.append(f"{name}:{line} imports {module}: {fault}")
    assert not faults, "\n".join(faults)


def test_pure_modules_do_no_io() -> None:
    """Each module on the pure list exists, has no async code and imports neither asyncio nor what does I/O in
    runtime."""
    faults = []
    allowed = {"millrace.runtime.errors"} | {"millrace." + name[:-3].replace("/", ".") for name in PURE}
    for name in PURE:
        path = ROOT / name
        if not path.exists():
            faults.append(f"{name}: is on the list and not there")
            continue
        tree = tree_of(path)
        if any(
            isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
            for node in ast.walk(tree)
        ):
            faults.append(f"{name}: async code")
        for line, module in imported_modules(tree):
            is_runtime = module.startswith("millrace.runtime") and module not in allowed
            if module.split(".")[0] == "asyncio" or is_runtime:
                faults.append(f"{name}:{line} imports {module}")
    assert not faults, "\n".join(faults)


def test_dataclasses_are_made_late() -> None:
    """What a start imports compiles no methods that it does not use."""
    faults = []
    for path in sources():
        name = name_of(path)
        if name.split("/")[0] in ("runtime", "testing", "spark_jobs") or name in EARLY_DATACLASSES:
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
                faults += [
                    f"{name}:{node.lineno}: from {LATE_DATACLASS}"
                    for one in node.names
                    if one.name == "dataclass"
                ]
    assert faults == []


def test_the_outside_world_comes_in_through_runtime() -> None:
    """Outside runtime/ and the process's edges nobody takes time, chance, files, sockets or threads from the
    library."""
    faults = []
    for path in sources():
        name = name_of(path)
        if name.startswith("runtime/") or name.startswith(EDGES):
            continue
        tree = tree_of(path)
        for line, module in imported_modules(tree):
            head = module.split(".")[0]
            if head in BANNED_IMPORTS:
                faults.append(f"{name}:{line} imports {module}: use {BANNED_IMPORTS[head]}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and dotted(node.func) in BANNED_CALLS:
                faults.append(
                    f"{name}:{node.lineno} calls {dotted(node.func)}: use {BANNED_CALLS[dotted(node.func)]}"
                )
    assert not faults, "\n".join(faults)


def loop_faults(tree: ast.Module) -> list[tuple[int, str]]:
    """What only one of the two loops has or does so, by line: what is asked of handles and loops by these
    names."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            is_inner = node.attr in LOOP_INNERS and not is_own
            if is_inner or node.attr in LOOP_WORDS or node.attr.startswith("sock_"):
                found.append((node.lineno, node.attr))
        elif (
            isinstance(node, ast.Call)
            and dotted(node.func) == "isinstance"
            and "TimerHandle" in ast.dump(node)
        ):
            found.append((node.lineno, "isinstance of TimerHandle"))
    return found


def test_nothing_asks_what_one_loop_alone_has() -> None:
    """But runtime/ what comes through it, where its tests run on both loops."""
    faults = [
        f"{name_of(path)}:{line} uses {word}: {LOOP_WORDS.get(word, 'a part of one loop alone')}"
        for path in sources()
        for line, word in loop_faults(tree_of(path))
        if not (name_of(path).startswith("runtime/") and "through runtime/" in LOOP_WORDS.get(word, ""))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "if self._timer.when() <= now: pass",
        "due = loop.call_later(1, act).when()",
        "isinstance(handle, asyncio.TimerHandle)",
        "loop.add_reader(file, act)",
        "await loop.sock_recv(socket, 1)",
        "loop.call_soon_threadsafe(act)",
        "asyncio.get_running_loop()._ready",
        "self._loop._scheduled",
        "asyncio.get_event_loop()",
        "await loop.sendfile(transport, file)",
    ],
)
def test_what_one_loop_alone_has_is_seen(source: str) -> None:
    """The rule itself refuses what it should."""
    assert loop_faults(ast.parse(source))


def test_what_both_loops_have_passes() -> None:
    """A handle that is cancelled, a type that is named, one's own attribute of a name that a loop has too."""
    source = """
class Waiter:
    _timer: asyncio.TimerHandle | None
    def arm(self, loop): self._timer = loop.call_at(loop.time() + 1, self.on_time)
    def drop(self): self._timer.cancel(); self._ready = []
"""
    assert not loop_faults(ast.parse(source))


def test_no_log_line_shows_an_exception_as_python_writes_it() -> None:
    """An operator reads `in_words(error)` (runtime/errors.py), not `Name('k', 5)`; neither does a text that
    is put together for one."""
    faults = [
        f"{name_of(path)}:{line} shows {error} by its repr: use in_words"
        for path in sources()
        for line, error in repr_of_errors(tree_of(path))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        'log.warning("not told: %r", error)',
        'log.log(WARNING, "%s: not told: %r", name, task.exception())',
        'log.error("%5d%% of %r: %r", done, self, self._failure)',
        'log.error("uploads end: %r", (isinstance(error, Closed) and error.__cause__) or error)',
        "try:\n    act()\nexcept Fenced as fenced:\n    log.info('%r', fenced)",
        "raise Closed(f'the engine failed: {self._failure!r}')",
    ],
)
def test_an_exception_in_a_log_line_is_seen(source: str) -> None:
    """The rule itself refuses what it should."""
    assert repr_of_errors(ast.parse(source))


def test_other_reprs_in_log_lines_pass() -> None:
    """Of what has a designed one, and of an operator's own text."""
    assert not repr_of_errors(ast.parse('log.info("%r: %s of %r", self, in_words(error), client_id)'))


def test_files_and_functions_stay_small() -> None:
    """No file above 700 lines, no function above 70."""
    faults = []
    for path in sources():
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > FILE_LINES_MAX:
            faults.append(f"{name_of(path)}: {lines} lines")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > FUNCTION_LINES_MAX:
                    faults.append(f"{name_of(path)}:{node.lineno} {node.name}: {size} lines")
    assert not faults, "\n".join(faults)


def test_every_file_says_what_it_is() -> None:
    """Each module that holds code opens with a docstring."""
    faults = [
        name_of(path) for path in sources() if tree_of(path).body and ast.get_docstring(tree_of(path)) is None
    ]
    assert not faults, "\n".join(faults)


def test_no_behaviour_in_finalizers() -> None:
    """No `__del__`: what is released is released by somebody."""
    faults = [
        f"{name_of(path)}:{node.lineno}"
        for path in sources()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef) and node.name == "__del__"
    ]
    assert not faults, "\n".join(faults)


def test_every_package_is_installed() -> None:
    """`packages` in pyproject.toml, which setuptools takes as it stands, is the tree: a folder that is
    missing there is missing after `pip install`. Each has its `__init__.py`, but for the root, whose name is
    the distribution's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = dict.fromkeys(path.parent for path in sources())
    found = ["millrace", *(f"millrace.{name_of(folder).replace('/', '.')}" for folder in folders)]
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(found)
    assert [name_of(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("wal", "millrace.broker.app"),
        ("kraft", "millrace.wal.log"),
        ("kraft", "millrace.s3stream.storage"),
        ("protocol", "millrace.runtime.errors"),
        ("testing", "millrace.broker.app"),
        ("broker", "millrace.testing.broker"),
    ],
)
def test_a_backward_import_is_seen(package: str, module: str) -> None:
    """The layering rule itself refuses what it should."""
    assert layering_faults(package, module)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("broker/coordinators/runtime/shard.py", "millrace.broker.coordinators.groups.group"),
        ("broker/coordinators/runtime/shard.py", "millrace.broker.coordinators.groups"),
        ("broker/coordinators/runtime/log_reader.py", "millrace.protocol.coordinator_records"),
        ("broker/coordinators/runtime/shard.py", "millrace.broker.coordinators"),
        ("broker/coordinators/groups/group.py", "millrace.broker.coordinators.transactions.coordinator"),
    ],
)
def test_a_coordinator_in_the_runtime_is_seen(name: str, module: str) -> None:
    """The rule itself refuses what it should, and nothing else."""
    assert coordinator_faults(name, module)
    assert not coordinator_faults(name, "millrace.broker.coordinators.runtime.timers")
    assert not coordinator_faults(name, "millrace.broker.state_memory")
