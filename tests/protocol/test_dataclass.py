"""Dataclasses that are made late behave as the library's own."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any, ClassVar

import pytest

from millrace.protocol.dataclass import dataclass

Decorator = Callable[..., Any]
DECORATORS: tuple[Decorator, Decorator] = (dataclasses.dataclass, dataclass)
OFTEN = 50  # objects of a class, of which the first are made without compiling its __init__


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place."""

    KIND: ClassVar[str] = "place"
    topic: str
    partition: int = 0


@dataclass(slots=True)
class Counted:
    name: str
    seen: list[int] = field(default_factory=list)
    made: int = field(init=False, default=7)
    hidden: str = field(default="", repr=False, compare=False)

    @property
    def total(self) -> int:
        return sum(self.seen)


@dataclass(slots=True)
class CountedTwice(Counted):
    twice: bool = True

    def __post_init__(self) -> None:
        self.seen.append(1)


@dataclass(slots=True, eq=False)
class Token:
    number: int = 0


@dataclass(slots=True, repr=False)
class Secret:
    word: str


def test_nothing_is_compiled_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = dataclasses.dataclass

    def spy(**options: bool) -> Decorator:
        def decorate(cls: type[Any]) -> type[Any]:
            made.append(cls.__name__)
            return real(**options)(cls)

        return decorate

    monkeypatch.setattr(dataclasses, "dataclass", spy)

    @dataclass(slots=True)
    class Late:
        a: int = 1

    assert Late().a == 1
    assert made == []
    assert Late(2) == Late(2) != Late(3)
    assert made == ["Late"]


def written() -> type[Any]:
    class Written:
        a: int
        b: str = "b"
        seen: list[int] = field(default_factory=list)
        made: int = field(init=False, default=7)
        other: list[int] = field(init=False, default_factory=list)
        last: int = 0

        def __post_init__(self) -> None:
            self.seen.append(self.last)

    return Written


@pytest.mark.parametrize("is_frozen", [True, False])
def test_an_object_is_the_same_before_its_initializer_is_compiled(is_frozen: bool) -> None:
    """Of the library's own decorator, for the first objects, those behind them and what does not fit."""

    library, late = (decorate(slots=True, frozen=is_frozen)(written()) for decorate in DECORATORS)
    for _ in range(OFTEN):
        for args, given in ((1,), {}), ((1, "x"), {"last": 3}), ((), {"a": 1, "seen": [5]}):
            one, other = (
                asdict(cls(*copy.deepcopy(args), **copy.deepcopy(given))) for cls in (library, late)
            )
            assert one == other
    assert inspect.get_annotations(late.__init__) == inspect.get_annotations(library.__init__)
    assert list(inspect.signature(late).parameters) == list(inspect.signature(library).parameters)
    assert late.__init__.__qualname__ == library.__init__.__qualname__


@pytest.mark.parametrize("count", [0, OFTEN])
@pytest.mark.parametrize(
    ("args", "given", "error"),
    [
        ((), {}, "missing 1 required positional argument: 'topic'"),
        (("a", 1, 2), {}, "takes from 2 to 3 positional arguments but 4 were given"),
        (("a",), {"topic": "b"}, "multiple values for argument 'topic'"),
        (("a",), {"offset": 1}, "unexpected keyword argument 'offset'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_python_s_words(
    count: int, args: tuple[Any, ...], given: dict[str, Any], error: str
) -> None:
    @dataclass(frozen=True, slots=True)
    class Fresh:
        topic: str
        partition: int = 0

    for _ in range(count):
        Fresh("a")
    with pytest.raises(TypeError, match=error):
        Fresh(*args, **given)
    assert Fresh("a") == Fresh("a", 0)


def test_what_is_asked_for_alone_is_made_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that is compared does not compile how it is shown; and its signature, which the library writes
    into classes without a docstring, takes longer than all else."""

    def refuse(*given: object) -> None:
        raise AssertionError

    monkeypatch.setattr(inspect, "signature", refuse)

    @dataclass(frozen=True, slots=True, order=True)
    class Fresh:
        number: int

    shown = Fresh.__dict__["__repr__"]
    assert Fresh(1) == Fresh(1)
    assert hash(Fresh(1)) == hash(Fresh(1))
    assert [one.name for one in fields(Fresh)] == ["number"]
    assert Fresh.__dict__["__repr__"] is shown
    assert Fresh(1) < Fresh(2)
    assert repr(Fresh(1)).endswith("Fresh(number=1)")


def test_values_compare_hash_and_show_as_ever() -> None:
    assert Place("a", 1) == Place("a", 1) != Place("a")
    assert len({Place("a"), Place("a"), Place("b")}) == 2
    assert Place("a", 1) < Place("a", 2) <= Place("b")
    assert Place("b") > Place("a") >= Place("a")
    assert repr(Place("a", 1)) == "Place(topic='a', partition=1)"
    assert Place.KIND == Place("a").KIND == "place"
    assert Place.__doc__ == "A place."
    as_tuple: object = ("a", 0)
    assert Place("a") != as_tuple


def test_a_frozen_one_takes_no_change_and_is_copied() -> None:
    place = Place("a", 1)
    with pytest.raises(FrozenInstanceError):
        place.partition = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del place.partition
    assert replace(place, partition=2) == Place("a", 2)
    assert copy.copy(place) == copy.deepcopy(place) == pickle.loads(pickle.dumps(place)) == place


def test_defaults_factories_and_hidden_fields() -> None:
    one, other = Counted("a"), Counted("a", hidden="x")
    one.seen.append(3)
    assert other.seen == []
    assert one.total == 3
    assert one.made == 7
    assert repr(other) == "Counted(name='a', seen=[], made=7)"
    assert Counted("a", hidden="y") == other
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    with pytest.raises(TypeError):
        Counted()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        one.unknown = 1  # type: ignore[attr-defined]
    assert not hasattr(one, "__dict__")


def test_a_subclass_has_the_fields_of_its_base_first() -> None:
    @dataclass(slots=True)
    class Fresh(CountedTwice):
        last: int = 0

    assert [one.name for one in fields(Fresh)] == ["name", "seen", "made", "hidden", "twice", "last"]
    assert asdict(Fresh("a", last=2)) == {
        "name": "a", "seen": [1], "made": 7, "hidden": "", "twice": True, "last": 2,
    }  # fmt: skip
    assert isinstance(CountedTwice("a"), Counted)
    assert CountedTwice("a") != Counted("a", [1])


def test_without_comparison_or_repr() -> None:
    assert Token() != Token()
    assert len({Token(), Token()}) == 2
    assert "word" not in repr(Secret("x"))


def test_patterns_see_the_fields() -> None:
    match Place("a", 4):
        case Place(topic, partition):
            assert (topic, partition) == ("a", 4)


def test_methods_of_its_own_are_kept() -> None:
    @dataclass(frozen=True, slots=True)
    class Named:
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

    assert Named("A") == Named("a")
    assert hash(Named("A")) == hash(Named("a"))


def test_a_frozen_one_that_only_compares_by_its_own_rule_is_hashed_by_its_fields() -> None:
    @dataclass(frozen=True, slots=True)
    class Odd:
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Odd)

    assert hash(Odd("a")) == hash(Odd("a"))


def test_threads_may_be_first_together() -> None:
    for _ in range(50):

        @dataclass(frozen=True, slots=True, order=True)
        class Shared:
            number: int

        start = threading.Barrier(4)
        found: list[object] = []

        def use(
            cls: Decorator = Shared, start: threading.Barrier = start, found: list[object] = found
        ) -> None:
            start.wait()
            found.append(cls(1) < cls(2))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 4


def test_what_is_given_by_name_alone_is_so_from_the_first_object_on() -> None:
    """Whatever stands behind it, and for a base class whose subclasses have it too."""

    @dataclass(slots=True)
    class Base:
        number: int = field(default=0, kw_only=True)
        name: str

    assert (Base("a").name, Base("b", number=2).number) == ("a", 2)
    with pytest.raises(TypeError, match="positional argument"):
        Base("a", 1)  # type: ignore[misc]
