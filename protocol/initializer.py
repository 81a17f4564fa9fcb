"""`__init__` of a dataclass that inherits no fields: carried out step by step for the first objects, compiled
behind them.

To compile one takes as long as thirty calls of its steps, and of most classes a process makes a handful of
objects. Both do the same; what does not fit (an argument that there is not, one that is missing) is left to
the compiled one, whose errors are Python's own. Not here: the other methods, and when they are made
(dataclass.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field
from functools import partial
from typing import Any

_FROM_FACTORY = object()  # in place of an argument that a factory makes
_STEPPED = 20  # objects of a class that are made before it is compiled


class LateInit:
    """The class attribute `__init__` until it is compiled. `written`: the class's attributes as they were
    written; `names`: of its fields."""

    __slots__ = ("_cls", "_initializer", "_is_frozen", "_names", "_stepped", "_written")

    def __init__(self, names: Sequence[str], written: Mapping[str, Any], *, is_frozen: bool) -> None:
        self._names = names
        self._written = written
        self._is_frozen = is_frozen
        self._stepped = 0
        self._initializer: Initializer | None = None

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._cls = owner

    def __get__(self, instance: object | None, owner: type[Any]) -> Any:
        """For an object, or for who looks at it as it is in the class."""
        if self._initializer is None:
            self._initializer = Initializer(self._cls, self._names, self._written, is_frozen=self._is_frozen)
        if instance is None or self._stepped >= _STEPPED:
            self._compile(self._initializer)
            return (owner if instance is None else instance).__init__  # type: ignore[misc]
        self._stepped += 1
        return partial(self._fill, self._initializer, instance)

    def _fill(self, initializer: Initializer, instance: Any, /, *args: Any, **given: Any) -> None:
        if not initializer.fill(instance, args, given):
            self._compile(initializer)
            self._cls.__init__(instance, *args, **given)

    def _compile(self, initializer: Initializer) -> None:
        self._cls.__init__ = initializer.compiled()


class Initializer:
    """What it does, in both ways."""

    __slots__ = ("_arguments", "_cls", "_defaults", "_factories", "_is_frozen", "_names")

    def __init__(
        self, cls: type[Any], names: Sequence[str], written: Mapping[str, Any], *, is_frozen: bool
    ) -> None:
        self._cls = cls
        self._is_frozen = is_frozen
        self._arguments: list[str] = []
        self._defaults: dict[str, Any] = {}
        self._factories: dict[str, Callable[[], Any]] = {}
        self._names: list[str] = []  # of those that it sets
        for name in names:
            self._take(name, written.get(name, MISSING))

    def _take(self, name: str, given: Any) -> None:
        default, is_argument = given, True
        if isinstance(given, Field):
            default, is_argument = given.default, given.init
            if given.default_factory is not MISSING:
                self._factories[name] = given.default_factory
        if default is not MISSING:
            self._defaults[name] = default
        if is_argument:
            self._arguments.append(name)
        if is_argument or name in self._defaults or name in self._factories:
            self._names.append(name)

    def fill(self, instance: Any, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
        """False, and nothing done, for arguments that do not fit."""
        arguments = self._arguments
        found = dict(zip(arguments, args, strict=False))
        if len(args) > len(arguments) or any(name in found or name not in arguments for name in given):
            return False
        values = {**self._defaults, **found, **given}
        if any(name not in values and name not in self._factories for name in arguments):
            return False
        put = object.__setattr__ if self._is_frozen else setattr
        for name in self._names:
            put(instance, name, values[name] if name in values else self._factories[name]())
        if hasattr(self._cls, "__post_init__"):
            instance.__post_init__()
        return True

    def compiled(self) -> Callable[..., None]:
        known: dict[str, Any] = {"_set": object.__setattr__, "_FROM_FACTORY": _FROM_FACTORY}
        known |= {f"_default_{name}": value for name, value in self._defaults.items()}
        known |= {f"_make_{name}": factory for name, factory in self._factories.items()}
        arguments = ", ".join(["self", *map(self._argument, self._arguments)])
        lines = [f"def __init__({arguments}):", *map(self._line, self._names)]
        if hasattr(self._cls, "__post_init__"):
            lines.append(" self.__post_init__()")
        exec("\n".join(lines if len(lines) > 1 else [*lines, " pass"]), known)
        made: Callable[..., None] = known["__init__"]
        made.__qualname__, made.__module__ = f"{self._cls.__qualname__}.__init__", self._cls.__module__
        kinds = self._cls.__annotations__
        made.__annotations__ = {**{name: kinds[name] for name in self._arguments}, "return": None}
        return made

    def _argument(self, name: str) -> str:
        if name in self._factories:
            return f"{name}=_FROM_FACTORY"
        return f"{name}=_default_{name}" if name in self._defaults else name

    def _line(self, name: str) -> str:
        value = name if name in self._arguments else f"_default_{name}"
        if name in self._factories:
            made = f"_make_{name}()"
            value = f"{made} if {name} is _FROM_FACTORY else {name}" if name in self._arguments else made
        return f" _set(self, {name!r}, {value})" if self._is_frozen else f" self.{name} = {value}"
