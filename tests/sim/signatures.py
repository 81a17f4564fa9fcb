"""Whether a planted bug can be called as the function that it stands in the place of. Pure.

One that cannot ends each start with a TypeError, which is none of what it was planted for: it would be hunted
for ever, and never found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, Signature, signature
from typing import Any

REQUIRED_ALONE, POSITIONS, NAMES = (
    "what is required alone",
    "all, by position where it can be",
    "all, by name where it can be",
)
Call = tuple[list[None], dict[str, None]]


def misfits(real: Any, planted: Any) -> list[str]:
    """The ways of calling `real` that `planted` does not bear, in words; of a property, those of its
    getter."""
    if isinstance(real, property) or isinstance(planted, property):
        is_both = isinstance(real, property) and isinstance(planted, property)
        return misfits(real.fget, planted.fget) if is_both else ["one is a property, the other is none"]
    taken = signature(planted)
    return [f"{way}: {error}" for way, call in calls_of(signature(real)) if (error := _refusal(taken, call))]


def _refusal(taken: Signature, call: Call) -> str:
    try:
        taken.bind(*call[0], **call[1])
    except TypeError as error:
        return str(error)
    return ""


def calls_of(real: Signature) -> Iterator[tuple[str, Call]]:
    yield (
        REQUIRED_ALONE,
        _call(real, lambda one: one.default is Parameter.empty, Parameter.POSITIONAL_OR_KEYWORD),
    )
    yield POSITIONS, _call(real, lambda one: True, Parameter.POSITIONAL_OR_KEYWORD)
    yield NAMES, _call(real, lambda one: True, Parameter.POSITIONAL_ONLY)


def _call(real: Signature, is_given: Callable[[Parameter], bool], by_position: Any) -> Call:
    """With what is given, by position up to that kind of parameter; the one that a method is bound to always
    is."""
    positions: list[None] = []
    names: dict[str, None] = {}
    for one in real.parameters.values():
        if one.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) or not is_given(one):
            continue
        if one.kind <= by_position or one.name == "self":
            positions.append(None)
        else:
            names[one.name] = None
    return positions, names
