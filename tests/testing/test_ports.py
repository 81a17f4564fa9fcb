"""Ports for brokers that are about to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.testing import ports


class FewPorts:
    """Draws the same few again and again."""

    def __init__(self, drawn: list[int]) -> None:
        self._drawn: Iterator[int] = iter(drawn)

    def choice(self, among: range) -> int:
        return next(self._drawn)


def test_a_port_is_not_given_twice_while_nobody_listens_on_it_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins several nodes draws all their ports first: two of a dozen among 20,000 are the same once
    in three hundred times."""
    monkeypatch.setattr(ports, "_given", ports._given.copy())
    first, second = ports.free_port(), ports.free_port()
    third = next(one for one in iter(ports.free_port, None) if one not in (first, second))
    ports._given.remove(third)
    monkeypatch.setattr(ports, "DRAWN", FewPorts([first, second, first, third]))
    assert ports.free_port() == third
