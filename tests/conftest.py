"""What holds for the whole suite: no property test is judged by the clock, since the machine may be busy with
other things; and what reads is run twice where its module says so, and what runs a loop on both loops.

A module that has HOT_ONLY runs each of its tests hot, and cold with engines whose every read is of objects,
but for those that it names there with the reason. A cold test that reads nothing from objects fails.

A test that begins a real loop runs on asyncio's and on uvloop (tests/loops.py says which do).
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from millrace.testing import ports
from tests.groups import order_of, scheduling, workers
from tests.loops import ASYNCIO, UVLOOP, loops_of
from tests.s3stream.build import World
from tests.s3stream.cold import ColdEngines
from tests.skips import pytest_sessionfinish as pytest_sessionfinish
from tests.skips import pytest_terminal_summary as pytest_terminal_summary

# A port is drawn some time before anybody listens on it: each worker draws from those of its own.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
ports.PORTS = ports.PORTS[WORKER :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in the background of a shell: what is started here would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("house", deadline=None)
settings.load_profile("house")

HOT, COLD = "hot", "cold"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return workers()


def pytest_configure() -> None:
    """A shell starts what runs in the background with interrupts ignored, and so would be every process that
    a test starts."""
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker of a run in parallel; a run without workers keeps its order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: order_of(item.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """All tests of the suite are a million objects, which stay: a collection of garbage that looks through
    them again takes a second."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    hot_only = getattr(metafunc.module, "HOT_ONLY", None)
    if hot_only is not None:
        gone = [name for name in hot_only if not hasattr(metafunc.module, name)]
        assert not gone, f"{metafunc.module.__name__} names tests in HOT_ONLY that it does not have: {gone}"
        tiers = [HOT] if metafunc.function.__name__ in hot_only else [HOT, COLD]
        metafunc.parametrize("tier", tiers, indirect=True)
    loops = loops_of(Path(str(metafunc.module.__file__)), metafunc.function.__name__)
    if loops and "loop_name" not in metafunc.fixturenames:  # by which a test chooses its loop itself
        metafunc.parametrize("loop_kind", loops, indirect=True)


@pytest.fixture(autouse=True)
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """HOT, or COLD in the second run of a test that reads."""
    name = getattr(request, "param", HOT)
    engines = ColdEngines()
    if name == COLD:
        monkeypatch.setattr(World, "make_engine", staticmethod(engines.make))
    yield name
    if name == COLD:
        engines.check()


@pytest.fixture(autouse=True)
def loop_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `asyncio.run` begins within a test."""
    name = str(getattr(request, "param", ASYNCIO))
    if name == UVLOOP:
        monkeypatch.setattr(asyncio.events, "new_event_loop", uvloop.new_event_loop)
    return name
