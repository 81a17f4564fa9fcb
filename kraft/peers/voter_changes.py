"""VoterChanges: AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter and raising kraft.version, at the node that
leads (KIP-853); and raising millrace.version, which voters are asked about.

    add       level, id and listener judged, the node asked what it supports, caught up, appended, committed
    remove    judged, the rest able to decide, appended, committed; a leader that removes itself resigns with
              the commit
    update    likewise, of a voter that has moved
    upgrade   every voter's directory and levels known, both records appended as one batch, committed

One at a time: the next waits its turn, within the time it gives itself; each waits until this leader has
committed in its epoch and the voters in force are committed. What takes too long is REQUEST_TIMED_OUT: before
the append nothing was done, behind it the outcome is unknown.

Not here: what is judged (kraft/commands/voters.py), when a set is in force (kraft/raft/core.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from millrace.kraft.commands import voters as judge
from millrace.kraft.commands.features import check_brokers, check_controllers, raised_level
from millrace.kraft.driver import Driver
from millrace.kraft.errors import NotLeader
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.peers.places import Places
from millrace.kraft.peers.ways import Ways
from millrace.kraft.peers.wire import Place
from millrace.kraft.raft.log_view import Entry
from millrace.kraft.raft.quorum import majority
from millrace.kraft.raft.roles import Leader
from millrace.kraft.raft.voters import (
    DYNAMIC,
    KRAFT_VERSIONS,
    NO_DIRECTORY,
    STATIC,
    Endpoint,
    Replica,
    Voter,
    VotersChange,
    VoterSet,
)
from millrace.kraft.tables.features import KRAFT_VERSION, MILLRACE_VERSION
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from millrace.protocol.messages.api_versions import ApiVersionsRequest
from millrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from millrace.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from millrace.protocol.messages.update_raft_voter import (
    CurrentLeader,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from millrace.runtime.errors import Unavailable, in_words

log = logging.getLogger(__name__)
TURNS_MAX: Final = 16  # that wait; the next one is refused
CHANGE_S: Final = 25.0  # below what a node waits for an answer to a command (channel.py)
ASK_S: Final = 2.0  # of what another node supports


@dataclass(frozen=True, slots=True)
class OwnNode:
    """What of its settings and its identity matters here. `told`: endpoints in controller.quorum.voters."""

    node_id: int
    cluster_id: str
    endpoints: tuple[Endpoint, ...]
    told: dict[int, Endpoint]


def is_of_voters(request: Any) -> bool:
    """What is decided here, and may take long."""
    if isinstance(request, UpdateFeaturesRequest):
        return any(one.feature in (KRAFT_VERSION, MILLRACE_VERSION) for one in request.feature_updates)
    return isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest | UpdateRaftVoterRequest)


class VoterChanges:
    """`ways` lead to places; `submit` decides a command of the controller."""

    def __init__(
        self,
        own: OwnNode,
        driver: Driver,
        publisher: MetadataPublisher,
        places: Places,
        ways: Ways[Place],
        submit: Callable[[Any], Awaitable[Any]],
    ) -> None:
        self._own = own
        self._driver = driver
        self._publisher = publisher
        self._places = places
        self._ways = ways
        self._submit = submit
        self._turn = asyncio.Lock()
        self._waiting_count = 0

    async def decide(self, request: Any) -> Any:
        """The response, once what it says is committed. Raises NotLeader: nothing was done."""
        if isinstance(request, UpdateFeaturesRequest):
            return await self._decide_features(request)
        response: Any = {
            AddRaftVoterRequest: AddRaftVoterResponse,
            RemoveRaftVoterRequest: RemoveRaftVoterResponse,
            UpdateRaftVoterRequest: UpdateRaftVoterResponse,
        }[type(request)]
        try:
            judge.check_cluster(request.cluster_id, self._own.cluster_id)
            if isinstance(request, AddRaftVoterRequest):
                await self._in_turn(self._add(request), request.timeout_ms / 1000)
            elif isinstance(request, RemoveRaftVoterRequest):
                await self._in_turn(self._remove(request))
            else:
                await self._in_turn(self._update(request))
        except KafkaError as error:
            log.info("voters: %s is refused: %s", type(request).__name__, error.message)
            if response is UpdateRaftVoterResponse:
                return UpdateRaftVoterResponse(0, error.code, self._leader())
            return response(error_code=error.code, error_message=error.message)
        if response is UpdateRaftVoterResponse:
            return UpdateRaftVoterResponse(current_leader=self._leader())
        return response(error_message=None)

    def _leader(self) -> CurrentLeader:
        raft = self._driver.raft
        host, port = self._places.of(raft.leader) or ("", 0)
        return CurrentLeader(raft.leader, raft.epoch, host, port)

    async def _in_turn(self, work: Any, within_s: float = CHANGE_S) -> None:
        """Raises KafkaError REQUEST_TIMED_OUT, and what the work does."""
        stage = _Stage()
        try:
            if self._waiting_count >= TURNS_MAX:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{TURNS_MAX} changes of voters wait already")
            self._waiting_count += 1
            try:
                async with asyncio.timeout(max(0.001, min(within_s, CHANGE_S))), self._turn:
                    await work(stage)
            finally:
                self._waiting_count -= 1
        except TimeoutError:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"not done in time: {stage.what}") from None

    # Each is given the stage, to say what it waits for.

    def _add(self, request: AddRaftVoterRequest) -> Work:
        async def work(stage: _Stage) -> None:
            key = request.voter_id, request.voter_directory_id
            known = await self._settled(stage)
            judge.check_added(known, *key)
            endpoints = judge.endpoints_of(request.listeners, self._places.listener)
            stage.what = f"node {request.voter_id} has not said what it supports"
            levels = await self._levels_of(self._place_in(endpoints))
            judge.check_levels(known, request.voter_id, levels)
            await self._caught_up(key, stage)
            known = await self._settled(stage)
            judge.check_added(known, *key)
            voters = known.with_voter(Voter(*key, endpoints, levels))
            entry = self._append(VotersChange(voters=voters.voters), f"node {request.voter_id} is added")
            if request.ack_when_committed:
                await self._committed(entry, stage)

        return work

    def _remove(self, request: RemoveRaftVoterRequest) -> Work:
        async def work(stage: _Stage) -> None:
            known = await self._settled(stage)
            voters = judge.set_without(known, request.voter_id, request.voter_directory_id)
            await self._can_decide(voters, request.voter_id, stage)
            known = await self._settled(stage)
            voters = judge.set_without(known, request.voter_id, request.voter_directory_id)
            entry = self._append(VotersChange(voters=voters.voters), f"node {request.voter_id} is removed")
            await self._committed(entry, stage)

        return work

    def _update(self, request: UpdateRaftVoterRequest) -> Work:
        async def work(stage: _Stage) -> None:
            epoch = self._driver.raft.epoch
            if request.current_leader_epoch != epoch:
                is_behind = request.current_leader_epoch < epoch
                code = ErrorCode.FENCED_LEADER_EPOCH if is_behind else ErrorCode.UNKNOWN_LEADER_EPOCH
                raise KafkaError(code, f"epoch {request.current_leader_epoch}, and this is {epoch}")
            known = await self._settled(stage)
            if known.kraft_version == STATIC:
                return  # nothing of it would be kept: an upgrade asks voters what they support
            voters = judge.set_updated(known, request, self._places.listener)
            if voters != known:
                entry = self._append(VotersChange(voters=voters.voters), f"node {request.voter_id} has moved")
                await self._committed(entry, stage)

        return work

    async def _decide_features(self, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        """All updates or none: the others are decided first as if, then the level is raised, then they
        are."""
        own = [update for update in request.feature_updates if update.feature == KRAFT_VERSION]
        others = [update for update in request.feature_updates if update.feature != KRAFT_VERSION]
        asked = UpdateFeaturesRequest(request.timeout_ms, others, validate_only=True)
        response: UpdateFeaturesResponse = await self._submit(asked)
        if response.error_code:
            return response
        try:
            if len(own) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Feature {KRAFT_VERSION} is named twice.")
            await self._check_controllers(others)
            if own:
                await self._in_turn(self._upgrade(own[0], is_asked_only=request.validate_only))
        except KafkaError as error:
            return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
        if others and not request.validate_only:
            response = await self._submit(UpdateFeaturesRequest(request.timeout_ms, others))
        if not response.error_code:
            named = {result.feature: result for result in response.results}
            done = UpdatableFeatureResult(KRAFT_VERSION, 0, None)
            response.results = [named.get(update.feature, done) for update in request.feature_updates]
        return response

    async def _check_controllers(self, updates: Sequence[FeatureUpdateKey]) -> None:
        """Voters that are no brokers are asked whether they know the level that millrace.version is raised
        to. Raises KafkaError INVALID_UPDATE_VERSION."""
        image, known = self._publisher.image, self._driver.raft.voter_set
        level = raised_level(image, updates)
        others = [one for one in known.ids if one != self._own.node_id and image.brokers.get(one) is None]
        if level is not None:
            said = await asyncio.gather(*(self._said_by(node_id) for node_id in others))
            check_controllers(dict(zip(others, said, strict=True)), level)

    async def _said_by(self, node_id: int) -> tuple[int, int] | str:
        """The levels of millrace.version, or why it does not say."""
        place = self._places.of(node_id)
        if place is None:
            return "its address is not known"
        try:
            return await self._levels_of(place, MILLRACE_VERSION)
        except KafkaError as error:
            return error.message

    def _upgrade(self, update: FeatureUpdateKey, *, is_asked_only: bool) -> Work:
        async def work(stage: _Stage) -> None:
            known, level = await self._settled(stage), update.max_version_level
            if level == known.kraft_version:
                return
            prefix = f"Invalid update version {level} for feature {KRAFT_VERSION}."
            if level < known.kraft_version:
                text = f"{prefix} There is no way back: voters stand in the log."
                raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)
            if not KRAFT_VERSIONS[0] <= level <= KRAFT_VERSIONS[1]:
                text = f"{prefix} Supported are versions {KRAFT_VERSIONS[0]}-{KRAFT_VERSIONS[1]}."
                raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)
            check_brokers(self._publisher.image, KRAFT_VERSION, level, prefix)
            stage.what = "voters have not said what they support"
            found = await asyncio.gather(*(self._as_known(voter.node_id) for voter in known.voters))
            voters = judge.upgraded(known, found)
            if not is_asked_only:
                await self._settled(stage)
                entry = self._append(VotersChange(DYNAMIC, voters), "kraft.version is 1")
                await self._committed(entry, stage)

        return work

    async def _as_known(self, node_id: int) -> Voter:
        """A voter of the list, with its directory from its fetches and what it supports from itself."""
        raft, own = self._driver.raft, self._own
        if node_id == own.node_id:
            return Voter(node_id, raft.directory_id, own.endpoints, KRAFT_VERSIONS)
        role = raft.role
        progress = role.voters.get(node_id) if isinstance(role, Leader) else None
        directory_id = NO_DIRECTORY if progress is None else progress.directory_id
        endpoint = own.told.get(node_id)
        if endpoint is None:
            return Voter(node_id, directory_id)
        endpoint = endpoint._replace(name=self._places.listener)
        try:
            levels = await self._levels_of((endpoint.host, endpoint.port))
        except KafkaError as error:
            log.info("voters: what node %d supports is not known: %s", node_id, error.message)
            levels = STATIC, STATIC
        return Voter(node_id, directory_id, (endpoint,), levels)

    # What they wait for.

    async def _settled(self, stage: _Stage) -> VoterSet:
        """The voters in force, once a change may follow. Raises NotLeader."""
        stage.what = "the leader has not committed in its epoch, or the change of voters before this one"
        raft = self._driver.raft
        while not raft.may_change_voters:
            if not raft.is_leader:
                raise NotLeader(raft.leader)
            await self._driver.news.told()
        return raft.voter_set

    async def _levels_of(self, place: Place, feature: str = KRAFT_VERSION) -> tuple[int, int]:
        """The levels of the feature that the node there runs at. Raises KafkaError REQUEST_TIMED_OUT where
        it does not say."""
        try:
            connection = await self._ways.connected(place, is_patient=True)
            try:
                answer = await connection.ask(ApiVersionsRequest("millrace", "1"), ASK_S)
            finally:
                self._ways.retire(place)  # the next one who asks may ask another process
        except (Unavailable, WireError) as error:
            text = f"{place[0]}:{place[1]} does not say what it supports: {in_words(error)}"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        named = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
        return named.get(feature, (0, 0))

    async def _caught_up(self, key: Replica, stage: _Stage) -> None:
        """Returns when the observer has fetched, within half of the time after which a leader is given up,
        what was there when that began: with it among the voters the next commit does not wait longer.
        Raises NotLeader."""
        raft, patience = self._driver.raft, self._driver.raft.settings.fetch_ticks // 2
        goal, since = raft.log.stable_end, raft.now
        while isinstance(raft.role, Leader):
            progress = raft.role.observers.get(key)
            end = -1 if progress is None else progress.end
            if end >= goal:
                if raft.now - since <= patience:
                    return
                goal, since = raft.log.stable_end, raft.now
            behind = "has not fetched" if end < 0 else f"is {goal - end} records behind"
            stage.what = f"node {key[0]} with this directory {behind}"
            await self._driver.news.told()
        raise NotLeader(raft.leader)

    async def _can_decide(self, voters: VoterSet, removed: int, stage: _Stage) -> None:
        """Returns once a majority of these has fetched since this began: the removal itself is theirs to
        commit, and who fetched before may have ended. Raises NotLeader, and where they do not within the time
        in which a voter may be silent what is judged."""
        raft, own_id = self._driver.raft, self._own.node_id
        since = raft.now
        while isinstance(role := raft.role, Leader):
            heard = [one for one in voters.ids if one == own_id or role.voters[one].fetched_at > since]
            silent = [one for one in voters.ids if one not in heard]
            if len(heard) >= majority(len(voters.ids)):
                return
            if raft.now - since > raft.settings.fetch_ticks:
                judge.refuse_removal(removed, voters, silent)
            stage.what = f"voters {', '.join(map(str, silent))} have not fetched"
            await self._driver.news.told()
        raise NotLeader(raft.leader)

    def _append(self, change: VotersChange, why: str) -> Entry:
        entry = self._driver.change_voters(change)
        log.info("voters: %s: %r from offset %d on", why, self._driver.raft.voter_set, entry.base)
        return entry

    async def _committed(self, entry: Entry, stage: _Stage) -> None:
        """Raises KafkaError REQUEST_TIMED_OUT where the leadership, or the disk's room, goes before that is
        known: the outcome is unknown."""
        stage.what = f"the change is written, and not committed yet: {judge.IS_UNKNOWN}"
        raft, history = self._driver.raft, self._driver.raft.log.voters
        change = next(one for one in history.changes if one[0] == entry.base)
        while raft.high_watermark < entry.end:
            if change not in history.changes or not raft.is_leader:
                text = f"who led leads no more: {judge.IS_UNKNOWN}"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text)
            await self._driver.news.told()

    def _place_in(self, endpoints: tuple[Endpoint, ...]) -> Place:
        found = next(one for one in endpoints if one.name == self._places.listener)
        return found.host, found.port


class _Stage:
    """What a change waits for: said when its time is over."""

    what = "another change of voters is under way"


Work = Callable[[_Stage], Awaitable[None]]
