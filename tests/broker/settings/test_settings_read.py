"""Every field of every settings class is read by the code that it is for, found in the syntax trees with a
little of the types.

A name alone would not do: `topic.replication_factor` of a request is no reader of a setting of that name. So
what a name or attribute holds is followed from annotations and assignments, module by module; scopes are not
told apart. Making a settings value reads nothing.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from millrace.broker.config import BrokerSettings

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("runtime", "protocol", "wal", "s3stream", "kraft", "broker")


@cache
def trees() -> dict[str, ast.Module]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def settings_classes() -> dict[str, type[Any]]:
    """By name: each dataclass called Settings anywhere, and whatever BrokerSettings or one of those holds."""
    found: dict[str, type[Any]] = {}
    waiting: list[Any] = [BrokerSettings]
    for name, tree in trees().items():
        module = f"millrace.{name.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}"
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Settings"):
                waiting.append(getattr(importlib.import_module(module), node.name))
    while waiting:
        kind = waiting.pop()
        waiting += getattr(kind, "__args__", ())
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind.__name__ not in found:
            found[kind.__name__] = kind
            waiting += get_type_hints(kind).values()
    return found


class Readers:
    """What is read of which class. `classes`: class -> field -> the classes of what it holds."""

    def __init__(self, classes: dict[str, dict[str, set[str]]]) -> None:
        self._classes = classes
        self._attributes: dict[str, set[str]] = defaultdict(set)  # of whatever object, in all modules
        self._returned: dict[str, set[str]] = defaultdict(set)
        self.read: set[tuple[str, str]] = set()

    def look(self, modules: list[ast.Module]) -> None:
        for _ in range(3):  # an attribute may hold what a later module's says
            for tree in modules:
                self._learn_and_read(tree)
        self._follow_own_methods(modules)

    def _learn_and_read(self, tree: ast.Module) -> None:
        names: dict[str, set[str]] = defaultdict(set)
        nodes = list(ast.walk(tree))
        own = {id(inner) for node in nodes if self._is_settings(node) for inner in ast.walk(node)}
        for _ in range(3):
            for node in nodes:
                if id(node) not in own:
                    self._learn(node, names)
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in own:
                self.read |= {(kind, node.attr) for kind in self._kinds(node.value, names)}

    def _is_settings(self, node: ast.AST) -> bool:
        return isinstance(node, ast.ClassDef) and node.name in self._classes

    def _learn(self, node: ast.AST, names: dict[str, set[str]]) -> None:
        if isinstance(node, ast.arg) and node.annotation is not None:
            names[node.arg] |= self._named(node.annotation)
        elif isinstance(node, ast.AnnAssign):
            self._bind(node.target, self._named(node.annotation), names)
            if isinstance(node.target, ast.Name):
                self._attributes[node.target.id] |= self._named(node.annotation)  # a dataclass's, perhaps
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            self._returned[node.name] |= self._named(node.returns)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for one, value in zip(target.elts, node.value.elts, strict=False):
                        self._bind(one, self._kinds(value, names), names)
                else:
                    self._bind(target, self._kinds(node.value, names), names)

    def _bind(self, target: ast.expr, kinds: set[str], names: dict[str, set[str]]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] |= kinds
        elif isinstance(target, ast.Attribute):
            self._attributes[target.attr] |= kinds

    def _named(self, annotation: ast.expr) -> set[str]:
        words = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
        return words & set(self._classes)

    def _kinds(self, node: ast.expr, names: dict[str, set[str]]) -> set[str]:
        """The settings classes that an expression may be of."""
        match node:
            case ast.Name():
                return names.get(node.id, set())
            case ast.Attribute():
                owners = self._kinds(node.value, names)
                if owners:
                    return set().union(*(self._classes[owner].get(node.attr, set()) for owner in owners))
                return self._attributes.get(node.attr, set())
            case ast.Call(func=ast.Name() as called):
                return {called.id} & set(self._classes) | self._returned.get(called.id, set())
            case ast.Call(func=ast.Attribute() as called):
                return self._returned.get(called.attr, set())
            case ast.BoolOp():
                return set().union(*(self._kinds(value, names) for value in node.values))
            case ast.IfExp():
                return self._kinds(node.body, names) | self._kinds(node.orelse, names)
        return set()

    def _follow_own_methods(self, modules: list[ast.Module]) -> None:
        """A field that a class reads of itself is read where the method or property is; its text is read by
        people."""
        for kind in [node for tree in modules for node in ast.walk(tree) if self._is_settings(node)]:
            assert isinstance(kind, ast.ClassDef)
            for _ in range(2):
                for method in kind.body:
                    if isinstance(method, ast.FunctionDef) and (
                        method.name == "__str__" or (kind.name, method.name) in self.read
                    ):
                        self.read |= {(kind.name, name) for name in attributes_of_self(method)}


def attributes_of_self(method: ast.FunctionDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def unread(classes: dict[str, dict[str, set[str]]], modules: list[ast.Module]) -> list[str]:
    readers = Readers(classes)
    readers.look(modules)
    fields = [(kind, name) for kind, held in classes.items() for name in held]
    return [f"{kind}.{name}" for kind, name in fields if (kind, name) not in readers.read]


def held_by(kind: type[Any]) -> dict[str, set[str]]:
    hints = get_type_hints(kind)
    parts = {
        name: (hints[name], *getattr(hints[name], "__args__", ()))
        for name in (f.name for f in dataclasses.fields(kind))
    }
    return {
        name: {p.__name__ for p in held if p in settings_classes().values()} for name, held in parts.items()
    }


PLANTED = """
class PlantedSettings:
    used: int
    dead: int
    of_own: int
    inner: InnerSettings

    @property
    def twice(self) -> int:
        return 2 * self.of_own

class InnerSettings:
    deep: int
    dead_deep: int

def make(texts) -> PlantedSettings:
    return PlantedSettings(used=1, dead=2, of_own=3, inner=InnerSettings(deep=4, dead_deep=5))

class Part:
    def __init__(self, topic, settings: PlantedSettings | None) -> None:
        loop, self._settings = 1, settings
        topic.dead + topic.inner.dead_deep

    def work(self):
        inner = self._settings.inner
        return self._settings.used + self._settings.twice + inner.deep
"""


def test_a_dead_field_is_seen() -> None:
    """One that is only set, beside a namesake that is read of something else; what a property, a local name
    or a part leads to is read."""
    inner: dict[str, set[str]] = {"deep": set(), "dead_deep": set()}
    planted = {"used": set(), "dead": set(), "of_own": set(), "inner": {"InnerSettings"}}
    dead = unread({"PlantedSettings": planted, "InnerSettings": inner}, [ast.parse(PLANTED)])
    assert dead == ["PlantedSettings.dead", "InnerSettings.dead_deep"]


def test_every_field_of_the_settings_has_a_reader() -> None:
    """A setting that is parsed, checked, shown and read by nobody would be a promise that nothing keeps."""
    classes = {name: held_by(kind) for name, kind in settings_classes().items()}
    assert {"GroupSettings", "CoordinatorSettings", "BlockWalSettings", "TopicSettings"} <= set(classes)
    assert unread(classes, list(trees().values())) == []
