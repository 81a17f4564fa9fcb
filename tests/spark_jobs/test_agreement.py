"""From where Spark goes on when the topics are others than they were."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millrace.spark_jobs.agreement import Agreement, Policies, TopicState, agree_on_topics, check_ids
from millrace.spark_jobs.binding import Binding, BoundTopic, Change, Offsets, ParkedTopic
from millrace.spark_jobs.refusal import Refused

BOUND = Binding("i", "k", "/c", "/t", {"a": BoundTopic("A", 0), "b": BoundTopic("B", 2)})
BASE: Offsets = {"a": {0: 10, 1: 20}, "b": {0: 5}}
A, B = TopicState("A", {0: 0, 1: 0}, {0: 10, 1: 99}), TopicState("B", {0: 5}, {0: 5})
LENIENT = Policies("restart", "skip")


def agree(
    wanted: Mapping[str, TopicState],
    binding: Binding | None = BOUND,
    base: Offsets | None = BASE,
    gone: tuple[str, ...] = (),
    policies: Policies = Policies(),  # noqa: B008 - a value
) -> Agreement:
    return agree_on_topics(binding, base, 7, wanted, frozenset(gone), policies)


def test_nothing_changes() -> None:
    """Spark goes on by itself, and what is bound stays."""
    found = agree({"a": A, "b": B})
    assert (found.change, found.topics, found.notes) == (None, BOUND.topics, [])


@pytest.mark.parametrize("binding", [None, BOUND])
def test_before_the_first_batch(binding: Binding | None) -> None:
    """What is there is bound, whatever a start that was killed had bound."""
    found = agree({"c": TopicState("C", {0: 3}, {0: 3})}, binding, base=None)
    assert (found.change, found.topics, found.parked) == (None, {"c": BoundTopic("C", 0)}, {})


def test_of_a_version_that_bound_no_topics() -> None:
    """They are bound as they are."""
    found = agree({"a": A, "b": B}, binding=None)
    assert (found.change, found.topics) == (None, {"a": BoundTopic("A", 0), "b": BoundTopic("B", 0)})


def test_a_topic_is_taken_out_and_put_in_again() -> None:
    """Its positions are kept meanwhile, so that it is gone on with: nothing is missed and nothing is taken
    twice."""
    out = agree({"a": A})
    assert out.change == Change(7, {"a": BASE["a"]})
    assert out.parked == {"b": ParkedTopic("B", 2, {0: 5})}
    binding = Binding("i", "k", "/c", "/t", out.topics, out.parked)
    back = agree({"a": A, "b": B}, binding, {"a": BASE["a"]})
    assert (back.change, back.topics, back.parked) == (Change(7, BASE), BOUND.topics, {})


def test_a_topic_is_added() -> None:
    """From its log's start, also where that is not 0, which Spark would take for a loss."""
    found = agree({"a": A, "b": B, "c": TopicState("C", {0: 3}, {0: 9})})
    assert found.change == Change(7, {**BASE, "c": {0: 3}})
    assert found.topics["c"] == BoundTopic("C", 7)


def test_a_topic_that_was_created_anew() -> None:
    """Its old positions mean nothing: refused, or taken from its start from this batch on."""
    other = TopicState("A2", {0: 0, 1: 1}, {0: 99, 1: 99})
    with pytest.raises(Refused, match=r"a was deleted and created anew after offsets 0:10, 1:20"):
        agree({"a": other, "b": B})
    found = agree({"a": other, "b": B}, policies=Policies(on_recreated_topic="restart"))
    assert found.change == Change(7, {"a": {0: 0, 1: 1}, "b": {0: 5}})
    assert found.topics["a"] == BoundTopic("A2", 7)


def test_a_topic_that_was_created_anew_while_it_was_out() -> None:
    """Is found by the id that was kept."""
    binding = Binding("i", "k", "/c", "/t", {"a": BoundTopic("A", 0)}, {"b": ParkedTopic("B", 0, {0: 5})})
    base = {"a": BASE["a"]}
    with pytest.raises(Refused, match="b was deleted and created anew"):
        agree({"a": A, "b": TopicState("B2", {0: 0}, {0: 5})}, binding, base)


def test_a_topic_of_a_pattern_is_gone() -> None:
    """Refused, or forgotten: its name begins anew."""
    with pytest.raises(Refused, match="b is gone from the brokers"):
        agree({"a": A}, gone=("b",))
    found = agree({"a": A}, gone=("b",), policies=LENIENT)
    assert (found.change, found.parked) == (Change(7, {"a": BASE["a"]}), {})


@pytest.mark.parametrize(
    ("state", "said", "moved"),
    [
        (TopicState("A", {0: 12, 1: 0}, {0: 30, 1: 30}), "a-0: retention or a deletion removed 10 to 11",
        {0: 12, 1: 20}),
        (TopicState("A", {0: 0, 1: 0}, {0: 10, 1: 15}), "a-1 ends at 15, and 19 was read", {0: 10, 1: 15}),
        (TopicState("A", {0: 0, 1: 0, 2: 4}, {0: 10, 1: 20, 2: 4}), "a-2: retention or a deletion removed 0 "
                                                                    "to 3", {0: 10, 1: 20, 2: 4}),
    ],
)  # fmt: skip
def test_records_that_nobody_can_read(state: TopicState, said: str, moved: dict[int, int]) -> None:
    """Removed before they were read, or lost behind it: refused with the offsets, or stepped over."""
    with pytest.raises(Refused, match=said) as refused:
        agree({"a": state, "b": B})
    assert 'on_lost_records = "skip"' in str(refused.value)
    assert agree({"a": state, "b": B}, policies=Policies(on_lost_records="skip")).change == Change(
        7, {"a": moved, "b": {0: 5}}
    )


def test_a_partition_that_is_new() -> None:
    """Is Spark's to find, where nothing of it was removed."""
    assert agree({"a": TopicState("A", {0: 0, 1: 0, 2: 0}, {0: 10, 1: 20, 2: 4}), "b": B}).change is None


def test_every_topic_that_is_refused_is_named() -> None:
    """A line each."""
    with pytest.raises(Refused) as refused:
        agree({"a": TopicState("A2", {}, {}), "b": TopicState("B", {0: 6}, {0: 6})})
    assert [line[0] for line in str(refused.value).splitlines()] == ["a", "b"]


def test_around_a_batch() -> None:
    """Deleted, or another: refused; one that is new is none's loss."""
    check_ids(BOUND.topics, {"a": "A", "b": "B", "c": "C"})
    with pytest.raises(Refused, match="b was deleted while"):
        check_ids(BOUND.topics, {"a": "A"})
    with pytest.raises(Refused, match="a was deleted and created anew while"):
        check_ids(BOUND.topics, {"a": "A2", "b": "B"})
