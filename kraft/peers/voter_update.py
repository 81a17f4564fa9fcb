"""VoterUpdate: a voter tells whoever leads where it is reached by now, and what it supports (UpdateRaftVoter,
KIP-853), until the log has that of it.

    A voter that was started with other listeners, or as another release.

Not here: what becomes of it (voter_changes.py). Nothing is said at kraft.version 0, and by who is no voter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from millrace.kraft.driver import Driver
from millrace.kraft.errors import NotLeader
from millrace.kraft.peers.voter_changes import OwnNode
from millrace.kraft.peers.ways import Ways
from millrace.kraft.raft.messages import NOBODY
from millrace.kraft.raft.voters import KRAFT_VERSIONS, STATIC, Voter
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import WireError
from millrace.protocol.messages.update_raft_voter import (
    KRaftVersionFeature,
    Listener,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from millrace.runtime.errors import Unavailable, in_words

log = logging.getLogger(__name__)
BACKOFF_MIN_S: Final = 1.0  # after a failure, doubled with each, while the quorum stays as it is
BACKOFF_MAX_S: Final = 30.0
ANSWER_S: Final = 30.0  # longer than who leads gives a change


class VoterUpdate:
    """`ways` lead to members, `decide` is this node's own service, where it leads."""

    def __init__(
        self,
        own: OwnNode,
        driver: Driver,
        ways: Ways[int],
        decide: Callable[[Any], Awaitable[Any]],
    ) -> None:
        self._own = own
        self._driver = driver
        self._ways = ways
        self._decide = decide
        self._said = ""

    async def run(self) -> None:
        """For ever: at each change of the quorum, and again after a failure."""
        backoff_s = BACKOFF_MIN_S
        while True:
            change = self._driver.news.changed()
            if not self.is_due() or not self._is_led() or await self._is_told():
                backoff_s = BACKOFF_MIN_S
                await asyncio.wait([change])
            else:
                await asyncio.wait([change], timeout=backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    def is_due(self) -> bool:
        """The log has something else of this voter than it is."""
        raft, own = self._driver.raft, self._own
        known = raft.voter_set
        if known.kraft_version == STATIC or not raft.is_voter or not own.endpoints:
            return False
        return known.get(own.node_id) != Voter(own.node_id, raft.directory_id, own.endpoints, KRAFT_VERSIONS)

    def _is_led(self) -> bool:
        news = self._driver.news
        return news.is_active or news.leader not in (NOBODY, self._own.node_id)

    async def _is_told(self) -> bool:
        """Whether who leads has taken it."""
        try:
            code = (await self._tell()).error_code
        except (Unavailable, WireError, NotLeader) as error:
            self._say(in_words(error))
            return False
        self._say(f"refused: {ErrorCode(code).name}" if code else "")
        return not code

    async def _tell(self) -> UpdateRaftVoterResponse:
        """Raises Unavailable, WireError."""
        raft, own = self._driver.raft, self._own
        request = UpdateRaftVoterRequest(
            own.cluster_id,
            raft.epoch,
            own.node_id,
            raft.directory_id,
            [Listener(*endpoint) for endpoint in own.endpoints],
            KRaftVersionFeature(*KRAFT_VERSIONS),
        )
        if self._driver.news.is_active:
            response = await self._decide(request)
        else:
            leader = self._driver.news.leader
            connection = await self._ways.connected(leader)
            try:
                response = await connection.ask(request, ANSWER_S)
            finally:
                self._ways.retire(leader)
        assert isinstance(response, UpdateRaftVoterResponse)
        return response

    def _say(self, failure: str) -> None:
        """Logged once for as long as it stays the same."""
        if failure and failure != self._said:
            log.warning("voters: the log has old addresses of this node, and the leader: %s", failure)
        self._said = failure
