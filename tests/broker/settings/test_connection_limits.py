"""Limits of connections that are changed while the broker runs."""

from __future__ import annotations

import pytest

from millrace.broker.settings.connection_limits import ConnectionLimits, DynamicLimits, parse_hosts
from millrace.broker.settings.dynamic_values import BrokerValues
from millrace.kraft.tables.configs import NO_CONFIGS, Configs, ResourceType
from millrace.kraft.tables.sorted_map import SortedMap

STARTED = ConnectionLimits(total_max=100, files_max=500, per_address_max=10, per_host={"10.0.0.1": 3})


def configs(**of_broker: dict[str, str]) -> Configs:
    """`every` and `mine`: what is set for all brokers and for node 1."""
    rows = {
        (int(ResourceType.BROKER), {"every": "", "mine": "1"}[who]): values
        for who, values in of_broker.items()
    }
    return Configs(SortedMap.of(rows))


def limits(found: Configs) -> ConnectionLimits:
    return DynamicLimits(STARTED, BrokerValues(lambda: found, 1)).now()


def test_what_is_set_dynamically_counts_first() -> None:
    """This broker's before that of all brokers, each key by itself; what is not set is as at the start."""
    assert limits(NO_CONFIGS) == STARTED
    found = limits(
        configs(every={"max.connections": "7", "max.connections.per.ip": "5"}, mine={"max.connections": "8"})
    )
    assert (found.total_max, found.per_address_max, found.of_address("10.0.0.1"), found.of_address("b")) == (
        8,
        5,
        3,
        5,
    )
    found = limits(configs(mine={"max.connections.per.ip.overrides": "10.0.0.2:1, ::1:2"}))
    assert [found.of_address(host) for host in ("10.0.0.1", "10.0.0.2", "::1")] == [10, 1, 2]
    assert limits(configs(mine={"max.connections.per.ip.overrides": ""})).per_host == {}


def test_no_more_than_there_are_open_files() -> None:
    """A limit that the process could not hold is cut, as the one at the start is."""
    assert limits(configs(mine={"max.connections": "2147483647"})).total_max == 500


def test_what_another_release_stored_lets_clients_in(caplog: pytest.LogCaptureFixture) -> None:
    """Values that are refused now: told with the remedy, not followed, and the others are."""
    found = limits(
        configs(
            every={"max.connections": "0", "max.connections.per.ip": "7"},
            mine={"max.connections.per.ip.overrides": "localhost:5"},
        )
    )
    assert found == ConnectionLimits(
        total_max=100, files_max=500, per_address_max=7, per_host={"10.0.0.1": 3}
    )
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(": it ")[0] for text in told] == [
        "max.connections: what is set dynamically cannot be followed",
        "max.connections.per.ip.overrides: what is set dynamically cannot be followed",
    ]
    assert all(text.endswith("; set it anew, or delete it") for text in told)


def test_a_change_holds_at_once_and_is_taken_back() -> None:
    """The limits follow the image, and are made anew only when it says something else."""
    image = [configs(mine={"max.connections": "2"})]
    dynamic = DynamicLimits(STARTED, BrokerValues(lambda: image[0], 1))
    assert dynamic.now().total_max == 2
    assert dynamic.now() is dynamic.now()
    image[0] = NO_CONFIGS
    assert dynamic.now() == STARTED


@pytest.mark.parametrize("text", ["::1", "a", "a:", ":1", "a:-1", "a:x", "::1:1,b", "::1:\u0663"])
def test_what_is_no_pair_is_refused(text: str) -> None:
    """ADDRESS:COUNT, by commas."""
    with pytest.raises(ValueError, match=r"is not ADDRESS:COUNT|is no IP address"):
        parse_hosts(text)


def test_an_exception_is_written_as_its_connections_are() -> None:
    """Else it would be shown and not obeyed: brackets, long forms and mapped addresses are folded, and a name
    is no address."""
    assert parse_hosts("[::1]:1, 0:0:0:0:0:0:0:2:5,::ffff:10.0.0.7:3") == {"::1": 1, "::2": 5, "10.0.0.7": 3}
    for text, why in (("localhost:5", "names are not looked up"), ("::1:99999999999", "is above 2147483647")):
        with pytest.raises(ValueError, match=why):
            parse_hosts(text)
