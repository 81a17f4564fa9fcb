"""Places: where the members of the quorum are reached, from what is told, written and heard. Pure.

    heard       where the leader says that it is, or a peer says of it: it may have moved since its record
    the log     endpoints of voters, at kraft.version 1
    told        controller.quorum.voters, and controller.quorum.bootstrap.servers, whose ids are negative

Kept true: one place is heard of at a time, of whoever was said to lead last; where nobody answers there it is
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from millrace.kraft.config import bootstrap_id
from millrace.kraft.peers.wire import Place
from millrace.kraft.raft.voters import STATIC, VoterSet


class Places:
    """`listener`: of this node, that others of the quorum use; a voter is reached at the one of the same
    name, or its first."""

    def __init__(
        self,
        told: Mapping[int, Place],
        bootstrap: Sequence[Place],
        voters: Callable[[], VoterSet],
        listener: str,
    ) -> None:
        self.listener = listener
        self._told = {**told, **{bootstrap_id(index): place for index, place in enumerate(bootstrap)}}
        self._voters = voters
        self._heard: tuple[int, Place] | None = None

    def of(self, node_id: int) -> Place | None:
        if self._heard is not None and self._heard[0] == node_id:
            return self._heard[1]
        voter = self._voters().get(node_id)
        if voter is None or not voter.endpoints:
            return self._told.get(node_id)
        named = sorted(voter.endpoints, key=lambda one: one.name != self.listener)
        return named[0].host, named[0].port

    @property
    def may_move(self) -> bool:
        """Voters stand in the log, and no list tells where they are."""
        return self._voters().kraft_version != STATIC

    def learn(self, node_id: int, place: Place) -> None:
        """Of who leads."""
        self._heard = node_id, place

    def forget(self, node_id: int, place: Place) -> None:
        """Nobody answers there."""
        if self._heard == (node_id, place):
            self._heard = None

    def known(self) -> dict[int, Place]:
        """Of the voters in force."""
        places = {voter_id: self.of(voter_id) for voter_id in self._voters().ids}
        return {voter_id: place for voter_id, place in places.items() if place is not None}
