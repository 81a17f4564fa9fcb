"""What a settings key is, and how the text given for it becomes a value. Pure.

A key has Kafka's name where Kafka has it, a kind (Kafka's own types), a default in the text in which one
would write it, bounds, and one sentence of consequence. Its standing says what this broker does with it:

    obeyed    it changes what the broker does, as the sentence says
    stored    accepted, kept and shown to clients; without effect here, for the reason in the sentence
    refused   a value other than the default does not start, since going on without it would break a promise
              made elsewhere
"""

from __future__ import annotations

import re
from typing import Any

from millrace.broker.settings.addresses import parse_endpoint, split_host_port
from millrace.protocol.dataclass import dataclass
from millrace.wal.config import parse_bytes

# Kafka's types of configuration, as DescribeConfigs numbers them.
BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = range(1, 10)
KIND_NAMES = {
    BOOLEAN: "boolean",
    STRING: "string",
    INT: "int",
    SHORT: "short",
    LONG: "long",
    DOUBLE: "double",
}
KIND_NAMES |= {LIST: "list", CLASS: "class", PASSWORD: "password"}
OBEYED, STORED, REFUSED = "obeyed", "stored", "refused"

# Of Kafka's; nan, inf and 1_0 are numbers in Python.
NUMBER = re.compile(r"[-+]?(Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?)")
_LIMITS = {SHORT: 2**15 - 1, INT: 2**31 - 1, LONG: 2**63 - 1}


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    kind: int
    default: str | None  # None: absent is legal
    meaning: str
    standing: str = OBEYED
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    shape: str = ""  # "endpoints", "host:port": checked text; "bytes": units are taken
    is_ours: bool = False  # no key of Kafka's

    @property
    def is_secret(self) -> bool:
        return self.kind == PASSWORD

    def bounds_text(self) -> str:
        if self.choices:
            return ", ".join(self.choices)
        low = "" if self.low is None else plain(self.low)
        high = "" if self.high is None else plain(self.high)
        return f"{low}..{high}" if low or high else ""


def plain(bound: float) -> str:
    """All its digits, and no fraction that it has not."""
    return str(int(bound)) if bound == int(bound) else str(bound)


def parse_value(key: Key, text: str) -> Any:
    """The value of a text, checked. Raises ValueError with a reason that does not repeat a secret."""
    text = text.strip()
    match key.kind:
        case 1:
            return _parse_boolean(text)
        case 3 | 4 | 5:
            return _in_bounds(key, _parse_whole(key, text))
        case 6:
            return _in_bounds(key, _parse_real(text))
        case 7:
            return _parse_list(key, text)
    if key.choices and text not in key.choices:
        raise ValueError(f"is none of {', '.join(key.choices)}")
    if key.shape == "host:port" and text:
        split_host_port(text)
    return text


def _parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text.lower() == "true"


def _parse_whole(key: Key, text: str) -> int:
    try:
        if "_" in text:  # a number in Python, and in no client
            raise ValueError
        number = parse_bytes(text) if key.shape == "bytes" else int(text)
    except ValueError:
        raise ValueError("is not a whole number") from None
    if not -_LIMITS[key.kind] - 1 <= number <= _LIMITS[key.kind]:
        raise ValueError(f"does not fit {KIND_NAMES[key.kind]}")
    return number


def _parse_real(text: str) -> float:
    if NUMBER.fullmatch(text) is None:
        raise ValueError("is not a number")
    return float(text)


def _in_bounds(key: Key, number: float) -> float:
    if key.low is not None and number < key.low:
        raise ValueError(f"is below {plain(key.low)}")
    if key.high is not None and number > key.high:
        raise ValueError(f"is above {plain(key.high)}")
    return number


def _parse_list(key: Key, text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(",")) if text else ()
    if "" in items:
        raise ValueError("has an empty element")
    for item in items:
        if key.choices and item not in key.choices:
            raise ValueError(f"holds {item!r}, which is none of {', '.join(key.choices)}")
        if key.shape == "endpoints":
            parse_endpoint(item)
        elif key.shape == "host:port":
            split_host_port(item)
    return items
