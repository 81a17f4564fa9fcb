"""Whether a checkpoint fits the topics there are, and from where Spark is to go on. Pure.

A topic is its id: one that was deleted and created anew under its name is another, and positions in the old
one mean nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.spark_jobs.binding import Binding, BoundTopic, Change, Offsets, ParkedTopic
from millrace.spark_jobs.refusal import Refused


@dataclass(frozen=True)
class TopicState:
    """As the brokers have it now: of each partition the log's start and its end."""

    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True)
class Policies:
    on_recreated_topic: str = "fail"  # fail | restart
    on_lost_records: str = "fail"  # fail | skip


@dataclass
class Agreement:
    """What is to be bound, and what is said of it. `change` is None where Spark goes on by itself."""

    topics: dict[str, BoundTopic] = field(default_factory=dict)
    parked: dict[str, ParkedTopic] = field(default_factory=dict)
    change: Change | None = None
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    is_batch_lost: bool = False  # the one that was begun: some of its records are no more


def agree_on_topics(
    binding: Binding | None,
    base: Offsets | None,
    batch: int,
    wanted: Mapping[str, TopicState],
    gone: frozenset[str],
    policies: Policies,
    begun: Offsets | None = None,
) -> Agreement:
    """`base`: the positions that Spark's next batch begins at, whose number is `batch`; None before the
    first. `begun`: those that it is to end at, where it was begun. `wanted`: the topics that the
    configuration names and the brokers have; `gone`: those that a pattern took and the brokers no longer
    have. Raises Refused, a line a topic."""
    if base is None:
        return Agreement({topic: BoundTopic(state.topic_id, 0) for topic, state in wanted.items()})
    bound, parked = (binding.topics, binding.parked) if binding else ({}, {})
    made, offsets = Agreement(parked=dict(parked)), Offsets()
    for topic in sorted(base.keys() - wanted.keys()):
        known = bound.get(topic, BoundTopic("", 0))
        if topic not in gone:
            made.parked[topic] = ParkedTopic(known.topic_id, known.from_batch, base[topic])
            made.notes.append(
                f"{topic} is left at {_places(base[topic])}; put in again it goes on from there"
            )
        elif policies.on_recreated_topic == "restart":
            made.notes.append(f"{topic} is gone and forgotten")
        else:
            made.refusals.append(
                f'{topic} is gone from the brokers: on_recreated_topic = "restart" forgets it'
            )
    for topic, state in sorted(wanted.items()):
        held: ParkedTopic | None = made.parked.pop(topic, None)
        if topic in base:
            known = bound.get(topic, BoundTopic("", 0))
            held = ParkedTopic(known.topic_id, known.from_batch, base[topic])
        first = held.from_batch if held else batch
        if held is None:
            made.notes.append(f"{topic} is new: taken from {_places(state.starts)}")
            offsets[topic] = dict(state.starts)
        elif held.topic_id and held.topic_id != state.topic_id:
            offsets[topic], first = _of_another(made, topic, held.offsets, state, batch, policies), batch
        else:
            ends = (begun or {}).get(topic, {}) if topic in base else {}
            offsets[topic] = _of_the_same(made, topic, held.offsets, ends, state, policies)
        made.topics[topic] = BoundTopic(state.topic_id, first)
    if made.refusals:
        raise Refused("\n".join(made.refusals))
    made.change = None if offsets == base and not made.is_batch_lost else Change(batch, offsets)
    return made


def _of_another(
    made: Agreement, topic: str, held: Mapping[int, int], state: TopicState, batch: int, policies: Policies
) -> dict[int, int]:
    if policies.on_recreated_topic == "restart":
        made.notes.append(
            f"{topic} was deleted and created anew: from batch {batch} on its records are the new topic's"
        )
    else:
        made.refusals.append(
            f"{topic} was deleted and created anew after {_places(held)} of it were taken: "
            'on_recreated_topic = "restart" takes the new one from its start, or take it out of topics'
        )
    return dict(state.starts)


def _of_the_same(
    made: Agreement,
    topic: str,
    held: Mapping[int, int],
    begun: Mapping[int, int],
    state: TopicState,
    policies: Policies,
) -> dict[int, int]:
    """Partitions that Spark has not met yet it takes from their start by itself, if that is 0."""
    moved = dict(held)
    for partition, start in state.starts.items():
        position, end = held.get(partition, 0), state.ends[partition]
        last = max(position, begun.get(partition, 0))
        if start <= position and last <= end:
            continue
        made.is_batch_lost = made.is_batch_lost or last > end
        moved[partition] = min(max(position, start), end)
        what = (
            (
                f"{topic}-{partition}: retention or a deletion removed {position} to {start - 1} before they "
                "were read"
            )
            if position < start
            else f"{topic}-{partition} ends at {end}, and {last - 1} was read: the brokers have lost records"
        )
        if policies.on_lost_records == "skip":
            made.notes.append(f"{what}; going on from {moved[partition]}")
        else:
            made.refusals.append(f'{what}: on_lost_records = "skip" goes on from {moved[partition]}')
    return moved


def check_ids(bound: Mapping[str, BoundTopic], found: Mapping[str, str]) -> None:
    """Around each batch: raises Refused where a topic is not the one that the checkpoint is bound to, or is
    gone."""
    for topic, known in sorted(bound.items()):
        if topic not in found:
            raise Refused(f"{topic} was deleted while it was read")
        if found[topic] != known.topic_id:
            raise Refused(f"{topic} was deleted and created anew while it was read")


def _places(positions: Mapping[int, int]) -> str:
    text = ", ".join(f"{partition}:{positions[partition]}" for partition in sorted(positions)[:8])
    return f"offsets {text}{', ...' if len(positions) > 8 else ''}"
