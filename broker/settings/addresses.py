"""Listener addresses: how they are written, and which host and port a client is told. Pure.

A client is told, for the listener it came in by,

    what advertised.listeners says                      where it names the listener
    the address that the client itself connected to     where the listener is bound to every address
    the bound address                                   else

so that a broker with defaults can be reached from another container or machine without any setting. Port 0
resolves to the port that the system chose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, ip_address

from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError

WILDCARDS = ("", "0.0.0.0", "::")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SPOKEN = "PLAINTEXT"  # in this release
# each takes up to two of the process's open files, and is bound before a change is answered
LISTENERS_MAX = 32


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`NAME://host:port`. `host` "" means every address; IPv6 hosts are without brackets."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{join_host_port(self.host, self.port)}"


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int]:
    """`host:port` with the host in brackets when it is IPv6. Raises ValueError."""
    host, colon, port_text = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = str(IPv6Address(host[1:-1]))
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 host is written in brackets")
    if not colon or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT with a port from 0 to 65535")
    return host, int(port_text)


def parse_endpoint(text: str) -> Endpoint:
    """`NAME://host:port`; the name is folded to upper case. Raises ValueError."""
    name, separator, address = text.strip().partition("://")
    if not separator or not name or not text.strip().isprintable():
        raise ValueError(f"{text.strip()!r} is not NAME://HOST:PORT")
    host, port = split_host_port(address)
    if host == "*":
        raise ValueError(f"{text.strip()!r}: every address is written as no host, {name}://:{port}")
    return Endpoint(name.upper(), host, port)


def parse_endpoints(texts: Iterable[str]) -> tuple[Endpoint, ...]:
    """Several; names must differ, and so must ports other than 0 on the same host. Raises ValueError."""
    found: list[Endpoint] = []
    for text in texts:
        if len(found) == LISTENERS_MAX:
            raise ValueError(f"more than {LISTENERS_MAX} listeners are named")
        endpoint = parse_endpoint(text)
        for other in found:
            if other.listener == endpoint.listener:
                raise ValueError(f"listener {endpoint.listener} is named twice")
            if endpoint.port and (other.host, other.port) == (endpoint.host, endpoint.port):
                raise ValueError(f"listeners {other.listener} and {endpoint.listener} have one address")
        found.append(endpoint)
    return tuple(found)


def parse_protocols(text: str) -> dict[str, str]:
    """NAME:PROTOCOL pairs, by commas; both are folded to upper case. Raises ValueError."""
    found = {}
    for pair in filter(None, text.split(",")):
        name, colon, protocol = pair.strip().upper().partition(":")
        if not colon or protocol not in PROTOCOLS:
            raise ValueError(f"holds {pair!r}, which is not NAME:PROTOCOL")
        found[name] = protocol
    return found


def protocol_fault(listener: str, protocols: Mapping[str, str]) -> str | None:
    """Why a listener cannot be served by `protocols`, or None."""
    protocol = protocols.get(listener)
    if protocol is None:
        return f"names {listener}, which listener.security.protocol.map gives no protocol"
    return (
        None if protocol == SPOKEN else f"wants {protocol} for {listener}: this release speaks {SPOKEN} only"
    )


def plain_host(host: str) -> str:
    """An IPv6-mapped IPv4 address as the IPv4 address it is, without a scope; other hosts as they are."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class AdvertisedAddresses:
    """`bound` are the endpoints after listening, with real ports; `advertised` as configured, maybe for some
    listeners only."""

    def __init__(self, bound: Iterable[Endpoint], advertised: Iterable[Endpoint] = ()) -> None:
        self._bound: Mapping[str, Endpoint] = {endpoint.listener: endpoint for endpoint in bound}
        self._advertised: Mapping[str, Endpoint] = {endpoint.listener: endpoint for endpoint in advertised}

    def for_client(self, listener: str, local_host: str) -> tuple[str, int]:
        """Where a client that reached us at `local_host` through `listener` shall come again. KafkaError for
        a listener that is gone meanwhile."""
        bound = self._bound.get(listener)
        if bound is None:
            raise KafkaError(ErrorCode.LISTENER_NOT_FOUND, f"the listener {listener} was removed")
        advertised = self._advertised.get(listener)
        if advertised is not None:
            return advertised.host, advertised.port or bound.port
        host = plain_host(local_host) if bound.host in WILDCARDS else bound.host
        return host, bound.port

    def for_registration(self, host_name: str) -> tuple[Endpoint, ...]:
        """What other nodes are told: as for clients, with this machine's name where only a client could know
        better."""
        return tuple(Endpoint(name, *self.for_client(name, host_name)) for name in self._bound)
