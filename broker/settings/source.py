"""Where settings come from: a file in server.properties syntax, the environment, the command line; and which
one wins. Pure.

    override   --override KEY=VALUE
    env        KAFKA_ + key: `_` is `.`, `__` is `_`, `___` is `-`, upper case is folded; and CLUSTER_ID
    file       Java's properties syntax, read as Java reads it but for UTF-8

Only texts: what a text means is key.py's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from millrace.protocol.dataclass import dataclass

# Variables of Kafka's scripts and images, and what Kubernetes sets for a service named kafka: no keys.
ENV_IGNORED = re.compile(
    r"KAFKA_(.*OPTS|HOME|VERSION|SCALA_VERSION|CLASSPATH|MODE|DEBUG.*|JMX_.*|LOG4J_.*|TOOLS_LOG4J_.*|GC_LOG_.*|CREATE_TOPICS"
    r"|(.+_)?SERVICE_(HOST|PORT).*|(.+_)?PORT(_\d+_.*)?)"
)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"


@dataclass(frozen=True, slots=True)
class Given:
    """A text that somebody gave for a key. `place` names where, for people."""

    text: str
    source: str  # "override", "env", "file"
    place: str


class PropertiesInvalid(ValueError):
    """The file is not in properties syntax; the message names the line."""


def parse_properties(text: str) -> list[tuple[str, str, int]]:
    """(key, value, line number) in file order. Raises PropertiesInvalid."""
    found = []
    for number, line in _logical_lines(text.removeprefix("\ufeff")):
        key_end = _key_end(line)
        value = line[key_end:].lstrip(_BLANKS)
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(_BLANKS)
        found.append((_unescape(line[:key_end], number), _unescape(value, number), number))
    return found


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Lines without blanks before them, comments left out, continued ones joined, with the number of the
    first."""
    parts: list[str] = []
    first = 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = raw.lstrip(_BLANKS)
        if not parts:
            if not line or line[0] in "#!":
                continue
            first = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(line[:-1])
            continue
        yield first, "".join([*parts, line])
        parts = []
    if parts:
        yield first, "".join(parts)


def _key_end(line: str) -> int:
    """Where the key ends: at the first blank, `=` or `:` that no backslash precedes."""
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out = []
    position = 0
    while position < len(text):
        letter = text[position]
        position += 1
        if letter != "\\":
            out.append(letter)
        elif position < len(text):
            letter = text[position]
            position += 1
            if letter == "u":
                digits = text[position : position + 4]
                if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                    raise PropertiesInvalid(
                        f"line {number}: \\u is followed by {digits!r}, not by four hexadecimal digits"
                    )
                letter = chr(int(digits, 16))
                position += 4
            else:
                letter = _ESCAPES.get(letter, letter)
            out.append(letter)
    # As in Java, whose letters above U+FFFF are written as two.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def env_key(name: str) -> str | None:
    """The key that an environment variable stands for, or None."""
    if name == "CLUSTER_ID":
        return "cluster.id"
    if not name.startswith("KAFKA_") or len(name) == 6 or ENV_IGNORED.fullmatch(name):
        return None
    return re.sub("_{1,3}", lambda found: ("", ".", "_", "-")[len(found[0])], name[6:].lower())


def gather(
    overrides: Iterable[str], env: Mapping[str, str], file_text: str | None, file_name: str
) -> tuple[dict[str, Given], list[str]]:
    """All that was given, the strongest source of each key, and the mistakes of syntax."""
    given: dict[str, Given] = {}
    mistakes: list[str] = []
    if file_text is not None:
        try:
            for key, value, line in parse_properties(file_text):
                given[key] = Given(value, "file", f"{file_name}, line {line}")
        except PropertiesInvalid as error:
            mistakes.append(f"{file_name}: {error}")
    for name in sorted(env):
        env_name = env_key(name)
        if env_name is not None:
            given[env_name] = Given(env[name], "env", f"environment, {name}")
    for word in overrides:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            mistakes.append(f"--override {word}: is not KEY=VALUE")
        else:
            given[key.strip()] = Given(value, "override", "--override")
    for key, one in given.items():
        if not is_text(key) or not is_text(one.text):
            mistakes.append(f"{key}={one.text} is not UTF-8 ({one.place})")
    return given, mistakes


def is_text(text: str) -> bool:
    """Whether it can be stored and shown to clients: words and variables hold any bytes, and those that are
    not UTF-8 stand for themselves."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
