"""How many connections there may be: in all, from an address, and from addresses named. Pure but for the
image that it reads.

Kept true: a limit that is changed dynamically holds for the next connection; connections that are there stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from ipaddress import ip_address

from millrace.broker.settings.addresses import plain_host
from millrace.broker.settings.dynamic_values import BrokerValues
from millrace.kraft.tables.configs import NO_VALUES, Values
from millrace.protocol.dataclass import dataclass

log = logging.getLogger(__name__)
LIMIT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`per_host`: exceptions to `per_address_max`. `files_max`: how many the process has open files for."""

    total_max: int = LIMIT_MAX
    files_max: int = LIMIT_MAX
    per_address_max: int = LIMIT_MAX
    per_host: Mapping[str, int] = field(default_factory=dict)

    def of_address(self, host: str) -> int:
        return self.per_host.get(host, self.per_address_max)


NO_LIMITS = ConnectionLimits()


def parse_hosts(text: str) -> dict[str, int]:
    """ADDRESS:COUNT pairs, by commas; addresses as connections have them. Raises ValueError."""
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = pair.rpartition(":")
        if not host or not (count.isascii() and count.isdigit()):
            raise ValueError(f"holds {pair!r}, which is not ADDRESS:COUNT")
        try:
            address = ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            raise ValueError(
                f"holds {pair!r}: {host!r} is no IP address, and names are not looked up"
            ) from None
        if int(count) > LIMIT_MAX:
            raise ValueError(f"holds {pair!r}: the count is above {LIMIT_MAX}")
        found[plain_host(str(address))] = int(count)
    return found


class DynamicLimits:
    """The limits that hold now. A dynamic max.connections is bounded by `started.files_max`, as the one at
    the start was."""

    def __init__(self, started: ConnectionLimits, values: BrokerValues) -> None:
        self._started = started
        self._values = values
        self._seen: Values = NO_VALUES
        self._now = started

    def now(self) -> ConnectionLimits:
        values = self._values.now()
        if values is not self._seen:
            self._seen, self._now = values, self._merged(values)
        return self._now

    def _merged(self, values: Values) -> ConnectionLimits:
        """A value that another release stored, and this one would refuse, is told and not followed: nobody
        could take it back."""
        limits = self._started
        for name, follow in FOLLOWED.items():
            if name in values:
                try:
                    limits = follow(limits, values[name])
                except ValueError as error:
                    log.error(
                        "%s: what is set dynamically cannot be followed: it %s; set it anew, or delete it",
                        name,
                        error,
                    )
        return limits


def parse_limit(text: str) -> int:
    """Of a limit that is set dynamically. Raises ValueError."""
    limit = int(text)
    if limit < 1:
        raise ValueError(
            "lets no client in, not even one that takes it back: only the properties file can say so"
        )
    return limit


# What is obeyed, from the next connection on.
FOLLOWED: Mapping[str, Callable[[ConnectionLimits, str], ConnectionLimits]] = {
    "max.connections": lambda limits, text: replace(
        limits, total_max=min(parse_limit(text), limits.files_max)
    ),
    "max.connections.per.ip": lambda limits, text: replace(limits, per_address_max=parse_limit(text)),
    "max.connections.per.ip.overrides": lambda limits, text: replace(limits, per_host=parse_hosts(text)),
}
