"""Dataclasses whose methods are made one by one, when they are first used.

`@dataclass` of the standard library compiles five functions a class as the module is imported: a millisecond
a class with a Python built without optimization, and a process that starts needs the `__init__` of a third of
them. This decorator takes the same arguments, and gives classes that behave the same: `__init__` is made in
initializer.py, the other methods and the fields by the library's own decorator, of the class as it was
written (the twin), each when it is first asked for, `__init__` when it is asked for often. What was made
moves into the class with slots: from then on nothing is left in between.

Only what this project uses: `slots=True` always, no InitVar, no KW_ONLY, no `kw_only` or `unsafe_hash` of a
class, no default in a base class that a subclass takes away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.protocol.initializer import LateInit

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type[Any] | None = None, /, **options: bool) -> Any:
        """As dataclasses.dataclass(slots=True, ...)."""
        return _defer(cls, options) if cls is not None else lambda cls: _defer(cls, options)


_ORDER = ("__lt__", "__le__", "__gt__", "__ge__")
_SEEN = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_DROPPED = ("__dict__", "__weakref__")
# What has the library make this one alone. The others are made all at once.
_NOTHING = {"init": False, "repr": False, "eq": False, "match_args": False}
_ALONE = {
    "__repr__": {**_NOTHING, "repr": True},
    "__eq__": {**_NOTHING, "eq": True},
    "__hash__": {**_NOTHING, "unsafe_hash": True},
    "__match_args__": {**_NOTHING, "match_args": True},
    "__dataclass_fields__": _NOTHING,
}


class _Later:
    """A class attribute that is not made yet."""

    __slots__ = ("_make", "_name")

    def __init__(self, make: Callable[[str], None], name: str) -> None:
        self._make = make
        self._name = name

    def __get__(self, instance: object | None, owner: type[Any]) -> Any:
        self._make(self._name)
        return getattr(owner if instance is None else instance, self._name)


def _frozen_setattr(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _frozen_delattr(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[object]:
    """For copies and pickles, as the library has it."""
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _setstate(self: Any, state: list[object]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


# Alike in all frozen classes: nothing to make.
_FROZEN = {
    "__setattr__": _frozen_setattr,
    "__delattr__": _frozen_delattr,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}


def _defer(twin: type[Any], options: dict[str, bool]) -> type[Any]:
    options = {name: on for name, on in options.items() if name != "slots"}
    written = twin.__dict__
    names = [
        name for name, kind in written.get("__annotations__", {}).items() if not kind.startswith("ClassVar")
    ]
    made_names = [name for name in _made(options) if name not in written]
    members = {name: value for name, value in written.items() if name not in {*names, *_DROPPED}}
    inherited = {slot for base in twin.__mro__[1:-1] for slot in base.__dict__.get("__slots__", ())}
    members["__slots__"] = tuple(name for name in names if name not in inherited)
    # A class that gives an __eq__ and no __hash__ has a __hash__ of None that nobody wrote.
    is_hashed = "__hash__" in written and not (written["__hash__"] is None and "__eq__" in written)
    if options.get("frozen"):
        members |= {name: value for name, value in _FROZEN.items() if name not in written}
        if options.get("eq", True) and not is_hashed:
            made_names.append("__hash__")
    elif options.get("eq", True) and not is_hashed:
        members["__hash__"] = None
    is_derived = any("__dataclass_fields__" in base.__dict__ for base in twin.__mro__[1:-1])
    metaclass: Callable[..., type[Any]] = type(twin)

    def make(name: str) -> None:
        """Of a copy of the twin: two threads that ask first together make the same, each for itself."""
        given = {name: value for name, value in written.items() if name not in _DROPPED}
        copy = metaclass(twin.__name__, twin.__bases__, given)
        copy.__doc__ = twin.__name__  # else its signature is made into one, which costs more than the rest
        if name in _ALONE and not is_derived:
            asked = [name]
            made = dataclasses.dataclass(**_ALONE[name])(copy)
        else:
            asked = made_names
            made = dataclasses.dataclass(slots=True, **options)(copy)
        for each in asked:
            setattr(cls, each, made.__dict__[each])

    # Members of the class from its beginning: put into it later, each would be looked up in all its slots.
    members |= {name: _Later(make, name) for name in made_names}
    if "__init__" in made_names and not is_derived and not _has_keywords(written, names):
        members["__init__"] = LateInit(names, written, is_frozen=options.get("frozen", False))
    cls = metaclass(twin.__name__, twin.__bases__, members)
    cls.__qualname__ = twin.__qualname__
    return cls


def _has_keywords(written: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether it takes an argument by its name alone; such an `__init__` is the library's."""
    given = (written.get(name) for name in names)
    return any(isinstance(one, dataclasses.Field) and one.kw_only is True for one in given)


def _made(options: dict[str, bool]) -> list[str]:
    names = list(_SEEN)
    if options.get("init", True):
        names.append("__init__")
    if options.get("repr", True):
        names.append("__repr__")
    if options.get("eq", True):
        names.append("__eq__")
    if options.get("order"):
        names += _ORDER
    return names
