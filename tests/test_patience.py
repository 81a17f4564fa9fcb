"""What is waited for is waited for long: no test has a deadline of its own that a busy machine reaches."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parent
SHORT_S = 2.0  # shorter ones are of what does not come, or of one look
WAITS = ("wait", "join", "result", "flush", "settimeout", "timeout")  # of one positional argument
ELSEWHERE = ("sim",)  # in virtual time
ALLOWED = {
    "runtime/objectstore/test_s3_get.py": "given to the client that is tested",
    "wal/object/test_model.py": "in virtual time",
    "broker/coordinators/runtime/test_state_machine.py": "counters, not seconds",
    "demo/consume.py": "asked again and again",
}


def is_short(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and SHORT_S < node.value < PATIENCE_S
    )


def deadlines(tree: ast.Module) -> list[int]:
    """Lines with a number of seconds after which something is given up."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [one.value for one in node.keywords if one.arg in ("timeout", "timeout_s")]
            given += node.args if name in WAITS and len(node.args) == 1 else []
            given += (
                node.args[1:]
                if name in ("wait_for", "to_thread", "create_connection") and node.args[1:]
                else []
            )
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add)
            and "monotonic" in ast.dump(node.left)
        ):
            given = [node.right]
        else:
            continue
        found += [node.lineno for one in given if is_short(one)]
    return found


def test_deadlines_are_the_same_for_all() -> None:
    """Each takes it from tests/patience.py."""
    paths = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] not in ELSEWHERE]
    faults = [
        f"{name}:{line}: give it PATIENCE_S, or wait by `until` or `eventually`"
        for path in paths
        if (name := path.relative_to(ROOT).as_posix()) not in ALLOWED
        for line in deadlines(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "subprocess.run(words, timeout=60)",
        "process.communicate('x', timeout=10)",
        "asyncio.timeout(5)",
        "thread.join(30)",
        "await asyncio.wait_for(client.ask(), 20)",
        "deadline = time.monotonic() + 20",
        "socket.create_connection(address, 30)",
    ],
)
def test_a_short_deadline_is_seen(source: str) -> None:
    """The rule itself refuses what it should."""
    assert deadlines(ast.parse(source))


def test_what_is_no_deadline_passes() -> None:
    """One look, the shared number, and what is not of seconds."""
    assert not deadlines(
        ast.parse("a.wait(0.05)\nb.join(PATIENCE_S)\nsubprocess.run(words, timeout=600)\nc.flush()")
    )
