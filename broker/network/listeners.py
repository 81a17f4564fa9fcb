"""The listeners of a running broker: they follow what is set dynamically, and a new one is bound before the
change is accepted.

    prepare      binds what a change asks for and is not there yet, so that it can be refused where an address
                 is taken; but for an address that a listener has which the change closes or moves: that is
                 bound as soon as the change is committed, so that two listeners may swap their addresses
    check        as `prepare`, and gives up again what it bound: of a change that is only validated
    on_image     what is committed holds: what it does not name is closed, what it names and is not bound (a
                 change that was not prepared here, or whose answer came too late) is bound behind it
    settle       the change has its answer: what was prepared and is not wanted goes again

Not here: what may be asked for (listener_rules.py), connections (server.py). Kept true: a listener that
cannot be bound stops neither a start nor the others, unless the properties file names it, and is tried again
with the next change; clients are told of what is bound and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.network.server import BoundEndpoint, Server
from millrace.broker.settings.addresses import AdvertisedAddresses, Endpoint
from millrace.broker.settings.listener_rules import ListenerRules
from millrace.kraft.tables.configs import Values
from millrace.runtime.net import ListenFailed

log = logging.getLogger(__name__)
GRACE_MS = 5_000  # for what the connections of a listener that goes have begun


class Listeners:
    _server: Server  # from `start` on

    def __init__(self, cache: MetadataCache, rules: ListenerRules, advertised: Sequence[Endpoint]) -> None:
        """`advertised`: what the properties file tells clients."""
        self._cache = cache
        self._advertised = advertised
        self.rules = rules
        self._prepared: tuple[Endpoint, ...] = ()
        self._seen: Values = {}
        self._wanted = rules.started
        self._missing = asyncio.Event()
        self._binding = asyncio.Lock()  # around each look at what is bound and the binding of what is not

    async def start(self, server: Server, places: Sequence[BoundEndpoint]) -> Sequence[Endpoint]:
        """Listens on what is wanted; gives it with its real ports. `places`: the lasting ones, which are
        bound. Raises ListenFailed for what the properties file names."""
        self._server = server
        self._look()
        await server.start(places)
        for endpoint in self._wanted:
            if endpoint in self.rules.started and endpoint not in server.bound:
                await server.open(endpoint)
        await self._bind_missing()
        self._follow()
        return tuple(self._server.bound.values())

    async def run(self) -> None:
        """Until cancelled, which loses nothing: binds what a committed change asks for and nobody
        prepared."""
        while True:
            await self._missing.wait()
            self._missing.clear()
            await self._bind_missing()
            self._follow()

    async def prepare(self, endpoints: Sequence[Endpoint]) -> None:
        """On return all of them are bound. Raises ListenFailed. `settle` has to follow, whatever becomes of
        it."""
        async with self._binding:
            leaving = self._leaving_ports(endpoints)
            self._prepared = tuple(endpoint for endpoint in endpoints if endpoint not in self._server.bound)
            for endpoint in self._prepared:
                try:
                    await self._server.open(endpoint)
                except ListenFailed:
                    if endpoint.port not in leaving:
                        raise

    async def check(self, endpoints: Sequence[Endpoint]) -> None:
        """Raises ListenFailed where `prepare` would, by now; on return nothing is bound that was not."""
        async with self._binding:
            leaving = self._leaving_ports(endpoints)
            for endpoint in endpoints:
                if endpoint in self._server.bound:
                    continue
                try:
                    await self._server.check_free(endpoint)
                except ListenFailed:
                    if endpoint.port not in leaving:
                        raise

    def _leaving_ports(self, endpoints: Sequence[Endpoint]) -> frozenset[int]:
        """Of listeners that are bound and are not among these: free once the change is committed."""
        bound = self._server.bound
        return frozenset(real.port for asked, real in bound.items() if asked not in endpoints)

    def settle(self) -> None:
        self._prepared = ()
        self._follow()
        self._missing.set()

    def on_image(self) -> None:
        if self._cache.broker_values.now() is not self._seen:
            self._look()
            self._follow()
            self._missing.set()

    def _look(self) -> None:
        self._seen = self._cache.broker_values.now()
        try:
            self._wanted = self.rules.served(self._seen)
        except ValueError as error:
            log.error(
                "listeners: what is set dynamically cannot be served: it %s; set it anew, or delete it", error
            )

    def _follow(self) -> None:
        bound = self._server.bound
        for endpoint in bound:
            if endpoint not in self._wanted and endpoint not in self._prepared:
                self._server.close(endpoint, GRACE_MS)
                log.info("listener %s is closed", bound[endpoint])
        self._tell()

    async def _bind_missing(self) -> None:
        async with self._binding:
            for endpoint in self._wanted:
                if endpoint in self._server.bound:
                    continue
                try:
                    await self._server.open(endpoint)
                except ListenFailed as error:
                    reason = f"{error.reason}; free the address, or set listeners anew"
                    log.error("listener %s is not served: %s", endpoint, reason)

    def _tell(self) -> None:
        wanted = [real for asked, real in self._server.bound.items() if asked in self._wanted]
        told = [
            endpoint
            for endpoint in self._advertised
            if endpoint.listener in {real.listener for real in wanted}
        ]
        self._cache.addresses = AdvertisedAddresses(wanted, told)
