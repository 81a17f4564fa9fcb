"""Which directory of a node is meant, where nobody says one."""

from __future__ import annotations

import pytest

from millrace.broker.cli.cluster_voters import FETCHES_MS, directory_of, listener_in, why_not_added
from millrace.protocol.ids import uuid_text
from millrace.protocol.messages.describe_quorum import DescribeQuorumResponse, Listener, Node, ReplicaState

A, B = b"a" * 16, b"b" * 16
NOW = 1_700_000_000_000


def replica(node_id: int, directory: bytes, ago_ms: int = 0) -> ReplicaState:
    return ReplicaState(node_id, directory, 9, NOW - ago_ms, NOW - ago_ms)


def test_the_one_that_fetches_is_meant() -> None:
    """And not one that the leader remembers; what is said goes first."""
    known = [replica(3, A, FETCHES_MS + 1), replica(3, B), replica(4, A)]
    assert directory_of(3, None, known, "") == B
    assert directory_of(3, uuid_text(A), known, "") == A
    assert directory_of(9, uuid_text(A), [], "") == A


@pytest.mark.parametrize(
    ("known", "word"),
    [
        ([replica(3, A), replica(3, B)], "several directories"),
        ([replica(4, A)], "nobody of it"),
        ([replica(3, bytes(16))], "kraft.version is 0"),
    ],
)
def test_what_is_not_clear_is_asked(known: list[ReplicaState], word: str) -> None:
    """In a sentence."""
    with pytest.raises(ValueError, match=word):
        directory_of(3, None, known, "nobody of it")


@pytest.mark.parametrize(
    ("voters", "word"),
    [
        ([replica(3, A)], f"node 3: it is a voter already, with directory {uuid_text(A)}"),
        ([replica(3, bytes(16))], r"node 3: it is a voter, as the list says \(kraft.version 0\)"),
        ([replica(4, A)], "node 3: no node of that id follows"),
    ],
)
def test_one_that_votes_already_is_told_so(voters: list[ReplicaState], word: str) -> None:
    """As who asks again is whose first answer was lost: it follows nobody, and yet needs no start."""
    with pytest.raises(ValueError, match=word):
        directory_of(3, None, [], why_not_added(3, voters))


def test_voters_reach_each_other_by_their_own_listener() -> None:
    """Whatever other nodes name theirs."""
    nodes = [Node(9, [Listener("X", "h", 1)]), Node(2, [Listener("QUORUM", "h", 1)])]
    assert listener_in(DescribeQuorumResponse(nodes=nodes), [2]) == "QUORUM"
    assert listener_in(DescribeQuorumResponse(), [2]) == "CONTROLLER"
