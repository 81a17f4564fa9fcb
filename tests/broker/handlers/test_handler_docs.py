"""A handler's file opens with its API, the versions it serves and the fields of requests that it ignores."""

from __future__ import annotations

import importlib
import re
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from millrace.protocol.apis import API, Api

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "broker" / "handlers"


def opening(text: str) -> tuple[str, str]:
    """The first two paragraphs of its docstring."""
    first, second, *_ = (*text.split('"""')[1].split("\n\n"), "")
    return first, " ".join(second.split())


def handlers() -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.py")):
        text = path.read_text()
        keys = [int(key) for key in re.findall(r"\(key (\d+)\)", opening(text)[0])]
        if keys:
            yield pytest.param(text, [API[key] for key in keys], id=path.stem)


def served(api: Api) -> str:
    first, last = api.min_version, api.max_stable_version
    return f"{first}" if first == last else f"{first} to {last}"


def field_names(api: Api) -> set[str]:
    """Of its request and all structures in it."""
    module = importlib.import_module(api.request_type.__module__)
    found: set[str] = set()
    waiting: list[Any] = [api.request_type]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            hints = typing.get_type_hints(kind, vars(module))
            found.update(name for name in kind.__annotations__ if name != "VERSIONS")
            waiting += hints.values()
        else:
            waiting += typing.get_args(kind)
    return found


@cache
def attributes_read() -> frozenset[str]:
    """What the product reads of anything, outside the codec."""
    texts = (path.read_text() for folder in ("broker", "kraft") for path in (ROOT / folder).rglob("*.py"))
    return frozenset(name for text in texts for name in re.findall(r"\.([a-z_0-9]+)\b", text))


@pytest.mark.parametrize(("text", "apis"), list(handlers()))
def test_a_handler_says_which_versions_it_serves(text: str, apis: list[Api]) -> None:
    said = re.match(r"Versions? ([^.]*)\.", opening(text)[1])
    assert said is not None
    assert said[1] == " and ".join(map(served, apis))


@pytest.mark.parametrize(("text", "apis"), list(handlers()))
def test_a_handler_says_what_it_ignores(text: str, apis: list[Api]) -> None:
    """What nobody reads is named, and what is named is a field of the request."""
    second = opening(text)[1]
    _, _, words = second.partition("Ignored: ")
    ignored = set(re.findall(r"`([a-z_0-9]+)`", words))
    fields = set().union(*map(field_names, apis))
    assert bool(ignored) != ("No field is ignored." in second)
    assert ignored <= fields
    assert not (fields - attributes_read()) - ignored


def test_all_handlers_are_looked_at() -> None:
    assert len(list(handlers())) >= 29
    assert "rack_id" in field_names(API[1])
    assert "reason" in field_names(API[13])
