"""A broker waits for the metadata in its bucket: an answer counts once it is told whose bucket that is of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from millrace.broker.quorum.common_bucket import CommonBucket
from millrace.broker.quorum.remote_backup import LONG_S, RemoteBackup
from millrace.kraft.bucket.layout import PieceName, piece_key
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.news import QuorumNews
from millrace.kraft.peers.channel import QuorumChannel
from millrace.kraft.peers.ways import Ways
from millrace.kraft.raft.messages import NOBODY
from millrace.kraft.tables.features import MILLRACE_VERSION, Features
from millrace.protocol.messages.await_backup import AwaitBackupResponse
from millrace.runtime.objectstore.memory import MemoryObjectStore
from tests.kraft.build import HandClock
from tests.kraft.peers.members import CLUSTER
from tests.sim.loop import SimLoop, run_simulation

BROKER, FIRST, SECOND = 101, 1, 2
SILENCE_S = 60.0


class Scene:
    """A broker and the bucket that it has. Who leads says that all is in the bucket, `while_asked` before."""

    def __init__(self) -> None:
        self.bucket = MemoryObjectStore(HandClock())
        self.publisher = MetadataPublisher()
        self.news = QuorumNews()
        self.while_asked: Callable[[], None] = lambda: None
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = 0
        channel = QuorumChannel(BROKER, self._decide, self.news, self._ways)
        common = CommonBucket(self.bucket, "0@mem://lake", CLUSTER)
        self.backup = RemoteBackup(channel, self.publisher, self.news, common)

    async def _decide(self, request: Any) -> AwaitBackupResponse:
        self.asked += 1
        self.while_asked()
        await self.answers.wait()
        return AwaitBackupResponse()

    def _ways(self, lane: str) -> Ways[int]:
        async def connect(place: tuple[str, int]) -> Any:
            raise AssertionError

        return Ways(lane, lambda node_id: ("nowhere", node_id), connect)

    def lead(self, node_id: int, epoch: int) -> None:
        self.news.tell(epoch, node_id, 0, is_active=node_id != NOBODY)

    def commit(self, end: int, epoch: int) -> None:
        features = Features({MILLRACE_VERSION: 3})
        self.publisher.load(replace(EMPTY_IMAGE, offset=end, epoch=epoch, features=features))

    async def put(self) -> None:
        """Into the broker's bucket, what is committed."""
        image = self.publisher.image
        await self.bucket.put(piece_key(CLUSTER, PieceName(image.offset, image.epoch, 0)), [b""])

    async def is_reached(self) -> bool:
        try:
            async with asyncio.timeout(SILENCE_S):
                await self.backup.reach_committed()
        except TimeoutError:
            return False
        return True


def in_scene(work: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimLoop) -> None:
        scene = Scene()
        await work(scene)
        await scene.backup.close()

    run_simulation(main)


def test_who_comes_to_lead_amid_a_question_is_not_believed_for_the_leader_before() -> None:
    """Its bucket is another one, and nothing of what it said that it put is here."""

    async def work(scene: Scene) -> None:
        scene.lead(FIRST, 1)
        scene.commit(10, 1)
        await scene.put()
        assert await scene.is_reached()
        scene.commit(20, 1)
        scene.while_asked = lambda: scene.lead(SECOND, 2)
        assert not await scene.is_reached()
        assert "does not have the metadata" in scene.backup.blocked_reason
        await scene.put()
        assert await scene.is_reached()

    in_scene(work)


def test_what_a_leader_before_had_put_says_nothing_of_the_next_ones_bucket() -> None:
    """A copy of the time between both has it, too: the next question is about what lies behind it."""

    async def work(scene: Scene) -> None:
        scene.lead(FIRST, 1)
        scene.commit(10, 1)
        await scene.put()
        scene.lead(SECOND, 2)
        assert await scene.is_reached()
        scene.commit(20, 2)
        assert not await scene.is_reached()
        assert "does not have the metadata" in scene.backup.blocked_reason

    in_scene(work)


def test_who_leads_no_more_is_not_named_for_who_does() -> None:
    """Nor where nobody does: whoever reads it would mend the wrong one."""

    async def work(scene: Scene) -> None:
        scene.lead(FIRST, 1)
        scene.commit(10, 1)
        waiting = asyncio.ensure_future(scene.is_reached())
        await asyncio.sleep(2 * LONG_S)
        assert f"that controller {FIRST}, which leads," in scene.backup.blocked_reason
        scene.answers.clear()
        scene.lead(NOBODY, 1)
        assert scene.backup.blocked_reason.startswith("no controller leads")
        scene.lead(SECOND, 2)
        assert scene.backup.blocked_reason.startswith(f"controller {SECOND} has not put the metadata")
        assert not await waiting

    in_scene(work)


def test_who_resigns_behind_its_answer_is_not_taken_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        scene.lead(FIRST, 1)
        scene.commit(10, 1)
        scene.while_asked = lambda: scene.lead(NOBODY, 1)
        assert not await scene.is_reached()

    in_scene(work)
    assert "controller -1" not in caplog.text


def test_a_term_is_compared_once() -> None:
    """Behind the first answer nobody lists the bucket again: it may hold nothing any more."""

    async def work(scene: Scene) -> None:
        scene.lead(FIRST, 1)
        for end in (10, 20, 30):
            scene.commit(end, 1)
            if end == 10:
                await scene.put()
            assert await scene.is_reached()
        assert scene.asked == 3
        assert not scene.backup.blocked_reason

    in_scene(work)


def test_nothing_is_told_of_a_question_that_is_new() -> None:
    async def work(scene: Scene) -> None:
        scene.commit(10, 1)
        waiting = asyncio.ensure_future(scene.is_reached())
        await asyncio.sleep(LONG_S / 2)
        assert not scene.backup.blocked_reason
        await asyncio.sleep(LONG_S)
        assert scene.backup.blocked_reason.startswith("no controller leads")
        assert not await waiting

    in_scene(work)
