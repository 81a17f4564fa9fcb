"""What a controller listener serves: whoever asks for it is answered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.handlers import FORWARDED
from millrace.broker.quorum.listener import BROKERS, CONTROLLERS, OF_MEMBERS, DescribeControllers
from millrace.broker.requests.dispatch import Dispatcher
from millrace.broker.requests.request import ConnectionInfo, RequestContext
from millrace.protocol.apis import API
from millrace.protocol.codec import encode_request
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.work import new_work

CONNECTION = ConnectionInfo(1, "CONTROLLER", "127.0.0.1", 9093, "127.0.0.1")


@pytest.mark.parametrize("key", sorted({*OF_MEMBERS, *FORWARDED, 32, 60}), ids=lambda key: API[key].name)
def test_each_request_of_a_member_reaches_its_handler(key: int) -> None:
    """Through the dispatcher of a real listener, which knows each API by its row."""
    api = API[key]

    async def main() -> None:
        start = asyncio.get_running_loop().create_task
        dispatcher = Dispatcher({key: lambda context, request: api.response_type()}, start, YieldQueue())
        frame = encode_request(api, api.max_stable_version, 1, "node", api.request_type())
        exchange = dispatcher.begin(bytes(frame[4:]), CONNECTION)
        assert exchange.outcome == api.response_type()

    asyncio.run(main())


def described(version: int, **fields: Any) -> DescribeClusterResponse:
    node: Any = SimpleNamespace(cluster_id="cluster", driver=SimpleNamespace(news=SimpleNamespace(leader=2)))
    handler = DescribeControllers(node, lambda: {2: ("host2", 9093), 1: ("host1", 9093)})
    context = RequestContext(60, version, 1, "test", CONNECTION, new_work)
    return handler.handle(context, DescribeClusterRequest(**fields))


def test_who_asks_for_brokers_is_told_where_the_request_went_by_a_code_of_its_version() -> None:
    """MISMATCHED_ENDPOINT_TYPE came with version 1, as in Kafka."""
    codes = [described(version, endpoint_type=BROKERS).error_code for version in (0, 1, 2)]
    assert codes == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.MISMATCHED_ENDPOINT_TYPE,
        ErrorCode.MISMATCHED_ENDPOINT_TYPE,
    ]
    assert described(1, endpoint_type=7).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


@pytest.mark.parametrize(("is_asked", "told"), [(False, -(1 << 31)), (True, 8096)])
def test_controllers_and_what_may_be_done_are_told(is_asked: bool, told: int) -> None:
    """What may be done is what Kafka's controllers say, of who asks for it alone."""
    found = described(1, endpoint_type=CONTROLLERS, include_cluster_authorized_operations=is_asked)
    assert (found.error_code, found.controller_id) == (0, 2)
    assert [(one.broker_id, one.host, one.port) for one in found.brokers] == [
        (1, "host1", 9093),
        (2, "host2", 9093),
    ]
    assert found.cluster_authorized_operations == told
