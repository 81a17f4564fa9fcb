"""Limits of connections that are changed while the broker runs."""

from __future__ import annotations

import pytest

from millrace.broker.connection_limits import ConnectionLimits, DynamicLimits, parse_hosts
from millrace.kraft.sorted_map import SortedMap
from millrace.kraft.tables.configs import NO_CONFIGS, Configs, ResourceType

STARTED = ConnectionLimits(total_max=100, files_max=500, per_address_max=10, per_host={"a": 3})


def configs(**of_broker: dict[str, str]) -> Configs:
    """`every` and `mine`: what is set for all brokers and for node 1."""
    rows = {(int(ResourceType.BROKER), {"every": "", "mine": "1"}[who]): values for who, values in of_broker.items()}
    return Configs(SortedMap.of(rows))


def limits(found: Configs) -> ConnectionLimits:
    return DynamicLimits(STARTED, lambda: found, 1).now()


def test_what_is_set_dynamically_counts_first() -> None:
    """This broker's before that of all brokers, each key by itself; what is not set is as at the start."""
    assert limits(NO_CONFIGS) == STARTED
    found = limits(
        configs(every={"max.connections": "7", "max.connections.per.ip": "5"}, mine={"max.connections": "8"})
    )
    assert (found.total_max, found.per_address_max, found.of_address("a"), found.of_address("b")) == (8, 5, 3, 5)
    found = limits(configs(mine={"max.connections.per.ip.overrides": "b:1, ::1:2"}))
    assert [found.of_address(host) for host in ("a", "b", "::1")] == [10, 1, 2]
    assert limits(configs(mine={"max.connections.per.ip.overrides": ""})).per_host == {}


def test_no_more_than_there_are_open_files() -> None:
    """A limit that the process could not hold is cut, as the one at the start is."""
    assert limits(configs(mine={"max.connections": "2147483647"})).total_max == 500


def test_a_change_holds_at_once_and_is_taken_back() -> None:
    """The limits follow the image, and are made anew only when it says something else."""
    image = [configs(mine={"max.connections": "2"})]
    dynamic = DynamicLimits(STARTED, lambda: image[0], 1)
    assert dynamic.now().total_max == 2
    assert dynamic.now() is dynamic.now()
    image[0] = NO_CONFIGS
    assert dynamic.now() == STARTED


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:-1", "a:x", "a:1,b"])
def test_what_is_no_pair_is_refused(text: str) -> None:
    """HOST:COUNT, by commas."""
    with pytest.raises(ValueError, match="is not HOST:COUNT"):
        parse_hosts(text)
