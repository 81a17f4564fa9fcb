"""The given texts turned into values, one key at a time, with every mistake and warning collected. Pure.

Not here: what keys mean together (checks.py). Kept true: after a mistake the key has its default, so
that later checks can go on and the operator learns of all mistakes at once. Secrets show in no mistake and no
warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from millrace.broker.settings.key import OBEYED, REFUSED, STORED, Key, parse_value
from millrace.broker.settings.source import Given
from millrace.broker.settings.table import REMOVED
from millrace.protocol.dataclass import dataclass

_LISTENER_PREFIX = "listener.name."
_SECRETS_OF_ADDRESSES = re.compile(r"((?:secretKey|sessionToken)=)[^&,\s]*", re.IGNORECASE)
_PLUGIN_PREFIXES = ("rsm.config.", "rlmm.config.")


@dataclass(frozen=True, slots=True)
class ShownValue:
    """One key as clients and operators are shown it: an address without its secrets. `source` is override,
    env, file or default."""

    key: Key
    text: str | None
    source: str


class Values:
    """`values[name]` is the parsed value of a known key: what was given, or its default, or None."""

    def __init__(self, table: Mapping[str, Key], given: Mapping[str, Given]) -> None:
        self.mistakes: list[str] = []
        self.warnings: list[str] = []
        self._table = table
        self._given = given
        self._texts: dict[str, str] = {}  # defaults that depend on other settings, for showing
        self._parsed: dict[str, Any] = {}
        for name, one in given.items():
            key = table.get(name)
            if key is None:
                self._judge_unknown(name, one)
            else:
                self._judge(key, one)
        idle = [name for name in given if name in table and table[name].standing == STORED]
        if idle:
            self.warnings.append(f"without effect here, stored and shown: {', '.join(idle)}")

    def __getitem__(self, name: str) -> Any:
        if name not in self._parsed:
            key = self._table[name]
            self._parsed[name] = None if key.default is None else parse_value(key, key.default)
        return self._parsed[name]

    def is_given(self, name: str) -> bool:
        return name in self._given

    def given_texts(self) -> dict[str, str]:
        """Every known key that somebody gave, with its text."""
        return {name: one.text for name, one in self._given.items() if name in self._table}

    def mistake(self, name: str, reason: str) -> None:
        one = self._given.get(name)
        if one is None:
            self.mistakes.append(f"{name} (default) {reason}")
            return
        shown = "[hidden]" if self._table[name].is_secret else one.text
        self.mistakes.append(without_secrets(f"{name}={shown} {reason} ({one.place})"))

    def fill(self, name: str, text: str) -> None:
        """Gives a key that nobody gave the default that follows from other settings."""
        if name not in self._given:
            self._texts[name] = text
            self._parsed[name] = parse_value(self._table[name], text)

    def shown(self) -> dict[str, ShownValue]:
        """Every known key as it stands."""
        found = {}
        for name, key in self._table.items():
            one = self._given.get(name)
            if one is not None:
                found[name] = ShownValue(key, without_secrets(one.text), one.source)
            else:
                found[name] = ShownValue(key, self._texts.get(name, key.default), "default")
        return found

    def _judge(self, key: Key, one: Given) -> None:
        try:
            self._parsed[key.name] = parse_value(key, one.text)
        except ValueError as error:
            self.mistake(key.name, str(error))
            return
        if key.standing == REFUSED and one.text.strip() != (key.default or ""):
            self.mistake(key.name, f"cannot be served: {key.meaning}")

    def warn_of_option(self, name: str, option: str, known: Iterable[str]) -> None:
        """Of one in an address that nobody reads."""
        self.warnings.append(f"unknown option {option} in {name} has no effect{_hint(option, known)}")

    def _judge_unknown(self, name: str, one: Given) -> None:
        if name.startswith(_PLUGIN_PREFIXES):
            return
        if name in REMOVED:
            self.warnings.append(f"{name} ({one.place}) was removed in Kafka 4.0 and has no effect")
            return
        if name.startswith(_LISTENER_PREFIX):
            inner = self._table.get(name.removeprefix(_LISTENER_PREFIX).partition(".")[2])
            if inner is not None:
                if inner.standing == OBEYED:
                    self.warnings.append(
                        f"{name} ({one.place}): settings of one listener alone have no effect here"
                    )
                return
        self.warnings.append(f"unknown key {name} ({one.place}) has no effect{_hint(name, self._table)}")


def _hint(name: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""


def without_secrets(text: str) -> str:
    """A text that may hold addresses of stores, whole or misspelt, as it may be shown."""
    return _SECRETS_OF_ADDRESSES.sub(r"\1***", text)
