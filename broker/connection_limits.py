"""How many connections there may be: in all, from an address, and from addresses named. Pure but for the image that it reads.

Kept true: a limit that is changed dynamically holds for the next connection; connections that are there stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from millrace.kraft.tables.configs import Configs, Values

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
    """HOST:COUNT pairs, by commas. Raises ValueError."""
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = pair.rpartition(":")
        if not host or not count.isdecimal():
            raise ValueError(f"holds {pair!r}, which is not HOST:COUNT")
        found[host] = int(count)
    return found


class DynamicLimits:
    """The limits that hold now. A dynamic max.connections is bounded by `started.files_max`, as the one at the start was."""

    def __init__(self, started: ConnectionLimits, configs: Callable[[], Configs], node_id: int) -> None:
        self._started = started
        self._configs = configs
        self._node_id = node_id
        self._seen: tuple[Values, Values] | None = None
        self._now = started

    def now(self) -> ConnectionLimits:
        configs = self._configs()
        mine, every = configs.broker(self._node_id), configs.broker(None)
        if self._seen is None or self._seen[0] is not mine or self._seen[1] is not every:
            self._seen, self._now = (mine, every), self._merged({**every, **mine})
        return self._now

    def _merged(self, values: Mapping[str, str]) -> ConnectionLimits:
        limits = self._started
        if "max.connections" in values:
            limits = replace(limits, total_max=min(int(values["max.connections"]), limits.files_max))
        if "max.connections.per.ip" in values:
            limits = replace(limits, per_address_max=int(values["max.connections.per.ip"]))
        if "max.connections.per.ip.overrides" in values:
            limits = replace(limits, per_host=parse_hosts(values["max.connections.per.ip.overrides"]))
        return limits
