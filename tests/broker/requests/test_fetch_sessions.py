"""KIP-227 sessions: opening, increments, errors, wrap, eviction, and what counts as news."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, pairwise

import pytest

from millrace.broker.purgatory import CompletionQueue, Subscriber, Subscriptions
from millrace.broker.requests.fetch_sessions import (
    EPOCH_MAX,
    ITEMS_PER_CHUNK,
    FetchItem,
    FetchKind,
    FetchPlan,
    FetchSession,
    FetchSessions,
    Key,
)
from millrace.protocol.error_codes import ErrorCode


def new_subscriber() -> Subscriber:
    return Subscriber(CompletionQueue(lambda call: None))


def items(*partitions: int, offset: int = 0, topic: str | bytes = "t") -> dict[Key, FetchItem]:
    return {(topic, partition): FetchItem(topic, partition, offset, 100) for partition in partitions}


def begin(
    sessions: FetchSessions,
    session_id: int,
    epoch: int,
    uses_ids: bool,
    wanted: dict[Key, FetchItem],
    forgotten: Iterable[Key],
    now_ms: int,
) -> FetchPlan:
    """And folded in, all of it."""
    plan = sessions.begin(session_id, epoch, uses_ids, wanted, now_ms)
    sessions.fold(plan, forgotten, wanted.items())
    sessions.end_fold(plan)
    return plan


def made(slots: int = 1000, partitions_max: int = 1_000_000) -> FetchSessions:
    return FetchSessions(count(1).__next__, slots=slots, idle_ms=1000, partitions_max=partitions_max)


def opened(
    sessions: FetchSessions, *partitions: int, now_ms: int = 0, uses_ids: bool = False
) -> FetchSession:
    plan = begin(sessions, 0, 0, uses_ids, items(*partitions), (), now_ms)
    assert plan.kind is FetchKind.FULL
    subscriber = new_subscriber()
    for item in plan.items.values():
        subscriber.add(item)
    session = sessions.open(plan.items, uses_ids, subscriber, now_ms)
    assert session is not None
    return session


def test_a_full_request_opens_a_session_and_increments_follow() -> None:
    """Epochs 1, 2, 3 follow; the session remembers what was not named again, and takes over what was."""
    sessions = made()
    session = opened(sessions, 0, 1, 2)
    for epoch in (1, 2, 3):
        plan = begin(sessions, session.id, epoch, False, items(1, offset=epoch), (), 0)
        assert (plan.kind, plan.session, plan.epoch) == (FetchKind.INCREMENT, session, epoch + 1)
    assert [(item.partition, item.fetch_offset) for item in session.items.values()] == [
        (0, 0),
        (1, 3),
        (2, 0),
    ]


def test_no_session_is_kept_for_who_wants_none() -> None:
    """Epoch -1 gives a sessionless fetch, and ends the session it names."""
    sessions = made()
    assert begin(sessions, 0, -1, False, items(0), (), 0).kind is FetchKind.SESSIONLESS
    session = opened(sessions, 0)
    assert begin(sessions, session.id, -1, False, items(0), (), 0).kind is FetchKind.SESSIONLESS
    assert len(sessions) == 0
    assert sessions.partitions_count == 0


def test_a_full_request_replaces_the_session_it_names() -> None:
    """Epoch 0 with an id ends that session; the old id is unknown from then on."""
    sessions = made()
    session = opened(sessions, 0)
    assert begin(sessions, session.id, 0, False, items(0), (), 0).kind is FetchKind.FULL
    assert begin(sessions, session.id, 1, False, {}, (), 0).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [2, 7, EPOCH_MAX])
def test_a_wrong_epoch_is_refused_and_changes_nothing(epoch: int) -> None:
    """A late or repeated increment gets INVALID_FETCH_SESSION_EPOCH; the session waits for the right one."""
    sessions = made()
    session = opened(sessions, 0, 1)
    plan = begin(sessions, session.id, epoch, False, items(5), [("t", 0)], 0)
    assert plan.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert list(session.items) == [("t", 0), ("t", 1)]
    assert begin(sessions, session.id, 1, False, {}, (), 0).error_code == 0
    assert (
        begin(sessions, session.id, 1, False, {}, (), 0).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    )


def test_names_and_ids_do_not_mix() -> None:
    """An increment by ids in a session by names is refused."""
    sessions = made()
    session = opened(sessions, 0)
    assert (
        begin(sessions, session.id, 1, True, {}, (), 0).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    )


def test_the_epoch_wraps_to_one() -> None:
    """After 2147483647 comes 1, as 0 and -1 mean other things."""
    sessions = made()
    session = opened(sessions, 0)
    session.epoch = EPOCH_MAX
    assert begin(sessions, session.id, EPOCH_MAX, False, {}, (), 0).epoch == 1
    assert begin(sessions, session.id, 1, False, {}, (), 0).epoch == 2


def test_forgotten_partitions_leave_and_an_empty_session_ends() -> None:
    """What is forgotten is watched no longer; when nothing is left the session is gone."""
    sessions = made()
    session = opened(sessions, 0, 1)
    place = Subscriptions()
    gone = session.items["t", 0]
    gone.subscribe(place)
    begin(sessions, session.id, 1, False, {}, [("t", 0), ("t", 9)], 0)
    assert not place
    assert sessions.partitions_count == 1
    plan = begin(sessions, session.id, 2, False, {}, [("t", 1)], 0)
    assert plan.kind is FetchKind.SESSIONLESS
    assert len(sessions) == 0


def test_news_of_a_session_are_looked_at_and_the_rest_is_not() -> None:
    """After everything was seen, only what is asked anew is marked as changed."""
    sessions = made()
    session = opened(sessions, 0, 1, 2)
    for item in session.items.values():
        session.subscriber.mark_clean(item)
    begin(sessions, session.id, 1, False, items(2, 3, offset=5), (), 0)
    assert [
        (item.partition, item.fetch_offset)
        for item in session.subscriber.dirty
        if isinstance(item, FetchItem)
    ] == [
        (2, 5),
        (3, 5),
    ]


def test_without_a_slot_no_session_is_opened() -> None:
    """All slots busy and young: the fetch is answered with session id 0."""
    sessions = made(slots=2)
    opened(sessions, 0)
    opened(sessions, 0)
    assert sessions.open(items(0, 1), False, new_subscriber(), 0) is None
    assert len(sessions) == 2


def test_an_idle_session_gives_its_place() -> None:
    """The least recently used one goes once it was idle long enough; one that was used does not."""
    sessions = made(slots=2)
    idle, used = opened(sessions, 0), opened(sessions, 1)
    begin(sessions, used.id, 1, False, {}, (), 1000)
    opened(sessions, 2, now_ms=1001)
    assert begin(sessions, idle.id, 1, False, {}, (), 1001).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert begin(sessions, used.id, 2, False, {}, (), 1001).error_code == 0
    assert sessions.evictions_count == 1


def test_a_larger_session_takes_the_place_of_a_smaller_old_one() -> None:
    """Of old sessions in use the smallest goes, and only for a larger one."""
    sessions = made(slots=2)
    small, large = opened(sessions, 0), opened(sessions, 0, 1, 2)
    for session in (small, large):
        begin(sessions, session.id, 1, False, {}, (), 1001)
    assert sessions.open(items(0), False, new_subscriber(), 1001) is None
    assert sessions.open(items(0, 1), False, new_subscriber(), 1001) is not None
    assert (
        begin(sessions, small.id, 2, False, {}, (), 1001).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert begin(sessions, large.id, 2, False, {}, (), 1001).error_code == 0


def test_what_all_sessions_remember_is_bounded() -> None:
    """Above the bound of partitions neither a new session nor a growing one is kept."""
    sessions = made(partitions_max=3)
    session = opened(sessions, 0, 1)
    assert sessions.open(items(0, 1), False, new_subscriber(), 0) is None
    plan = begin(sessions, session.id, 1, False, items(0, 1, 2, 3, 4, 5), (), 0)
    assert plan.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.partitions_count == 0


def test_what_a_session_knows_makes_no_room_for_more() -> None:
    """At the bound it may name again what it knows, and nothing new, however much it knows."""
    sessions = made(partitions_max=4)
    session = opened(sessions, 0, 1, 2)
    assert begin(sessions, session.id, 1, False, items(0, 1, 2, 3), (), 0).error_code == 0
    assert sessions.partitions_count == 4
    plan = begin(sessions, session.id, 2, False, items(4, 5, 6, 7), (), 0)
    assert plan.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.partitions_count == 0


def test_an_eviction_answers_the_fetch_that_was_parked() -> None:
    """A session that goes leaves no fetch waiting and no subscription standing."""
    calls: list[object] = []
    sessions = made()
    subscriber = Subscriber(CompletionQueue(calls.append))
    wanted = items(0)
    subscriber.add(wanted["t", 0])
    place = Subscriptions()
    wanted["t", 0].subscribe(place)
    assert sessions.open(wanted, False, subscriber, 0) is not None
    subscriber.delay(1, lambda: None)
    sessions.clear()
    assert len(calls) == 1
    assert not place


def test_what_a_large_session_leaves_goes_in_chunks() -> None:
    """It is gone from its slot at once, its partitions are watched for so many steps more; an increment whose
    session ends meanwhile changes nothing more."""
    sessions, place, asked = made(), Subscriptions(), []
    sessions.on_leaving = lambda: asked.append(1)
    session = opened(sessions, *range(10_000))
    for item in session.items.values():
        item.subscribe(place)
    plan = sessions.begin(session.id, 1, False, {}, 0)
    sessions.fold(plan, [("t", index) for index in range(1000)], ())
    assert sessions.partitions_count == len(place) == 9000
    begin(sessions, session.id, -1, False, {}, (), 0)
    assert (len(sessions), sessions.partitions_count, asked) == (0, 0, [1])
    left = [len(place)]
    sessions.fold(plan, [("t", index) for index in range(1000, 2000)], items(20_000).items())
    assert (len(place), sessions.partitions_count) == (left[0], 0)
    while sessions.leave_some():
        left.append(len(place))
    assert len(left) == 9000 // ITEMS_PER_CHUNK - 1
    assert all(before - after == ITEMS_PER_CHUNK for before, after in pairwise(left))
    assert not place


def test_an_increment_holds_news_only() -> None:
    """Records, an error, a moved high watermark or log start are news, once; after an error the next good
    answer is news too."""
    (item,) = items(0).values()
    assert item.is_news(0, 0, 0, False)
    assert not item.is_news(0, 0, 0, False)
    assert item.is_news(0, 5, 0, False)
    assert item.is_news(0, 5, 3, False)
    assert item.is_news(0, 5, 3, True)
    assert item.is_news(6, -1, -1, False)
    assert item.is_news(6, -1, -1, False)
    assert item.is_news(0, 5, 3, False)
    assert not item.is_news(0, 5, 3, False)


def test_what_an_increment_asks_for_and_forgets_is_forgotten() -> None:
    """In Kafka's order: it leaves a session that knew it, and one that did not; a session that has nothing
    left ends, and the request is answered as one without a session."""
    sessions = made()
    session = opened(sessions, 0, 1)
    wanted = items(1, 2)
    plan = begin(sessions, session.id, 1, False, wanted, [("t", 1), ("t", 2)], 0)
    assert (plan.session, list(session.items)) == (session, [("t", 0)])
    assert sessions.partitions_count == 1
    plan = begin(sessions, session.id, 2, False, wanted, [("t", 1), ("t", 2), ("t", 0)], 0)
    assert (plan.kind, plan.session, plan.items) == (FetchKind.SESSIONLESS, None, wanted)
    assert (sessions.partitions_count, len(sessions)) == (0, 0)
    assert all(item.subscriber is None for item in wanted.values())
