"""Listener addresses: reading them, and which one a client is told."""

from __future__ import annotations

import pytest

from millrace.broker.settings.addresses import (
    LISTENERS_MAX,
    AdvertisedAddresses,
    Endpoint,
    parse_endpoint,
    parse_endpoints,
    plain_host,
    split_host_port,
)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Endpoint("PLAINTEXT", "127.0.0.1", 9092)),
        ("PLAINTEXT://:9092", Endpoint("PLAINTEXT", "", 9092)),
        (" internal://broker-1.local:0 ", Endpoint("INTERNAL", "broker-1.local", 0)),
        ("PLAINTEXT://[::1]:9092", Endpoint("PLAINTEXT", "::1", 9092)),
    ],
)
def test_endpoints_are_read_and_written(text: str, endpoint: Endpoint) -> None:
    """NAME://HOST:PORT in Kafka's forms, and what is written is read again as the same."""
    assert parse_endpoint(text) == endpoint
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:9092",
        "://a:1",
        "A://",
        "A://host",
        "A://host:",
        "A://host:x",
        "A://host:65536",
        "A://::1:9092",
        "A://[zz]:1",
        "A://h:-1",
        "A://h:\uff11",
        "A\nB://h:1",
        "A\x1b[31m://h:1",
        "A://h\x00:1",
        "A://*:1",
    ],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    """Each malformed form is a ValueError."""
    with pytest.raises(ValueError):
        parse_endpoint(text)


def test_listeners_do_not_share_names_or_addresses() -> None:
    """Two listeners of one name or one address are refused; port 0 and other hosts may repeat."""
    for texts in (["A://h:1", "a://h:2"], ["A://h:1", "B://h:1"]):
        with pytest.raises(ValueError):
            parse_endpoints(texts)
    assert len(parse_endpoints(["A://h:0", "B://h:0", "C://h:1", "D://i:1"])) == 4


def test_there_are_only_so_many_listeners() -> None:
    """A change of 1,800 held everybody up for half a minute, and took the open files that are kept back from
    connections."""
    texts = [f"A{number}://:0" for number in range(LISTENERS_MAX + 1)]
    assert len(parse_endpoints(texts[1:])) == LISTENERS_MAX
    with pytest.raises(ValueError, match="more than 32 listeners"):
        parse_endpoints(texts)


def test_host_and_port_apart() -> None:
    """IPv6 hosts need brackets and are folded to their short form."""
    assert split_host_port("[0:0:0:0:0:0:0:1]:80") == ("::1", 80)
    assert split_host_port("localhost:9644") == ("localhost", 9644)


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("fe80::1%eth0", "fe80::1"),
        ("::1", "::1"),
        ("10.0.0.7", "10.0.0.7"),
        ("name", "name"),
    ],
)
def test_mapped_addresses_are_made_plain(host: str, plain: str) -> None:
    """A client never sees an IPv6-mapped IPv4 address or an interface's name."""
    assert plain_host(host) == plain


def test_what_a_client_is_told() -> None:
    """Advertised wins; a wildcard gives the address that the client reached; a bound one gives itself; port 0
    is resolved."""
    bound = [
        Endpoint("EXTERNAL", "", 9092),
        Endpoint("WILD4", "0.0.0.0", 45001),
        Endpoint("WILD6", "::", 45002),
        Endpoint("LOCAL", "127.0.0.1", 45003),
    ]
    advertised = [Endpoint("EXTERNAL", "kafka.example.com", 443)]
    addresses = AdvertisedAddresses(bound, advertised)
    assert addresses.for_client("EXTERNAL", "10.1.1.1") == ("kafka.example.com", 443)
    assert addresses.for_client("WILD4", "10.1.1.1") == ("10.1.1.1", 45001)
    assert addresses.for_client("WILD6", "::ffff:10.1.1.1") == ("10.1.1.1", 45002)
    assert addresses.for_client("LOCAL", "127.0.0.1") == ("127.0.0.1", 45003)


def test_an_advertised_port_0_is_the_bound_one() -> None:
    """Advertising a host alone, with port 0, gives the port that the system chose."""
    addresses = AdvertisedAddresses([Endpoint("A", "", 45001)], [Endpoint("A", "name", 0)])
    assert addresses.for_client("A", "10.1.1.1") == ("name", 45001)


def test_what_other_nodes_are_told() -> None:
    """A registration names this machine where only a client could say which address it reached."""
    addresses = AdvertisedAddresses([Endpoint("A", "", 1), Endpoint("B", "10.0.0.1", 2)], [])
    assert addresses.for_registration("host-7") == (Endpoint("A", "host-7", 1), Endpoint("B", "10.0.0.1", 2))
