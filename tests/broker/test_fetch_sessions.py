"""KIP-227 sessions: opening, increments, errors, wrap, eviction, and what counts as news."""

from __future__ import annotations

from itertools import count

import pytest

from millrace.broker.fetch_sessions import EPOCH_MAX, FetchItem, FetchKind, FetchSession, FetchSessions
from millrace.broker.waiters import WakeLine, Watcher, Watches
from millrace.protocol.error_codes import ErrorCode


def watcher() -> Watcher:
    return Watcher(WakeLine(lambda call: None))


def items(*partitions: int, offset: int = 0, topic: str | bytes = "t") -> list[FetchItem]:
    return [FetchItem(topic, partition, offset, 100) for partition in partitions]


def made(slots: int = 1000, partitions_max: int = 1_000_000) -> FetchSessions:
    return FetchSessions(count(1).__next__, slots=slots, idle_ms=1000, partitions_max=partitions_max)


def opened(sessions: FetchSessions, *partitions: int, now_ms: int = 0, uses_ids: bool = False) -> FetchSession:
    plan = sessions.begin(0, 0, uses_ids, items(*partitions), (), now_ms)
    assert plan.kind is FetchKind.FULL
    watching = watcher()
    for item in plan.items:
        watching.add(item)
    session = sessions.open(plan.items, uses_ids, watching, now_ms)
    assert session is not None
    return session


def test_a_full_request_opens_a_session_and_increments_follow() -> None:
    """Epochs 1, 2, 3 follow; the session remembers what was not named again, and takes over what was."""
    sessions = made()
    session = opened(sessions, 0, 1, 2)
    for epoch in (1, 2, 3):
        plan = sessions.begin(session.id, epoch, False, items(1, offset=epoch), (), 0)
        assert (plan.kind, plan.session, plan.epoch) == (FetchKind.INCREMENT, session, epoch + 1)
    assert [(item.partition, item.fetch_offset) for item in session.items.values()] == [(0, 0), (1, 3), (2, 0)]


def test_no_session_is_kept_for_who_wants_none() -> None:
    """Epoch -1 gives a sessionless fetch, and ends the session it names."""
    sessions = made()
    assert sessions.begin(0, -1, False, items(0), (), 0).kind is FetchKind.SESSIONLESS
    session = opened(sessions, 0)
    assert sessions.begin(session.id, -1, False, items(0), (), 0).kind is FetchKind.SESSIONLESS
    assert len(sessions) == 0
    assert sessions.partitions_count == 0


def test_a_full_request_replaces_the_session_it_names() -> None:
    """Epoch 0 with an id ends that session; the old id is unknown from then on."""
    sessions = made()
    session = opened(sessions, 0)
    assert sessions.begin(session.id, 0, False, items(0), (), 0).kind is FetchKind.FULL
    assert sessions.begin(session.id, 1, False, [], (), 0).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [2, 7, EPOCH_MAX])
def test_a_wrong_epoch_is_refused_and_changes_nothing(epoch: int) -> None:
    """A late or repeated increment gets INVALID_FETCH_SESSION_EPOCH; the session waits for the right one."""
    sessions = made()
    session = opened(sessions, 0, 1)
    plan = sessions.begin(session.id, epoch, False, items(5), [("t", 0)], 0)
    assert plan.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert list(session.items) == [("t", 0), ("t", 1)]
    assert sessions.begin(session.id, 1, False, [], (), 0).error_code == 0
    assert sessions.begin(session.id, 1, False, [], (), 0).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_names_and_ids_do_not_mix() -> None:
    """An increment by ids in a session by names is refused."""
    sessions = made()
    session = opened(sessions, 0)
    assert sessions.begin(session.id, 1, True, [], (), 0).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_epoch_wraps_to_one() -> None:
    """After 2147483647 comes 1, as 0 and -1 mean other things."""
    sessions = made()
    session = opened(sessions, 0)
    session.epoch = EPOCH_MAX
    assert sessions.begin(session.id, EPOCH_MAX, False, [], (), 0).epoch == 1
    assert sessions.begin(session.id, 1, False, [], (), 0).epoch == 2


def test_forgotten_partitions_leave_and_an_empty_session_ends() -> None:
    """What is forgotten is watched no longer; when nothing is left the session is gone."""
    sessions = made()
    session = opened(sessions, 0, 1)
    place = Watches()
    gone = session.items["t", 0]
    gone.stand_at(place)
    sessions.begin(session.id, 1, False, [], [("t", 0), ("t", 9)], 0)
    assert not place
    assert sessions.partitions_count == 1
    plan = sessions.begin(session.id, 2, False, [], [("t", 1)], 0)
    assert plan.kind is FetchKind.SESSIONLESS
    assert len(sessions) == 0


def test_news_of_a_session_are_looked_at_and_the_rest_is_not() -> None:
    """After everything was seen, only what is asked anew is marked as changed."""
    sessions = made()
    session = opened(sessions, 0, 1, 2)
    for item in session.items.values():
        session.watcher.settle(item)
    sessions.begin(session.id, 1, False, items(2, 3, offset=5), (), 0)
    assert [(item.partition, item.fetch_offset) for item in session.watcher.changed if isinstance(item, FetchItem)] == [
        (2, 5),
        (3, 5),
    ]


def test_without_a_slot_no_session_is_opened() -> None:
    """All slots busy and young: the fetch is answered with session id 0."""
    sessions = made(slots=2)
    opened(sessions, 0)
    opened(sessions, 0)
    assert sessions.open(items(0, 1), False, watcher(), 0) is None
    assert len(sessions) == 2


def test_an_idle_session_gives_its_place() -> None:
    """The least recently used one goes once it was idle long enough; one that was used does not."""
    sessions = made(slots=2)
    idle, used = opened(sessions, 0), opened(sessions, 1)
    sessions.begin(used.id, 1, False, [], (), 1000)
    opened(sessions, 2, now_ms=1001)
    assert sessions.begin(idle.id, 1, False, [], (), 1001).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.begin(used.id, 2, False, [], (), 1001).error_code == 0
    assert sessions.evictions_count == 1


def test_a_larger_session_takes_the_place_of_a_smaller_old_one() -> None:
    """Of old sessions in use the smallest goes, and only for a larger one."""
    sessions = made(slots=2)
    small, large = opened(sessions, 0), opened(sessions, 0, 1, 2)
    for session in (small, large):
        sessions.begin(session.id, 1, False, [], (), 1001)
    assert sessions.open(items(0), False, watcher(), 1001) is None
    assert sessions.open(items(0, 1), False, watcher(), 1001) is not None
    assert sessions.begin(small.id, 2, False, [], (), 1001).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.begin(large.id, 2, False, [], (), 1001).error_code == 0


def test_what_all_sessions_remember_is_bounded() -> None:
    """Above the bound of partitions neither a new session nor a growing one is kept."""
    sessions = made(partitions_max=3)
    session = opened(sessions, 0, 1)
    assert sessions.open(items(0, 1), False, watcher(), 0) is None
    plan = sessions.begin(session.id, 1, False, items(0, 1, 2, 3, 4, 5), (), 0)
    assert plan.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.partitions_count == 0


def test_an_eviction_answers_the_fetch_that_was_parked() -> None:
    """A session that goes leaves no fetch waiting and no watch standing."""
    calls: list[object] = []
    sessions = made()
    watching = Watcher(WakeLine(calls.append))
    wanted = items(0)
    watching.add(wanted[0])
    place = Watches()
    wanted[0].stand_at(place)
    assert sessions.open(wanted, False, watching, 0) is not None
    watching.park(1, lambda: None)
    sessions.clear()
    assert len(calls) == 1
    assert not place


def test_a_partition_named_twice_is_one_item() -> None:
    """The last mention counts, and no watch of the first is left behind."""
    sessions, watching = made(), watcher()
    wanted = items(0, 0)
    for item in wanted:
        watching.add(item)
    session = sessions.open(wanted, False, watching, 0)
    assert session is not None
    assert list(session.items.values()) == wanted[1:]
    assert sessions.partitions_count == 1
    assert list(watching.changed) == wanted[1:]


def test_an_increment_holds_news_only() -> None:
    """Records, an error, a moved high watermark or log start are news, once; after an error the next good answer is news too."""
    (item,) = items(0)
    assert item.is_news(0, 0, 0, False)
    assert not item.is_news(0, 0, 0, False)
    assert item.is_news(0, 5, 0, False)
    assert item.is_news(0, 5, 3, False)
    assert item.is_news(0, 5, 3, True)
    assert item.is_news(6, -1, -1, False)
    assert item.is_news(6, -1, -1, False)
    assert item.is_news(0, 5, 3, False)
    assert not item.is_news(0, 5, 3, False)
