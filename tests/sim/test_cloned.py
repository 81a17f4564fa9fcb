"""A cloned node beside its clone: nothing is overwritten, and the one that was replaced does nothing more;
bugs that are planted are found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millrace.broker.identity.ownership import Owner
from millrace.kraft.node import ControllerNode
from millrace.s3stream import uploader
from millrace.s3stream.objects import reader
from tests.sim.cloned import run_cloned


@pytest.mark.parametrize("is_halted", [False, True])
@pytest.mark.parametrize("seed", ["0", "1"])
def test_a_cloned_node_harms_nothing(seed: str, is_halted: bool) -> None:
    """The first goes on beside its clone, or is halted for twenty seconds and wakes: it ends, and has done
    nothing."""
    scene = run_cloned(seed, is_halted=is_halted)
    assert scene.findings == []
    assert scene.looked_count > 20
    assert scene.claimed_s is not None


@contextmanager
def planted(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


async def looks_never(self: Owner, since_s: float) -> None:
    self._verified_s = max(self._verified_s, since_s)


async def verifies_over(self: Owner, since_s: float) -> None:
    """Nothing; objects are put without the condition that would end the process before it commits, and a halt
    holds no commit."""
    self.is_conditional = False
    self.may_acknowledge = lambda: True  # type: ignore[method-assign]


async def puts_over(store: Any, ownership: Any, key: str, parts: Any) -> None:
    await store.put(key, parts)


@pytest.mark.parametrize(
    ("owner", "name", "bug", "kinds", "is_halted"),
    [
        (Owner, "_look", looks_never, {"replaced-lives"}, False),
        (Owner, "verify", verifies_over, {"replaced-deleted", "replaced-committed"}, True),
        (Owner, "may_acknowledge", lambda self: True, {"replaced-acknowledged"}, True),
        (ControllerNode, "commit_after", lambda self, gate: None, {"replaced-made"}, True),
        (uploader, "put_object", puts_over, {"object-overwritten"}, False),
        (reader, "check_writer", lambda footer, token: None, {"foreign-read"}, True),
    ],
    ids=[
        "claims are never looked at",
        "nothing is verified before it is final",
        "a halt holds no acknowledgement",
        "a halt holds no commit of metadata",
        "puts without a condition",
        "footers unchecked",
    ],
)
def test_a_planted_bug_is_found(owner: Any, name: str, bug: Any, kinds: set[str], is_halted: bool) -> None:
    """By the checker that is there for it, within four seeds."""
    with planted(owner, name, bug):
        for seed in range(4):
            found = {line.partition(":")[0] for line in run_cloned(str(seed), is_halted=is_halted).findings}
            if found & kinds:
                return
    raise AssertionError(f"not found: {found}")
