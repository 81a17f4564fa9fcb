"""Which tests run on both of the loops that a broker may run on: asyncio's own and uvloop.

A test does that begins a real loop by `asyncio.run`, by itself or through functions of its module;
tests/conftest.py runs it twice. Not those that choose their loop (`uvloop` stands in their module), those of
ONE_LOOP, nor those that start broker processes or run in virtual time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ASYNCIO, UVLOOP = "asyncio", "uvloop"
# Their brokers are processes, on uvloop; or their loop is the simulator's.
ELSEWHERE = ("attack", "bench", "compat", "crash", "demo", "fuzz", "live", "sim", "spark_jobs")
# Modules that stay on one loop, and why: nothing that they run asks a loop for the time.
ONE_LOOP = {
    "broker/partitions/test_unpacking.py": "bytes are decoded",
    "broker/inspection/test_bucket_check.py": "objects are read and compared",
    "broker/cli/test_fsck.py": "a command's words",
    "broker/cli/test_output.py": "a command's words",
    "broker/cli/test_wal.py": "a command's words",
    "broker/cli/test_wal_objects.py": "a command's words",
    "broker/cli/test_doctor.py": "a command's words; the store's client is tried by "
    "runtime/objectstore/test_s3.py",
    "wal/block/test_blank.py": "what lies on a disk",
    "wal/block/test_corruption.py": "what lies on a disk",
    "wal/block/test_crash.py": "what lies on a disk after each of a thousand cuts",
    "wal/block/test_damage.py": "what lies on a disk",
    "wal/block/test_golden.py": "what lies on a disk",
    "wal/block/test_unreadable.py": "what lies on a disk",
}
ROOT = Path(__file__).resolve().parent


def loops_of(path: Path, test: str) -> list[str]:
    """The loops that a test of a module is run on; none where it runs none."""
    name = path.relative_to(ROOT)
    if name.parts[0] in ELSEWHERE or name.as_posix() in ONE_LOOP or test not in loop_runners(path):
        return []
    return [ASYNCIO, UVLOOP]


@cache
def loop_runners(path: Path) -> frozenset[str]:
    """The functions of a module, and methods by their bare names, that come to `asyncio.run`."""
    source = path.read_text(encoding="utf-8")
    if "uvloop" in source or "asyncio.run" not in source:  # which spares most modules the parser
        return frozenset()
    return runners_in(ast.parse(source))


def runners_in(tree: ast.Module) -> frozenset[str]:
    """Functions that name `asyncio.run`, and those that name one of them."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    named: dict[str, dict[str, None]] = {}
    for function in functions:
        named.setdefault(function.name, {}).update(dict.fromkeys(names_in(function)))
    found = {name: None for name, uses in named.items() if "asyncio.run" in uses}
    is_growing = True
    while is_growing:
        more = [
            name for name, uses in named.items() if name not in found and any(use in found for use in uses)
        ]
        found.update(dict.fromkeys(more))
        is_growing = bool(more)
    return frozenset(found)


def names_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Names and attributes that it uses, its decorators included; `asyncio.run` as one."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            is_asyncio = isinstance(node.value, ast.Name) and node.value.id == "asyncio"
            yield f"asyncio.{node.attr}" if is_asyncio else node.attr
