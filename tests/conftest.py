"""What holds for the whole suite: no property test is judged by the clock, since the machine may be busy with other things; and what reads is
run twice where its module says so.

A module that has HOT_ONLY runs each of its tests hot, and cold with engines whose every read is of objects, but for those that it names there
with the reason. A cold test that reads nothing from objects fails.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.s3stream.build import World
from tests.s3stream.cold import ColdEngines

settings.register_profile("house", deadline=None)
settings.load_profile("house")

HOT, COLD = "hot", "cold"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    hot_only = getattr(metafunc.module, "HOT_ONLY", None)
    if hot_only is not None:
        gone = [name for name in hot_only if not hasattr(metafunc.module, name)]
        assert not gone, f"{metafunc.module.__name__} names tests in HOT_ONLY that it does not have: {gone}"
        tiers = [HOT] if metafunc.function.__name__ in hot_only else [HOT, COLD]
        metafunc.parametrize("tier", tiers, indirect=True)


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
