"""What is set dynamically for this broker, as one mapping: its own values before those of all brokers. Pure
but for the image that it reads.

Not here: which keys may be set (dynamic_configs.py), what a key does.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.kraft.tables.configs import NO_VALUES, Configs, Values


class BrokerValues:
    """`now` gives the same mapping for as long as nothing of it was changed, so that who keeps what it made
    of one can tell by `is`."""

    def __init__(self, configs: Callable[[], Configs], node_id: int) -> None:
        self._configs = configs
        self._node_id = node_id
        self._seen: tuple[Values, Values] = NO_VALUES, NO_VALUES
        self._now: Values = NO_VALUES

    def now(self) -> Values:
        configs = self._configs()
        mine, every = configs.broker(self._node_id), configs.broker(None)
        if self._seen[0] is not mine or self._seen[1] is not every:
            self._seen, self._now = (mine, every), {**every, **mine}
        return self._now
