"""What a controller listener serves: whoever asks for it is answered."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.handlers import FORWARDED
from millrace.broker.quorum.listener import OF_MEMBERS
from millrace.broker.requests.dispatch import Dispatcher
from millrace.broker.requests.request import ConnectionInfo
from millrace.protocol.apis import API
from millrace.protocol.codec import encode_request
from millrace.runtime.scheduling.yield_queue import YieldQueue

CONNECTION = ConnectionInfo(1, "CONTROLLER", "127.0.0.1", 9093, "127.0.0.1")


@pytest.mark.parametrize("key", sorted({*OF_MEMBERS, *FORWARDED, 60}), ids=lambda key: API[key].name)
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
