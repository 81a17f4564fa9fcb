"""A test's own topics and groups: what there was before it, and the end of what came with it.

What a test made is gone after it, under whatever name, also where its client is still running: the members of its groups are removed first.
What existed stays: topics, the records in them, groups and their offsets, whatever the test added to them.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.protocol.error_codes import ErrorCode
from millrace.testing import operations
from millrace.testing.operations import Call, Conversation, check, message

TRIES_MAX = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    topics: frozenset[str]
    groups: frozenset[str]


def take_snapshot() -> Conversation[Snapshot]:
    names = yield from operations.topics()
    states = yield from operations.groups()
    return Snapshot(frozenset(names), frozenset(states))


def restore(before: Snapshot) -> Conversation[list[str]]:
    """Removes what is newer. Gives who was still in a group of the test: clients that it did not close, by group and client id."""
    left: list[str] = []
    names = yield from operations.topics()
    states = yield from operations.groups()
    for group in sorted(states.keys() - before.groups):
        left += yield from _delete_group(group)
    made = sorted(set(names) - before.topics)
    if made:
        yield from operations.delete_topics(made)
    return left


def _delete_group(group: str) -> Conversation[list[str]]:
    """A member that lives may join again between the two requests: then both are made again."""
    left: dict[str, None] = {}
    for _ in range(TRIES_MAX):
        response = yield Call("DeleteGroups", 2, message("delete_groups", "DeleteGroupsRequest", groups_names=[group]))
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
