"""Which listeners there may be while a broker runs."""

from __future__ import annotations

import pytest

from millrace.broker.settings.addresses import Endpoint
from millrace.broker.settings.checks import ListenerSettings
from millrace.broker.settings.listener_rules import LISTENERS, PROTOCOL_MAP, ListenerRules

A, B, C = Endpoint("A", "h", 1), Endpoint("B", "h", 2), Endpoint("C", "", 3)
MOVED = Endpoint("B", "h", 4)
QUORUM = Endpoint("Q", "h", 9)
TEXTS = {LISTENERS: "A://h:1,B://h:2,Q://h:9", PROTOCOL_MAP: "A:PLAINTEXT,B:PLAINTEXT,Q:PLAINTEXT"}
ALL = "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT,D:SSL"


def rules(*advertised: Endpoint) -> ListenerRules:
    return ListenerRules(ListenerSettings((A, B), (QUORUM,), advertised, None, (QUORUM,)), TEXTS)


def values(listeners: str | None = None, protocols: str | None = None) -> dict[str, str]:
    return {
        key: text for key, text in ((LISTENERS, listeners), (PROTOCOL_MAP, protocols)) if text is not None
    }


def test_what_is_served() -> None:
    """What was started with, until something is set; a controller's listener is none of the broker's."""
    assert rules().served({}) == (A, B)
    assert rules().served(values("A://h:1,B://h:2,C://:3", ALL)) == (A, B, C)
    assert rules(A).served(values("A://h:1")) == (A,)
    assert rules(A).served(values("A://h:1,B://h:4")) == (A, MOVED)


def test_what_clients_are_told_of_is_served_as_the_file_has_it_now() -> None:
    """Also where a value that was set before names another address, or nothing: a start with a changed file
    is no lockout."""
    assert rules(A).served(values("A://h:77,C://:3", ALL)) == (A, C)
    assert rules().served(values("C://:3", ALL)) == (A, B, C)


@pytest.mark.parametrize(
    ("advertised", "after", "why"),
    [
        ((), values("A://h:1"), "leaves out B, which clients are told of"),
        ((A,), values("B://h:2"), "leaves out A, which clients are told of"),
        ((), values("A://h:1,B://h:4"), "moves B, which clients are told of"),
        (
            (),
            values("A://h:1,B://h:2,C://:3"),
            "names C, which listener.security.protocol.map gives no protocol",
        ),
        ((), values("A://h:1,B://h:2,D://h:5", ALL), "wants SSL for D"),
        ((), values(protocols="A:PLAINTEXT,B:SSL"), "changes the protocol of B"),
        ((A,), values("A://h:1,B://h:4", "A:PLAINTEXT"), "gives no protocol"),
        ((A,), values("A://h:1", ""), "gives no protocol to A"),
        ((), values(protocols="A:PLAINTEXT"), "gives no protocol to B"),
        ((), values(""), "is not NAME://HOST:PORT"),
        ((), values("A://h:1,A://h:2"), "listener A is named twice"),
        ((), values("A://h:1,B://h:1"), "listeners A and B have one address"),
    ],
)
def test_what_cannot_be(advertised: tuple[Endpoint, ...], after: dict[str, str], why: str) -> None:
    """Each with a sentence."""
    with pytest.raises(ValueError, match=why):
        rules(*advertised).judge({}, after)


def test_what_can_be() -> None:
    """What was added goes again, moves, or is left alone; what is not advertised goes, too."""
    with_c = values("A://h:1,B://h:2,C://:3", ALL)
    assert rules().judge({}, with_c) == (A, B, C)
    assert rules().judge(with_c, {}) == (A, B)
    assert rules().judge(with_c, values("A://h:1,B://h:2,C://:8", ALL)) == (A, B, Endpoint("C", "", 8))
    assert rules(A).judge({}, values("A://h:1")) == (A,)


def test_a_protocol_of_a_listener_that_is_there_stays() -> None:
    """Before its protocol is looked at."""
    with pytest.raises(ValueError, match="changes the protocol of C"):
        rules().judge(
            values("A://h:1,B://h:2,C://:3", ALL), values("A://h:1,B://h:2,C://:3", "A:PLAINTEXT,C:SSL")
        )
