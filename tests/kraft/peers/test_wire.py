"""Messages of the quorum through Kafka's requests and back, and what a peer may not send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.kraft.image.records import Proposal, encode_batch
from millrace.kraft.peers.places import Places
from millrace.kraft.peers.wire import (
    EPOCH_MAX,
    Member,
    entries_of,
    for_version,
    leader_place,
    message_of,
    places_in,
    reply_of,
    request_of,
    response_of,
)
from millrace.kraft.raft.log_view import Entry
from millrace.kraft.raft.messages import (
    NOBODY,
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    Fetch,
    FetchReply,
    Message,
    Reply,
    Vote,
    VoteReply,
)
from millrace.kraft.raft.voters import Endpoint, Voter, VoterSet
from millrace.protocol.apis import api_of
from millrace.protocol.codec import decode_request, decode_response, encode_request, encode_response
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.header import decode_request_header
from millrace.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, LeaderEndpoint
from millrace.protocol.messages.fetch import ReplicaState
from millrace.protocol.messages.vote import NodeEndpoint, VoteResponse

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
ONE, TWO = (Member(CLUSTER, node_id, bytes(15) + bytes([node_id])) for node_id in (1, 2))
BATCHES = [
    encode_batch([Proposal([b"\x01\x14\x00\x00"], 1)], 7, 3),
    encode_batch([Proposal([b"\x01\x14\x00\x00"] * 2, 1)], 8, 4),
]
ENTRIES = [Entry(7, 1, 3, BATCHES[0], False), Entry(8, 2, 4, BATCHES[1], False)]
FETCH = Fetch(1, 2, 5, 7, 3, 6)


def asked(message: Message, version: int | None = None) -> tuple[Any, Message]:
    """What node 2 gets of node 1's message, as request and as message."""
    request = request_of(message, ONE)
    api = api_of(request)
    version = api.max_stable_version if version is None else version
    frame = encode_request(api, version, 9, "node 1", for_version(request, version))[4:]
    _, position = decode_request_header(frame)
    arrived = decode_request(api, version, frame, position)
    return arrived, message_of(arrived, TWO)


def answered(message: Message, reply: Reply, version: int | None = None) -> Reply | None:
    """What node 1 gets of node 2's reply."""
    request, arrived = asked(message, version)
    api = api_of(request)
    version = api.max_stable_version if version is None else version
    frame = b"".join(encode_response(api, version, 9, response_of(request, arrived, reply)))[4:]
    return reply_of(message, decode_response(api, version, frame)[1])


@pytest.mark.parametrize(
    "message",
    [
        Vote(1, 2, 5, 4, 100),
        Vote(1, 2, 5, 4, 100, is_pre_vote=True),
        BeginEpoch(1, 2, 5),
        EndEpoch(1, 2, 5, (3, 2)),
        FETCH,
        Vote(1, 2, 5, 4, 100, directory_id=b"a" * 16, target_directory=b"b" * 16),
        BeginEpoch(1, 2, 5, b"b" * 16),
        Fetch(1, 2, 5, 7, 3, 6, b"a" * 16),
    ],
)
def test_a_message_arrives_as_it_was(message: Message) -> None:
    assert asked(message)[1] == message


@pytest.mark.parametrize("version", range(12, 19))
def test_a_fetch_arrives_in_each_version(version: int) -> None:
    """Before version 18 nobody says how much is known to be committed: the leader does not answer for that
    alone."""
    arrived = asked(FETCH, version)[1]
    assert isinstance(arrived, Fetch)
    assert arrived.high_watermark == (6 if version >= 18 else (1 << 63) - 1)
    arrived.high_watermark = 6
    assert arrived == FETCH


@pytest.mark.parametrize("version", range(12, 19))
@pytest.mark.parametrize(
    "reply",
    [
        FetchReply(2, 1, 5, 2, 7, 3, 10, 8, entries=ENTRIES),
        FetchReply(2, 1, 5, 2, 7, 3, 7, 8, entries=[]),
        FetchReply(2, 1, 5, 2, 7, 3, 7, 8, diverging=(2, 6)),
        FetchReply(2, 1, 5, 2, 7, 3, 7, 8, snapshot=(90, 4)),
        FetchReply(2, 1, 6, 3, 7, 3, 7, 0),
        FetchReply(2, 1, 5, NOBODY, 7, 3, 7, 0),
        FetchReply(2, 1, 4, NOBODY, 7, 3, 7, 0),
    ],
)
def test_an_answer_to_a_fetch_arrives_as_it_was(reply: FetchReply, version: int) -> None:
    found = answered(FETCH, reply, version)
    assert isinstance(found, FetchReply)
    assert (repr(found), list(found.entries)) == (repr(reply), list(reply.entries))


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        (Vote(1, 2, 5, 4, 100), VoteReply(2, 1, 5, NOBODY, True)),
        (Vote(1, 2, 5, 4, 100), VoteReply(2, 1, 6, 3, False)),
        (Vote(1, 2, 5, 4, 100, is_pre_vote=True), VoteReply(2, 1, 5, 3, False, True)),
        (BeginEpoch(1, 2, 5), BeginEpochReply(2, 1, 5, 1)),
        (BeginEpoch(1, 2, 5), BeginEpochReply(2, 1, 7, 3)),
    ],
)
def test_an_answer_arrives_as_it_was(message: Message, reply: Reply) -> None:
    assert answered(message, reply) == reply


def test_an_epochs_end_is_told_and_not_asked() -> None:
    assert answered(EndEpoch(1, 2, 5, (2,)), Reply(2, 1, 5)) is None


def test_a_pre_vote_is_not_asked_of_who_knows_none() -> None:
    """It would be taken for a vote, and raise an epoch."""
    with pytest.raises(WireError, match="pre-vote"):
        asked(Vote(1, 2, 5, 4, 100, is_pre_vote=True), 1)


def test_a_batch_that_is_cut_off_is_left_out() -> None:
    whole = b"".join(BATCHES)
    for size_bytes in range(len(BATCHES[0]), len(whole)):
        assert entries_of(whole[:size_bytes], FETCH, 5) == ENTRIES[:1], size_bytes
    assert entries_of(whole, FETCH, 5) == ENTRIES
    assert entries_of(b"", FETCH, 5) == []


@pytest.mark.parametrize(
    ("records", "message", "epoch"),
    [
        (b"".join(BATCHES), Fetch(1, 2, 5, 6, 3), 5),  # not what was asked for
        (b"".join(BATCHES), Fetch(1, 2, 5, 7, 4), 5),  # of an earlier epoch than what is there
        (b"".join(BATCHES), FETCH, 3),  # of a later epoch than the leader's
        (BATCHES[1] + BATCHES[0], FETCH, 5),  # out of order
        (BATCHES[0] + BATCHES[0], FETCH, 5),  # twice
        (b"\0" * 100, FETCH, 5),
        (b"\xff" * 100, FETCH, 5),
    ],
)
def test_batches_that_do_not_follow_are_refused(records: bytes, message: Fetch, epoch: int) -> None:
    with pytest.raises(WireError):
        entries_of(records, message, epoch)


def test_a_damaged_batch_is_refused() -> None:
    """Whatever its byte, but for those outside the checksum that make it another batch, or a longer one."""
    for position in range(21, len(BATCHES[0])):
        damaged = bytearray(BATCHES[0])
        damaged[position] ^= 1
        with pytest.raises(WireError):
            entries_of(bytes(damaged), FETCH, 5)


@pytest.mark.parametrize(
    "reply",
    [
        FetchReply(2, 1, 5, 2, 7, 3, 7, 8, diverging=(2, 5)),
        FetchReply(2, 1, 5, 2, 7, 3, 7, 8, snapshot=(5, 2)),
    ],
)
def test_what_is_committed_is_not_taken_back(reply: FetchReply) -> None:
    """All below 6 is, and every leader has it; the sentence says what can be done about one that has not."""
    with pytest.raises(WireError, match=r"is committed here.*start them with the newest directory"):
        answered(FETCH, reply)


def test_a_code_that_is_not_known_is_a_refusal() -> None:
    with pytest.raises(KafkaError) as refused:
        reply_of(Vote(1, 2, 5, 4, 100), VoteResponse(error_code=999))
    assert refused.value.code == 999


def test_a_node_of_another_cluster_is_told_what_to_set() -> None:
    with pytest.raises(KafkaError, match="is of another cluster: give all of them the same"):
        reply_of(Vote(1, 2, 5, 4, 100), VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda request: setattr(request.topics[0].partitions[0], "fetch_offset", -1), "INVALID_REQUEST"),
        (
            lambda request: setattr(request.topics[0].partitions[0], "last_fetched_epoch", -1),
            "INVALID_REQUEST",
        ),
        (lambda request: setattr(request.topics[0], "topic_id", bytes(16)), "UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda request: setattr(request, "topics", request.topics * 2), "INVALID_REQUEST"),
        (lambda request: setattr(request, "replica_state", ReplicaState(-1)), "INVALID_REQUEST"),
    ],
)
def test_a_fetch_that_no_replica_sends_is_refused(spoil: Callable[[Any], None], code: str) -> None:
    request = request_of(FETCH, ONE)
    spoil(request)
    with pytest.raises(KafkaError) as refused:
        message_of(request, TWO)
    assert refused.value.code.name == code


@pytest.mark.parametrize("epoch", [EPOCH_MAX + 1, (1 << 31) - 1])
def test_one_of_the_last_epochs_is_nobodys(epoch: int) -> None:
    """Whoever was in it could elect nobody any more, and would be for good: an epoch outlives a restart. Nor
    does an answer bring it."""
    for message in (Vote(1, 2, epoch, 4, 100), BeginEpoch(1, 2, epoch), EndEpoch(1, 2, epoch, (3, 2))):
        with pytest.raises(KafkaError) as refused:
            message_of(request_of(message, ONE), TWO)
        assert refused.value.code == ErrorCode.INVALID_REQUEST
    with pytest.raises(WireError):
        answered(Vote(1, 2, 5, 4, 100), VoteReply(2, 1, epoch, 2))
    with pytest.raises(WireError):
        answered(FETCH, FetchReply(2, 1, epoch, 3))


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_nobody_is_at_every_address(host: str) -> None:
    """An earlier release that listens there says so of itself, and of who leads; whoever believed it would
    connect to itself."""
    endpoints = [LeaderEndpoint("OTHER", "b", 2), LeaderEndpoint("CONTROLLER", host, 1)]
    assert leader_place(BeginQuorumEpochRequest(leader_endpoints=endpoints), "CONTROLLER") == ("b", 2)
    assert leader_place(BeginQuorumEpochRequest(leader_endpoints=endpoints[1:]), "CONTROLLER") is None
    told = [NodeEndpoint(2, host, 1), NodeEndpoint(3, "c", 1)]
    assert places_in(VoteResponse(node_endpoints=told)) == {3: ("c", 1)}


def test_another_directory_than_the_voters_is_said_so() -> None:
    """A candidate counts that as no vote; a leader's word was not heard by whom it meant."""
    vote = Vote(1, 2, 5, 4, 100, target_directory=b"b" * 16)
    reply = VoteReply(2, 1, 5, 3, is_granted=False, is_wrong_key=True)
    assert answered(vote, reply) == reply
    begin = BeginEpoch(1, 2, 5, b"b" * 16)
    with pytest.raises(KafkaError) as refused:
        answered(begin, BeginEpochReply(2, 1, 5, 1, is_wrong_key=True))
    assert refused.value.code == ErrorCode.INVALID_VOTER_KEY


def test_who_resigns_names_directories_of_who_is_to_stand() -> None:
    """Where voters have them; else none."""
    request = request_of(EndEpoch(1, 2, 5, (3, 2), (b"c" * 16, b"b" * 16)), ONE)
    candidates = request.topics[0].partitions[0].preferred_candidates
    assert [(one.candidate_id, one.candidate_directory_id) for one in candidates] == [
        (3, b"c" * 16),
        (2, b"b" * 16),
    ]
    plain = request_of(EndEpoch(1, 2, 5, (3, 2)), ONE).topics[0].partitions[0].preferred_candidates
    assert {one.candidate_directory_id for one in plain} == {bytes(16)}


def test_a_place_is_heard_of_one_leader_at_a_time() -> None:
    """What is heard goes before the log, and that before what was told, until nobody answers there."""
    voters = VoterSet((Voter(1, b"a" * 16, (Endpoint("OTHER", "o", 1), Endpoint("C", "one", 2))),), 1)
    places = Places({1: ("told", 1), 2: ("told", 2)}, [("boot", 3), ("boot", 4)], lambda: voters, "C")
    assert [places.of(node_id) for node_id in (1, 2, -2, -3, 9)] == [
        ("one", 2),
        ("told", 2),
        ("boot", 3),
        ("boot", 4),
        None,
    ]
    places.learn(1, ("moved", 5))
    assert (places.of(1), places.known()) == (("moved", 5), {1: ("moved", 5)})
    places.forget(1, ("elsewhere", 5))
    assert places.of(1) == ("moved", 5)
    places.forget(1, ("moved", 5))
    assert places.of(1) == ("one", 2)
    places.learn(1, ("moved", 5))
    places.learn(2, ("moved", 6))
    assert (places.of(1), places.of(2)) == (("one", 2), ("moved", 6))
