"""Where another node's write-ahead log is, by what metadata says of it: for who recovers it, and for a
restore.

Metadata names no keys of a store: an address is in it as it is shown. Not here: looking at a log, opening it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.kraft.tables.wals import NodeWal
from millrace.runtime.objectstore.address import AddressError, parse_address
from millrace.wal.kind import WalPlace, WalWords
from millrace.wal.opening import kind_of

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings


def place_of_log(own: WalPlace, wal: NodeWal, settings: BrokerSettings) -> WalPlace:
    """`own`, for another address: with the keys that this node has for its own log, or else for its data.
    Damage is not stepped over: that is an operator's word, given to the log's own broker. Raises
    AddressError."""
    shown = parse_address(wal.address)
    address = shown.with_hidden_of(settings.wal if settings.wal.scheme == shown.scheme else settings.data)
    kind = kind_of(address)
    if kind.name != wal.kind:
        raise AddressError(f"{wal.address} is no log of the kind {wal.kind}")
    read = kind.read_settings(WalWords(address.options, "prefer", "refuse"))
    return replace(own, address=address, settings=read)
