"""A real broker for a test: `with Broker() as kafka: ... kafka.bootstrap_servers`; under pytest the fixture
`kafka` (plugin.py).

The broker runs in a process of its own, in test mode (broker/test_mode.py), and ends with the process that
started it, however that ends. No client library comes with it: what is asked here goes through
millrace.protocol. Guide: docs/testing.md. Production never imports this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.testing.aio import AsyncBroker
    from millrace.testing.broker import Broker
    from millrace.testing.errors import BrokerNotStarted, NotEnoughRecords, Refused
    from millrace.testing.values import Place, Record, TopicPartition

_MODULES = {
    "AsyncBroker": "aio",
    "Broker": "broker",
    "BrokerNotStarted": "errors",
    "NotEnoughRecords": "errors",
    "Place": "values",
    "Record": "values",
    "Refused": "errors",
    "TopicPartition": "values",
}
__all__ = [
    "AsyncBroker",
    "Broker",
    "BrokerNotStarted",
    "NotEnoughRecords",
    "Place",
    "Record",
    "Refused",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: the pytest plugin of this package is loaded by every run of pytest."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
