"""PeerTable: all connections of this node to others, whatever they are for.

    table = PeerTable(net)
    ways = table.ways("commands", place_of, "node 1")
    connection = await ways.connected(2)
    table.close()                                       at the node's end

What a connection begins with (authentication.py) is said here, once. Not here: when one connects again, and
when a connection ends (ways.py). Kept true: behind `close` no connection to another node is open or made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millrace.kraft.peers.authentication import Authentication, NoAuthentication
from millrace.kraft.peers.connection import NOTHING, PeerConnection
from millrace.kraft.peers.ways import IDLE_S, K, Ways
from millrace.kraft.peers.wire import Place
from millrace.runtime.net import Net


class PeerTable:
    """Of one node. `authentication` is what each connection begins with."""

    def __init__(
        self, net: Net, authentication: Authentication | None = None, idle_s: float = IDLE_S
    ) -> None:
        self._net = net
        self._authentication = authentication or NoAuthentication()
        self._idle_s = idle_s
        self._all: dict[int, Ways[Any]] = {}
        self._number = 0
        self._is_closed = False

    def ways(
        self,
        purpose: str,
        place_of: Callable[[K], Place],
        client_id: str,
        assumed: Mapping[int, tuple[int, int]] = NOTHING,
        on_unreachable: Callable[[K, Place], None] | None = None,
    ) -> Ways[K]:
        """New ones: whoever asks for the same purpose again gets connections of its own. `assumed`: versions
        of APIs that a peer serves and shows nobody. Whoever is done with them closes them; `close` does with
        those that are left."""
        self._number += 1
        number = self._number

        async def open_to(place: Place) -> PeerConnection:
            return await PeerConnection.open(self._net, *place, client_id, assumed, self._authentication)

        def forget() -> None:
            self._all.pop(number, None)

        made = Ways(purpose, place_of, open_to, on_unreachable, forget, self._idle_s)
        if self._is_closed:
            made.close()
        else:
            self._all[number] = made
        return made

    @property
    def open_counts(self) -> dict[str, int]:
        """By purpose."""
        counts: dict[str, int] = {}
        for ways in self._all.values():
            counts[ways.purpose] = counts.get(ways.purpose, 0) + ways.open_count
        return counts

    def close(self) -> None:
        """What is not answered is lost. Idempotent."""
        self._is_closed = True
        for ways in list(self._all.values()):
            ways.close()
