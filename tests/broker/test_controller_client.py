"""The broker's voice to the controller: what it waits out, and what refusals become. The channel answers by a
script."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.broker.controller_client import ControllerClient
from millrace.kraft.errors import LogFull, NotLeader
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest, PrepareObjectsResponse
from millrace.protocol.messages.trim_streams import TrimmedStream, TrimStreamsResponse
from millrace.s3stream.errors import StreamFenced, StreamMissing, UploadExpired
from millrace.s3stream.ids import ObjectId, StreamId, UploadCommit
from tests.broker.background.test_object_cleaner import Cluster, run


class Scripted:
    """Gives or raises one thing after another."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.requests: list[Any] = []

    async def send(self, request: Any) -> Any:
        self.requests.append(request)
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


def client_of(cluster: Cluster, *script: Any) -> tuple[ControllerClient, Scripted]:
    channel = Scripted(*script)
    client = ControllerClient(channel, cluster.cache, 1)
    client.broker_epoch = 7
    return client, channel


def test_the_client_asks_until_it_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """Not the leader, a full log, and refusals that pass by themselves are waited out, each with its own
    sentence; the answer then is the caller's."""

    async def scenario() -> None:
        cluster = await Cluster().start(0)
        passing = PrepareObjectsResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        client, channel = client_of(
            cluster, NotLeader(), LogFull("/log"), passing, PrepareObjectsResponse(first_object_id=9)
        )
        assert await client.prepare(2, 1000) == 9
        assert channel.requests == [PrepareObjectsRequest(1, 7, 2, 1000)] * 4
        await cluster.stop()

    run(scenario)
    assert "this node does not lead the quorum: nobody leads it now; again in" in caplog.text


def test_what_refusals_become() -> None:
    """A stale node is fenced, a stream of a higher epoch is, a stream or object that is gone has its own
    error, the rest is a refusal."""

    async def scenario() -> None:
        cluster = await Cluster().start(0)
        stale = PrepareObjectsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        with pytest.raises(StreamFenced):
            await client_of(cluster, stale)[0].prepare(1, 1000)
        other = PrepareObjectsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        with pytest.raises(KafkaError):
            await client_of(cluster, other)[0].prepare(1, 1000)
        for code, kind in (
            (ErrorCode.FENCED_LEADER_EPOCH, StreamFenced),
            (ErrorCode.RESOURCE_NOT_FOUND, StreamMissing),
        ):
            answer = TrimStreamsResponse(streams=[TrimmedStream(3, code)])
            with pytest.raises(kind):
                await client_of(cluster, answer)[0].trim(StreamId(3), 0, 5)
        with pytest.raises(UploadExpired):
            await cluster.client.commit_upload(UploadCommit(ObjectId(77), 1, (), ()))
        await cluster.stop()

    run(scenario)
