"""The network in terms of asyncio.Protocol factories: listen and connect. Nothing above sees a socket.

`LoopNet` is the real one, on whatever loop runs. Sockets are made here so that what accepted connections
inherit is set once: no delay, keep-alive, address reuse. A connection that was made here ends when its peer
has not so much as acknowledged anything for `SILENT_S`. An empty host listens on every IPv4 and IPv6
address, in two sockets, so that peers and local addresses never show in IPv6-mapped form. uvloop accepts one
connection of a socket in an iteration of the loop, so that who connects to a busy broker waited for as many
iterations as others connected before: each socket is listened on by ACCEPTED_AT_ONCE servers, with a
descriptor each. `tests/sim/net.py` implements the same in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Final, Protocol

from millrace.runtime.errors import MillraceError, Unavailable

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
_SO_NWRITE = 0x1024  # macOS: what its socket holds of what was written
_SO_MEMINFO = 55  # Linux: memory of a socket, by use
_MEMINFO = struct.Struct("=2I")  # that received bytes lie in, and how much it may be
ACCEPTED_AT_ONCE: Final = 16  # in an iteration: each costs some tenth of a millisecond
SILENT_S: Final = 5.0
PORT_MAX: Final = 65_535
_PROBE_AFTER_S, _PROBE_EVERY_S = 2, 1  # of a connection on which nothing comes
_CLOSED_BY_PEER = (7, 8)  # tcpi_state: TCP_CLOSE, behind a reset, and TCP_CLOSE_WAIT
_TCP_INFO_RECEIVED_SEGMENT = struct.Struct("=20xI")  # tcpi_rcv_mss


def unacknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    """What the system was given for a peer and the peer has not acknowledged; 0 where it does not tell, and
    of a connection that is gone."""
    handle = transport.get_extra_info("socket")
    if handle is not None and sys.platform == "darwin":
        try:
            return int(handle.getsockopt(socket.SOL_SOCKET, _SO_NWRITE))
        except OSError:
            return 0
    return _asked(handle, "TIOCOUTQ")


def unread_bytes(transport: asyncio.BaseTransport) -> int:
    """What the system has from a peer and nobody has read; 0 where it does not tell, and of a connection that
    is gone."""
    return _asked(transport.get_extra_info("socket"), "FIONREAD")


def is_window_closed(transport: asyncio.BaseTransport) -> bool:
    """Whether the system takes no more of a peer's bytes before some that it has are read; False where it
    does not tell.

    That is no matter of `unread_bytes`: a segment of which a part was read keeps all its memory, and a window
    smaller than a segment is not offered (RFC 9293, section 3.8.6.2.2). On loopback, with segments of 64 KiB,
    a peer may be stopped when a few hundred bytes are unread.
    """
    handle = transport.get_extra_info("socket")
    if handle is None or sys.platform != "linux":
        return False
    try:
        used_bytes, limit_bytes = _MEMINFO.unpack(
            handle.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        )
        info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_RECEIVED_SEGMENT.size)
        (segment_bytes,) = _TCP_INFO_RECEIVED_SEGMENT.unpack(info)
    except (OSError, struct.error):
        return False
    return bool(limit_bytes - used_bytes < max(segment_bytes, limit_bytes >> 4))


def is_peer_closed(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has closed, its side or all, of a connection that nobody reads from; False where the
    system does not tell."""
    handle = transport.get_extra_info("socket")
    if handle is None or sys.platform != "linux":
        return False
    try:
        return handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _CLOSED_BY_PEER
    except (OSError, IndexError):
        return False


def reset(transport: asyncio.Transport) -> None:
    """Ends a connection at once, and has the system forget what it holds for the peer: after an `abort` alone
    that stays for as long as a peer that does not read keeps its side open."""
    handle = transport.get_extra_info("socket")
    if handle is not None and handle.fileno() >= 0:
        with contextlib.suppress(OSError):
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _end_when_silent(transport: asyncio.BaseTransport) -> None:
    """TCP sends again at intervals that double, so that it finds out as long after a cut that the network is
    whole again as the cut was; meanwhile a new connection would be made at once. Where the system knows no
    bound, keep-alive alone is set."""
    handle = transport.get_extra_info("socket")
    if handle is None or handle.fileno() < 0:
        return
    with contextlib.suppress(OSError):
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", _PROBE_AFTER_S),
            ("TCP_KEEPINTVL", _PROBE_EVERY_S),
            ("TCP_USER_TIMEOUT", int(SILENT_S * 1000)),
        ):
            if (option := getattr(socket, name, None)) is not None:
                handle.setsockopt(socket.IPPROTO_TCP, option, value)


def _asked(handle: socket.socket | None, name: str) -> int:
    if handle is None or handle.fileno() < 0:
        return 0
    try:
        import fcntl
        import termios

        (count,) = struct.unpack("i", fcntl.ioctl(handle.fileno(), getattr(termios, name), bytes(4)))
    except (ImportError, AttributeError, OSError):
        return 0
    return int(count)


class ListenFailed(MillraceError):
    """The address cannot be listened on. Attributes: host, port, reason (the system's words)."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(host, port, reason)
        self.host = host
        self.port = port
        self.reason = reason


class ConnectFailed(Unavailable):
    """Nobody answers there, now."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(host, port, reason)
        self.host = host
        self.port = port
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.host}:{self.port}: {self.reason}"


class Listener(Protocol):
    """An address that accepts. `host` is as asked for, `port` the real one (the system's choice when 0 was
    asked for)."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Accepts no more; connections that were accepted stay."""
        ...


class Bound(Protocol):
    """An address that nobody else listens on, as yet without anybody who accepts: who connects is refused."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    async def listen(self, factory: ProtocolFactory, *, backlog: int = 100) -> Listener:
        """Accepts from the moment it returns; once. Raises ListenFailed where another process was faster."""
        ...

    def close(self) -> None:
        """Gives the address up, unless it is listened on."""
        ...


class Net(Protocol):
    async def bind(self, host: str, port: int) -> Bound:
        """`host` "" means every address. Raises ListenFailed."""
        ...

    async def listen(self, factory: ProtocolFactory, host: str, port: int, *, backlog: int = 100) -> Listener:
        """Accepts from the moment it returns. `host` "" means every address. Raises ListenFailed."""
        ...

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Raises ConnectFailed."""
        ...


@dataclass(frozen=True, slots=True)
class LoopListener:
    host: str
    port: int
    servers: tuple[asyncio.AbstractServer, ...]

    def close(self) -> None:
        for server in self.servers:
            server.close()


class LoopBound:
    def __init__(self, host: str, sockets: Sequence[socket.socket]) -> None:
        self.host = host
        self.port = int(sockets[0].getsockname()[1])
        self._sockets = tuple(sockets)

    async def listen(self, factory: ProtocolFactory, *, backlog: int = 100) -> LoopListener:
        """Accepts from the moment it returns. Raises ListenFailed, and closes all sockets then, as it does
        when cancelled."""
        servers: list[asyncio.AbstractServer] = []
        try:
            for bound in self._sockets:
                bound.listen(backlog)  # uvloop keeps it to itself when that fails
                for _ in range(ACCEPTED_AT_ONCE):
                    servers.append(await _server_on(bound.dup(), factory, backlog))
            for server in servers:
                await server.start_serving()
        except BaseException as error:  # also who is cancelled leaves nobody that accepts
            for server in servers:
                server.close()
            self.close()
            if isinstance(error, OSError):
                raise ListenFailed(self.host, self.port, error.strerror or str(error)) from error
            raise
        self.close()
        self._sockets = ()
        return LoopListener(self.host, self.port, tuple(servers))

    def close(self) -> None:
        for bound in self._sockets:
            bound.close()


async def _server_on(
    listening: socket.socket, factory: ProtocolFactory, backlog: int
) -> asyncio.AbstractServer:
    """The socket is its own; closed when there is none."""
    try:
        return await asyncio.get_running_loop().create_server(
            factory, sock=listening, backlog=backlog, start_serving=False
        )
    except BaseException:
        listening.close()
        raise


class LoopNet:
    """The operating system's network, through the running loop.

    A name is looked up once at a time, whoever waits for it. A lookup cannot be taken back: one of a name
    that no server answers for holds one of the loop's few threads for ten seconds and more, and who gives up
    after two and tries again would take them all, so that nobody finds anybody.
    """

    def __init__(self) -> None:
        self._lookups: dict[str, asyncio.Task[list[str]]] = {}

    async def bind(self, host: str, port: int) -> LoopBound:
        return LoopBound(host, await self._bind(host, port))

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, backlog: int = 100
    ) -> LoopListener:
        return await (await self.bind(host, port)).listen(factory, backlog=backlog)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Raises ConnectFailed where nobody answers, or `host` cannot be a name, or `port` none. Of several
        addresses that it has each is tried. Who is cancelled leaves the lookup of the name to others."""
        if not 0 < port <= PORT_MAX:
            raise ConnectFailed(host, port, "this is not the port of a host")
        try:
            addresses = [host] if _is_address(host) else await self._look_up(host)
        except UnicodeError as error:
            raise ConnectFailed(host, port, "this is not the name of a host") from error
        except OSError as error:
            raise ConnectFailed(host, port, error.strerror or str(error)) from error
        failure: OSError | None = None
        for address in addresses:
            try:
                made = await asyncio.get_running_loop().create_connection(factory, address, port)
            except OSError as error:
                failure = error
            else:
                _end_when_silent(made[0])
                return made
        why = "it has no address" if failure is None else failure.strerror or str(failure)
        raise ConnectFailed(host, port, why) from failure

    async def _look_up(self, host: str) -> list[str]:
        """Its addresses. Raises OSError, UnicodeError."""
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = asyncio.create_task(_addresses_of(host), name=f"lookup of {host}")
            lookup.add_done_callback(partial(self._on_looked_up, host))
        return await asyncio.shield(lookup)

    def _on_looked_up(self, host: str, lookup: asyncio.Task[list[str]]) -> None:
        """What it found, or that it failed, is for those who still wait."""
        del self._lookups[host]
        if not lookup.cancelled():
            lookup.exception()

    async def _bind(self, host: str, port: int) -> list[socket.socket]:
        if not host:
            return _bind_everywhere(port)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            return [_bind_one(family, address)]
        except UnicodeError as error:  # what no name of a host can be
            raise ListenFailed(host, port, "this is not the name of a host") from error
        except OSError as error:
            raise ListenFailed(host, port, error.strerror or str(error)) from error


async def _addresses_of(host: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _bind_one(family: int, address: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _bind_everywhere(port: int) -> list[socket.socket]:
    """IPv4 must work; IPv6 joins on the same port where the machine has it."""
    try:
        first = _bind_one(socket.AF_INET, ("0.0.0.0", port))
    except OSError as error:
        raise ListenFailed("", port, error.strerror or str(error)) from error
    try:
        return [first, _bind_one(socket.AF_INET6, ("::", first.getsockname()[1]))]
    except OSError:
        return [first]
