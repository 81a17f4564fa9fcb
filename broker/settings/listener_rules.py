"""Which listeners a broker has, of what it was started with and what is set dynamically. Pure.

`listeners` and `listener.security.protocol.map` can be set for one broker. As in Kafka:

    what is advertised stays     a listener of the properties file that advertised.listeners names (every one,
                                 where it names none) can neither go nor move: clients were told of it. The
                                 one between brokers is always among them
    the protocol stays           of a listener that is there
    controllers' listeners       are named as in the properties file, and no matter of the broker's
    a value is for one broker    never the default of all

Not as in Kafka: a listener may move to another address (there the value is taken and the address is not), and
clients that come in by one that is not advertised are told the address that they reached (there they are told
of no broker).

Not here: sockets (listeners.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.broker.settings.addresses import Endpoint, parse_endpoints, parse_protocols, protocol_fault
from millrace.broker.settings.checks import ListenerSettings
from millrace.kraft.tables.configs import Values

LISTENERS, PROTOCOL_MAP = "listeners", "listener.security.protocol.map"
KEYS = (LISTENERS, PROTOCOL_MAP)


class ListenerRules:
    """`started`: the listeners of the properties file; `texts`: what it says of KEYS, or their defaults."""

    def __init__(self, started: ListenerSettings, texts: Mapping[str, str]) -> None:
        self.started = started.clients
        self._texts = texts
        self._controllers = frozenset(endpoint.listener for endpoint in started.controllers)
        advertised = {endpoint.listener for endpoint in started.advertised}
        self._lasting = {
            endpoint.listener: endpoint
            for endpoint in started.clients
            if not advertised or endpoint.listener in advertised
        }

    @property
    def lasting(self) -> tuple[Endpoint, ...]:
        """Those that are served whatever is set dynamically."""
        return tuple(self._lasting.values())

    def served(self, values: Values) -> tuple[Endpoint, ...]:
        """What is served with these dynamic values, the lasting ones first and as the properties file has
        them now. Raises ValueError."""
        protocols = self._protocols(values)
        others = [endpoint for endpoint in self._asked(values) if endpoint.listener not in self._lasting]
        for endpoint in others:
            _refuse(protocol_fault(endpoint.listener, protocols))
        return (*self._lasting.values(), *others)

    def judge(self, before: Values, after: Values) -> tuple[Endpoint, ...]:
        """What is to be served after a change. Raises ValueError with the reason why it cannot be made."""
        asked = {endpoint.listener: endpoint for endpoint in self._asked(after)}
        for name, endpoint in self._lasting.items():
            if name not in asked:
                raise ValueError(
                    f"leaves out {name}, which clients are told of: what is advertised takes a restart"
                )
            if asked[name] != endpoint:
                raise ValueError(
                    f"moves {name}, which clients are told of: what is advertised takes a restart"
                )
        known, protocols = self._protocols(before), self._protocols(after)
        for endpoint in self._asked(before):
            name = endpoint.listener
            if name in asked and name in known and protocols.get(name, known[name]) != known[name]:
                raise ValueError(f"changes the protocol of {name}: add another listener for it")
        for name in self._lasting:
            if name not in protocols:
                raise ValueError(f"gives no protocol to {name}, which clients are told of")
        return self.served(after)

    def _asked(self, values: Values) -> tuple[Endpoint, ...]:
        text = values.get(LISTENERS, self._texts[LISTENERS])
        endpoints = parse_endpoints(text.split(","))
        return tuple(endpoint for endpoint in endpoints if endpoint.listener not in self._controllers)

    def _protocols(self, values: Values) -> dict[str, str]:
        return parse_protocols(values.get(PROTOCOL_MAP, self._texts[PROTOCOL_MAP]))


def _refuse(fault: str | None) -> None:
    if fault is not None:
        raise ValueError(fault)
