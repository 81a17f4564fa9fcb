"""Whose share an address counts against."""

from __future__ import annotations

import pytest

from millrace.broker.client_network import network_of
from millrace.broker.requests.request import ConnectionInfo
from millrace.broker.state_memory import StateMemory


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::1", "::1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:0:7:1:2:3:4", "2001:db8:0:7::/64"),
        ("2001:db8:0:7::9", "2001:db8:0:7::/64"),
        ("2001:db8:0:8::9", "2001:db8:0:8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a:b", "a:b"),
        ("", ""),
    ],
)
def test_an_address_of_ipv6_counts_as_its_site(host: str, network: str) -> None:
    assert network_of(host) == network
    assert ConnectionInfo(1, "PLAINTEXT", "", 0, host).owner == (1, network)


def test_states_of_one_site_have_one_holder() -> None:
    """However many addresses it asks from: at the bound it is one that holds most."""
    memory = StateMemory(1000)
    first, second = memory.holder("2001:db8::1"), memory.holder("2001:db8::2")
    assert first is second
    assert memory.holder("2001:db8:0:1::1") is not first
    assert memory.holder("::ffff:10.0.0.1") is memory.holder("10.0.0.1")
