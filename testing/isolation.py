"""A test's own topics and groups: what there was before it, and the end of what came with it.

What a test made is gone after it, under whatever name, also where its client is still running: the members of
its groups are removed first. What existed stays: topics, the records in them, groups and their offsets,
whatever the test added to them. What such a client makes again between two tests is not taken for something
that existed before the second one (`Snapshot.without`).
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.protocol.error_codes import ErrorCode
from millrace.testing import operations
from millrace.testing.operations import Call, Conversation, check, message

TRIES_MAX = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    topics: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def without(self, other: Snapshot) -> Snapshot:
        return Snapshot(self.topics - other.topics, self.groups - other.groups)

    def joined_with(self, other: Snapshot) -> Snapshot:
        return Snapshot(self.topics | other.topics, self.groups | other.groups)


@dataclass(frozen=True, slots=True)
class Restored:
    removed: Snapshot
    left_running: list[str]  # clients that were still in a group of the test, by client id and group


def take_snapshot() -> Conversation[Snapshot]:
    names = yield from operations.topics()
    states = yield from operations.groups()
    return Snapshot(frozenset(names), frozenset(states))


def restore(before: Snapshot) -> Conversation[Restored]:
    """Removes what is newer."""
    left: list[str] = []
    now = yield from take_snapshot()
    newer = now.without(before)
    for group in sorted(newer.groups):
        left += yield from _delete_group(group)
    if newer.topics:
        yield from operations.delete_topics(sorted(newer.topics))
    return Restored(newer, left)


def _delete_group(group: str) -> Conversation[list[str]]:
    """A member that lives may join again between the two requests: then both are made again."""
    left: dict[str, None] = {}
    for _ in range(TRIES_MAX):
        response = yield Call(
            "DeleteGroups", 2, message("delete_groups", "DeleteGroupsRequest", groups_names=[group])
        )
        code = response.results[0].error_code
        if code != ErrorCode.NON_EMPTY_GROUP:
            if code != ErrorCode.GROUP_ID_NOT_FOUND:
                check(f"delete group {group}", code)
            break
        present = yield from operations.members(group)
        left |= dict.fromkeys(f"{each.client_id or each.member_id} in group {group}" for each in present)
        if present:
            yield from operations.remove_members(group, present)
    return list(left)
