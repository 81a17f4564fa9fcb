"""Whose share of what clients have together an address counts against: an IPv4 address is its own; of IPv6 a
client's site has a /64 at least (RFC 6177, section 2), and each of its addresses costs it nothing. Pure.

Not here: bounds that Kafka's settings name by address (max.connections.per.ip).
"""

from __future__ import annotations

from functools import lru_cache

SITE_BYTES = 8
KNOWN_MAX = 10_000


def network_of(host: str) -> str:
    """Of an address as sockets tell it, also with a zone; of anything else itself."""
    return host if ":" not in host else _network_of(host)


@lru_cache(KNOWN_MAX)
def _network_of(host: str) -> str:
    from ipaddress import IPv6Address

    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return host
    return f"{IPv6Address(address.packed[:SITE_BYTES].ljust(16, bytes(1)))}/{8 * SITE_BYTES}"
