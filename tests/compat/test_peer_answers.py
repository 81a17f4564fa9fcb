"""How answers of two brokers are compared; the brokers themselves are compared by `make compare`."""

from __future__ import annotations

from millrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from tests.compat.peer.answers import Answers, compare_answers, named
from tests.compat.peer.intended import INTENDED, Intended


def said(*topics: tuple[int, str], port: int = 1, cluster: str = "c") -> Answers:
    """What a broker says, with its own port and id by their names."""
    found = [MetadataResponseTopic(code, name) for code, name in topics]
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(1, "h", port)], cluster_id=cluster, topics=found
    )
    return {("q", 3): named(response, {port: "its port", cluster: "its id"})}


def differing(ours: Answers, kafkas: Answers, *intended: Intended) -> list[tuple[str, object, object, str]]:
    return [(one.path, one.ours, one.kafkas, one.why) for one in compare_answers(ours, kafkas, intended)]


def test_what_is_a_node_s_own_is_no_difference() -> None:
    """A port and an id that differ stand for the same; a number elsewhere is no port."""
    assert differing(said((0, "a"), port=1, cluster="x"), said((0, "a"), port=2, cluster="y")) == []
    assert named([1, b"i", memoryview(b"i")], {1: "port", b"i": "id"}) == [1, "id", "id"]


def test_a_difference_is_one_value() -> None:
    """A value, an element that is missing, one too many, and the order: each by itself, where it stands."""
    assert differing(said((3, "a"), (0, "b")), said((0, "a"), (0, "b"))) == [
        (".topics[a].error_code", 3, 0, "")
    ]
    (missing,) = differing(said((0, "b")), said((0, "a"), (0, "b")))
    assert (missing[0], missing[1]) == (".topics[a]", "nothing")
    (extra,) = differing(said((0, "a"), (0, "b")), said((0, "b")))
    assert (extra[0], extra[2]) == (".topics[a]", "nothing")
    assert differing(said((0, "b"), (0, "a")), said((0, "a"), (0, "b"))) == [
        (".topics, in order", ["b", "a"], ["a", "b"], "")
    ]


def test_elements_of_one_name_are_compared_by_place() -> None:
    """Else one would hide the other."""
    assert differing(said((0, "a"), (3, "a")), said((0, "a"), (0, "a"))) == [
        (".topics[1].error_code", 3, 0, "")
    ]


def test_an_answer_that_is_missing_is_a_difference() -> None:
    """Of a question or a version that only one was asked."""
    assert [one[1] for one in differing({}, said((0, "a")))] == ["nothing"]


def test_what_is_intended_has_its_reason_and_nothing_else() -> None:
    """By question, place and both values, each whole."""
    ours, kafkas = said((3, "a")), said((0, "a"))
    place = r"\.topics\[a\]\.error_code"
    assert [one[3] for one in differing(ours, kafkas, Intended("why", "q", place, "3", "0"))] == ["why"]
    for other in (
        ("p", place),
        ("q", place, "4"),
        ("q", place, "3", "1"),
        ("q", r"\.topics\[a\]"),
        ("q", "error_code"),
    ):
        whys = [one[3] for one in differing(ours, kafkas, Intended("why", *other))]
        assert whys == ["", ""], other  # unexplained, and a reason that nothing needs


def test_a_reason_that_nothing_needs_is_told() -> None:
    """Unless what it is for differs now and then."""
    same = said((0, "a"))
    (stale,) = differing(same, same, Intended("why", "q", "place"))
    assert (stale[0], stale[3]) == ("place", "")
    assert differing(same, same, Intended("why", "q", "place", is_fickle=True)) == []


def test_no_reason_is_given_twice() -> None:
    """Of two that fit, the second would never be used."""
    assert len({one[1:] for one in INTENDED}) == len(INTENDED)
