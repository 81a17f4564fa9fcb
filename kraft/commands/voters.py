"""Judges AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter (KIP-853), and raising kraft.version to 1, on the
voters in force: what the next set is, or why there is none. Pure.

Not here: waiting for what must come first, and for the commit (kraft/peers/voter_changes.py). A node that no
other can reach decides none of it: its answer is the one at kraft.version 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from millrace.kraft.commands.decision import Decision
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.raft.voters import DYNAMIC, NO_DIRECTORY, STATIC, Endpoint, Voter, VoterSet
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.ids import uuid_text
from millrace.protocol.messages.update_raft_voter import UpdateRaftVoterRequest

NO_CHANGES: Final = "voters cannot be added or removed while kraft.version is 0"
IS_UNKNOWN: Final = "the outcome is unknown"  # of a change whose record is written
EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # to listen on; who connects there reaches itself
ENDPOINTS_MAX: Final = 16  # of one voter: each stands in every record of voters


def refuse_change(image: MetadataImage, request: Any) -> Decision:
    """Of a process that is broker and whole quorum in one. Raises KafkaError UNSUPPORTED_VERSION, or
    INVALID_REQUEST for what is no voter."""
    check_named(request.voter_id, request.voter_directory_id)
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, NO_CHANGES)


def check_cluster(asked: str | None, cluster_id: str) -> None:
    """Raises KafkaError INCONSISTENT_CLUSTER_ID."""
    if asked is not None and asked != cluster_id:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {cluster_id}, not {asked}")


def check_level(known: VoterSet) -> None:
    """Raises KafkaError UNSUPPORTED_VERSION."""
    if known.kraft_version == STATIC:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, NO_CHANGES)


def endpoints_of(listeners: Sequence[Any], listener: str) -> tuple[Endpoint, ...]:
    """Raises KafkaError INVALID_REQUEST where the listener is missing that voters reach each other by, or one
    is on every address, where nobody reaches another."""
    found = tuple(Endpoint(one.name, one.host, one.port) for one in listeners)
    if not 0 < len(found) <= ENDPOINTS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a voter has 1 to {ENDPOINTS_MAX} listeners")
    for endpoint in found:
        if endpoint.host in EVERY_ADDRESS:
            text = f"the voter's listener {endpoint.name} is at {endpoint.host!r}, which is every address"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if listener not in [one.name for one in found]:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"the voter has no listener {listener}, which voters reach each other by",
        )
    return found


def check_named(node_id: int, directory_id: bytes) -> None:
    """Raises KafkaError INVALID_REQUEST for what is no voter's id, or no directory."""
    if node_id < 0 or directory_id == NO_DIRECTORY:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a voter has an id and a directory")


def check_added(known: VoterSet, node_id: int, directory_id: bytes) -> None:
    """Raises KafkaError DUPLICATE_VOTER for an id that votes, with whatever directory; INVALID_REQUEST for
    what is no id, which is looked at first, as in Kafka."""
    check_named(node_id, directory_id)
    check_level(known)
    voter = known.get(node_id)
    if voter is not None:
        raise KafkaError(
            ErrorCode.DUPLICATE_VOTER,
            f"node {node_id} is a voter, with directory {uuid_text(voter.directory_id)}: where it has "
            "another by now, remove that first",
        )


def refuse_removal(node_id: int, voters: VoterSet, silent: Sequence[int]) -> None:
    """`voters` are those without it. Raises KafkaError INVALID_REQUEST."""
    names = ", ".join(f"node {one}" for one in silent)
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"without node {node_id} the voters {', '.join(map(str, voters.ids))} could decide nothing, nor have "
        f"it back, for {names} {'is' if len(silent) == 1 else 'are'} not heard of: start what is silent, or "
        "remove it first",
    )


def set_without(known: VoterSet, node_id: int, directory_id: bytes) -> VoterSet:
    """Raises KafkaError VOTER_NOT_FOUND, INVALID_REQUEST for the last one and for what names none."""
    check_named(node_id, directory_id)
    check_level(known)
    voter = known.get(node_id)
    if voter is None or voter.directory_id != directory_id:
        asked = f"node {node_id} with directory {uuid_text(directory_id)}"
        has = "" if voter is None else f": node {node_id} votes with {uuid_text(voter.directory_id)}"
        raise KafkaError(ErrorCode.VOTER_NOT_FOUND, f"{asked} is no voter{has}")
    if len(known.voters) == 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"node {node_id} is the only voter")
    return known.without(node_id)


def set_updated(known: VoterSet, request: UpdateRaftVoterRequest, listener: str) -> VoterSet:
    """The same set where the voter has moved nowhere. Raises KafkaError VOTER_NOT_FOUND, INVALID_REQUEST."""
    node_id, directory_id = request.voter_id, request.voter_directory_id
    voter = known.get(node_id)
    if voter is None or voter.directory_id != directory_id:
        raise KafkaError(ErrorCode.VOTER_NOT_FOUND, f"node {node_id} with this directory is no voter")
    feature = request.kraft_version_feature
    levels = feature.min_supported_version, feature.max_supported_version
    check_levels(known, node_id, levels)
    endpoints = endpoints_of(request.listeners, listener)
    return known.with_voter(Voter(node_id, directory_id, endpoints, levels))


def check_levels(known: VoterSet, node_id: int, levels: tuple[int, int]) -> None:
    """Raises KafkaError INVALID_REQUEST where the voter does not run at the level that is finalized."""
    if not levels[0] <= known.kraft_version <= levels[1]:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"node {node_id} supports kraft.version {levels[0]} to {levels[1]}, and {known.kraft_version} is "
            "finalized",
        )


def upgraded(known: VoterSet, voters: Sequence[Voter]) -> tuple[Voter, ...]:
    """The voters as they stand in the log from kraft.version 1 on. Raises KafkaError INVALID_UPDATE_VERSION
    for one of which too little is known."""
    for voter in voters:
        why = ""
        if voter.directory_id == NO_DIRECTORY:
            why = "has not fetched from the leader, so that its directory is not known"
        elif not voter.endpoints:
            why = "has no address in controller.quorum.voters of the leader"
        elif any(endpoint.host in EVERY_ADDRESS for endpoint in voter.endpoints):
            why = "listens on every address, and advertised.listeners does not say where others reach it"
        elif not voter.kraft_versions[0] <= DYNAMIC <= voter.kraft_versions[1]:
            why = "does not say that it supports kraft.version 1: it is of an earlier release, or not reached"
        if why:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"kraft.version cannot become 1: voter {voter.node_id} {why}",
            )
    assert known.is_next_to(VoterSet(tuple(voters), DYNAMIC)), (known, voters)
    return tuple(voters)
