"""What runs a loop is run on both: the rule that finds it, and that it is so."""

from __future__ import annotations

import ast
import asyncio

from tests.loops import ASYNCIO, ONE_LOOP, ROOT, UVLOOP, loops_of, runners_in

seen: list[str] = []


def kind_of_loop() -> str:
    async def look() -> str:
        return type(asyncio.get_running_loop()).__module__.partition(".")[0]

    return asyncio.run(look())


def test_a_test_runs_on_both_loops(loop_kind: str) -> None:
    """This one does, by way of a helper, with nothing said about it."""
    assert (kind_of_loop() == ASYNCIO) == (loop_kind == ASYNCIO)
    seen.append(kind_of_loop())


def test_it_did() -> None:
    """Both had their turn, unless this was asked for alone."""
    assert seen in ([], ["asyncio"], ["asyncio", "uvloop"])


def test_the_rule_finds_what_comes_to_a_loop() -> None:
    """By itself, through a helper, a method or a decorator; not what runs none, and not what runs the
    simulator's."""
    source = """
def run(main): asyncio.run(main())
def test_itself(): asyncio.run(main())
def test_by_helper(): run(main)
@run
async def test_async(): pass
@decorated
def test_decorated(): pass
def decorated(test): return lambda: run(test)
class Bench:
    def go(self): run(main)
def test_by_method(): Bench().go()
def test_simulated(): run_simulation(main)
def test_pure(): assert decide()
"""
    found = runners_in(ast.parse(source))
    tests = {name for name in found if name.startswith("test_")}
    assert tests == {"test_itself", "test_by_helper", "test_async", "test_decorated", "test_by_method"}


def test_tests_that_are_known_to_wait_run_on_both() -> None:
    """Of each layer one, and modules that stay on one loop are there."""
    for name, test in (
        ("runtime/objectstore/test_retry.py", "test_a_timeout_is_unavailable_and_repeated"),
        ("wal/block/test_log.py", "test_one_turn_of_the_loop_is_one_write"),
        ("broker/network/test_connection.py", "test_ready_replies_wait_for_parked_ones_before_them"),
    ):
        assert loops_of(ROOT / name, test) == [ASYNCIO, UVLOOP], name
    assert [name for name in ONE_LOOP if not (ROOT / name).is_file()] == []
