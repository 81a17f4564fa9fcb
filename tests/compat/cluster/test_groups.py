"""A group of three of each client while nodes are restarted: one member is killed, its partitions are taken
over, every record is seen."""

from __future__ import annotations

from tests.compat.cluster.conftest import RolledCluster
from tests.compat.member import SESSION_MS
from tests.compat.rolled.roller import PAUSE_S
from tests.compat.takeover import PARTITIONS, tell_all
from tests.compat.test_groups import CLIENTS
from tests.compat.wire import Wire


def test_killed_members_partitions_are_taken_over(broker: RolledCluster) -> None:
    """All clients' groups at once; their coordinators move meanwhile. A coordinator that has just loaded a
    group gives each member a whole session, as Kafka's does: restarts that come faster keep a dead member
    alive."""
    broker.roller.pause_s = 1.5 * SESSION_MS / 1000
    with Wire(broker.address) as wire:
        for client in CLIENTS:
            wire.create(f"group-of-{client}", PARTITIONS)
    before = broker.roller.count
    stories = tell_all(broker.address, {client: f"group-of-{client}" for client in CLIENTS})
    assert broker.roller.count > before, "no node was restarted meanwhile"
    broker.roller.pause_s = PAUSE_S
    took = {client: f"{story.takeover_s:.1f} s" for client, story in stories.items()}
    print(f"{broker.roller.count - before} restarts; partitions were taken over after {took}")
    problems = {client: story.problem for client, story in stories.items() if story.problem}
    assert not problems, problems
    assert all(story.record_count > 100 for story in stories.values())
